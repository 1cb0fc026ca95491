"""`train`: from data, a model and an algorithm to a trained model, in a run folder or in memory."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from manyeyes.core.algorithm import Algorithm
from manyeyes.core.population import Population
from manyeyes.core.state import DivergenceError, init_state
from manyeyes.data.preprocess import Preprocess
from manyeyes.engines.distributed.process_group import PeerLostError
from manyeyes.engines.malloc import retained_memory
from manyeyes.engines.select import choose_device
from manyeyes.metrics import MetricSet
from manyeyes.models.flat import FlatModel
from manyeyes.training.builtin_callbacks import PrivacyLedger, RejectionMessages, Tables
from manyeyes.training.callbacks import build_all
from manyeyes.training.checkpoint import Checkpoint
from manyeyes.training.client_state import ClientStateStore
from manyeyes.training.config import split_options
from manyeyes.training.description import describe_run, fingerprint, warn_of_changed_sources
from manyeyes.training.loop import TrainingLoop, train_rounds
from manyeyes.training.progress import progress_bar
from manyeyes.training.result import Result
from manyeyes.training.run_folder import FolderRecorder, InMemoryRecorder, Recorder, RunFolder
from manyeyes.training.setup import (
    Model,
    TrainingSetup,
    check_algorithm,
    check_model,
    check_norm_statistics,
    limit_to_budget,
    make_setup,
    make_splits,
    prepare_model,
)

MIB = 2**20


@dataclass(frozen=True)
class Extras:
    """What a run has in addition to training, evaluating and saving."""

    callbacks: tuple[Any, ...] = ()
    trackers: tuple[Any, ...] = ()
    progress: tuple[Any, ...] = ()


NO_EXTRAS = Extras()


def make_callbacks(setup: TrainingSetup, extras: Extras) -> tuple[Any, ...]:
    """Return the callbacks that take part in a run: what is built in, then the user's."""
    best_model = () if setup.best_model is None else (setup.best_model,)
    return (*best_model, PrivacyLedger(), Tables(), *extras.callbacks)


def make_observers(setup: TrainingSetup, extras: Extras) -> tuple[Any, ...]:
    """Return the callbacks that follow complete events, on the process that writes."""
    return (*extras.trackers, RejectionMessages(), *extras.progress) if setup.dist.rank == 0 else ()


def train(
    population: Population,
    model: Model,
    algorithm: Algorithm,
    *,
    test: Population | None = None,
    preprocess: Preprocess | None = None,
    metrics: Iterable[Any] = (),
    callbacks: Iterable[Any] = (),
    trackers: Iterable[Any] = (),
    folder: str | Path | None = None,
    resume: bool = False,
    metadata: Mapping[str, Any] | None = None,
    progress: bool | None = None,
    title: str = "training",
    **options: Any,
) -> Result:
    """Train a model on the data of many users.

    Parameters
    ----------
    population
        The users and their images. If they have splits, `train` is trained on and `eval_split` is evaluated.
    model
        A name, a module (which is not changed), or a function that returns one, also as "package.module:function".
    algorithm
        What a round does, such as `fedavg()`.
    test
        Another population that is evaluated; all of `population` is then trained on.
    preprocess
        How images are augmented and normalized.
    metrics
        What evaluations report in addition: objects with the methods of `Metric`, or names such as "top_k".
    callbacks, trackers
        Objects with the hooks of `Callback`, or names such as "early_stopping" and "tensorboard".
    folder
        Where the run is kept.
    resume
        Whether to continue the run in `folder`.
    metadata
        What else `config.yaml` in the folder says of the run.
    progress
        Whether to show progress; by default if standard error is a terminal. `title` is its first word.
    **options
        The settings of `RunConfig` (rounds, seed, evaluate_every, ...) and of `EngineOptions` (engine, device, ...).

    Returns
    -------
    Result
        The trained model, its curves and its scores.
    """
    config, engine_options = split_options(options)
    preprocess = preprocess or Preprocess()
    if engine_options.threads:
        torch.set_num_threads(engine_options.threads)
    extras = Extras(
        build_all("callback", callbacks), build_all("tracker", trackers), tuple(progress_bar(title, progress))
    )
    metric_set = MetricSet(build_all("metric", metrics))
    splits = make_splits(population, test, algorithm, config)
    check_algorithm(algorithm, splits)
    metric_set.validate(splits.test or splits.train)
    algorithm, config = limit_to_budget(algorithm, splits.train, config)
    device = choose_device(engine_options.device)
    prepared = prepare_model(model, splits, preprocess, config.seed, device)
    check_model(algorithm, prepared.flat, splits, preprocess)
    setup = make_setup(algorithm, splits, prepared, preprocess, config, engine_options, device, metric_set)
    description = describe_run(
        algorithm, model, preprocess, config, engine_options, extras.trackers, extras.callbacks, metric_set.metrics
    )
    target = RunTarget(folder, resume, description | dict(metadata or {}), splits.by_users)
    with setup.engine:
        return run_training(setup, target, extras)


@dataclass(frozen=True)
class RunTarget:
    """Where a run is kept, and what is written of it before it starts."""

    folder: str | Path | None = None
    resume: bool = False
    description: dict[str, Any] = field(default_factory=dict)  # config.yaml
    splits: dict[str, Population | None] = field(default_factory=dict)  # whose statistics are written


def run_training(setup: TrainingSetup, target: RunTarget, extras: Extras = NO_EXTRAS) -> Result:
    """Run a training that is set up, from its start or its checkpoint."""
    check_norm_statistics(setup.algorithm, setup.model)
    if extras.trackers and target.folder is None:
        raise ValueError("trackers write to the run folder and this run has none: set folder.")
    with ExitStack() as stack:
        stack.enter_context(retained_memory(setup.device))
        files = open_run(setup, target, stack)
        checkpoint, recorder = files.checkpoint, files.recorder
        initial_state = init_state(setup.algorithm, setup.model.read(), setup.model.num_trainable)
        loop = TrainingLoop(
            setup,
            recorder,
            checkpoint.state if checkpoint else initial_state,
            stack.enter_context(closing(open_clients(setup, target, checkpoint))),
            make_callbacks(setup, extras),
            make_observers(setup, extras),
            checkpoint.callbacks if checkpoint else {},
        )
        stack.callback(loop.close)
        with explained_failures(files):
            train_rounds(loop)
        FlatModel(setup.module).write(loop.state.weights)
        if files.folder is not None:
            files.folder.write_model(setup.module.state_dict())
        result = Result(setup.module, recorder.events, loop.scores.shared, recorder.path, loop.scores.personalized)
        loop.callbacks.call("on_train_end", result)
        loop.observers.call("on_train_end", result)
        return result


@dataclass(frozen=True, eq=False)
class RunFiles:
    """The files of a run on this process."""

    recorder: Recorder
    folder: RunFolder | None = None  # None on the processes that write nothing
    checkpoint: Checkpoint | None = None


def open_run(setup: TrainingSetup, target: RunTarget, stack: ExitStack) -> RunFiles:
    """Create or continue the run folder; of several processes, the first writes and the others only read."""
    files = RunFiles(InMemoryRecorder())
    if target.folder is not None:
        run_fingerprint = fingerprint(
            setup.algorithm, setup.preprocess, setup.config.seed, setup.model, setup.population
        )
        folder = RunFolder(Path(target.folder))
        if setup.dist.rank == 0:
            files = _open_folder(stack.enter_context(folder), setup, target, run_fingerprint, stack)
        elif target.resume:
            files = RunFiles(InMemoryRecorder(), None, folder.load(setup.device, run_fingerprint))
    files.recorder.events[:] = setup.dist.all_gather(files.recorder.events)[0]
    return files


def _open_folder(
    folder: RunFolder, setup: TrainingSetup, target: RunTarget, run_fingerprint: str, stack: ExitStack
) -> RunFiles:
    checkpoint = None
    if target.resume:
        checkpoint = folder.load(setup.device, run_fingerprint)
        warn_of_changed_sources(folder.read_config(), target.description)
    else:
        folder.create({"engine": setup.engine_name, "device": str(setup.device)})
        if target.splits:
            folder.write_dataset_stats(target.splits)
    folder.clear_divergence()
    folder.write_config(target.description)
    recorder = stack.enter_context(closing(FolderRecorder(folder, run_fingerprint, checkpoint)))
    return RunFiles(recorder, folder, checkpoint)


def open_clients(setup: TrainingSetup, target: RunTarget, checkpoint: Checkpoint | None) -> ClientStateStore:
    """Return the clients' states, as the checkpoint has them."""
    max_bytes = setup.config.client_state_cache_mib * MIB
    path = None if target.folder is None else RunFolder(Path(target.folder)).client_states
    writes = setup.dist.rank == 0
    if checkpoint is not None and path is not None:
        return ClientStateStore.open(path, checkpoint.clients, setup.device, max_bytes, writes)
    return ClientStateStore(path if writes else None, setup.device, max_bytes)


@contextmanager
def explained_failures(files: RunFiles) -> Iterator[None]:
    """Say in one sentence what happened to a run that cannot go on, and where it is saved."""
    path = files.recorder.path
    try:
        yield
    except PeerLostError as error:
        saved = f"; the run is saved: continue it with resume={path}" if path else ""
        raise PeerLostError(f"{error}{saved}") from None
    except DivergenceError as error:
        saved = f" (its last good checkpoint is in {path})" if path else ""
        reason = f"the run has diverged{saved}, {error}: try a lower learning rate, or clip gradients"
        if files.folder is not None:
            files.folder.write_divergence(reason)
        raise DivergenceError(reason) from None
