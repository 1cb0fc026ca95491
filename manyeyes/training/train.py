"""`train`: from data, a model and an algorithm to a trained model, in a run folder or in memory."""

import json
from collections.abc import Iterable, Mapping
from contextlib import ExitStack, closing
from inspect import isfunction
from pathlib import Path
from typing import Any, Unpack

import torch

import manyeyes.training.trackers  # noqa: F401  # which register themselves
from manyeyes.core.algorithm import Algorithm
from manyeyes.core.population import CAVEAT_SEPARATOR, Population
from manyeyes.core.registry import import_path, show_options
from manyeyes.core.state import DivergenceError
from manyeyes.data.preprocess import Preprocess
from manyeyes.engines.base import retained_memory
from manyeyes.engines.distributed.process_group import PeerLostError
from manyeyes.metrics import MetricSet
from manyeyes.metrics.heterogeneity import dataset_stats
from manyeyes.models.build import Model, weights_input
from manyeyes.models.flat import FlatModel
from manyeyes.training.advice import advice
from manyeyes.training.builtin_callbacks import SELECTION_LOSS, FinalReports, RejectionMessages
from manyeyes.training.callbacks import build_all
from manyeyes.training.checkpoint import Checkpoint
from manyeyes.training.client_state import ClientStateStore
from manyeyes.training.config import TRAIN_OPTIONS, TrainOptions, split_options
from manyeyes.training.description import PROJECT, describe_training, fingerprint, warn_of_changed_sources
from manyeyes.training.loop import TrainingLoop, train_rounds
from manyeyes.training.progress import RoundProgress, show_progress
from manyeyes.training.result import Result
from manyeyes.training.run_files import CAVEATS_KEY, DATASET_STATS_FILE, MODEL_FILE, read_config
from manyeyes.training.run_folder import Recorder, RunFolder
from manyeyes.training.scoring import result_names
from manyeyes.training.setup import TrainingSetup, check_norm_statistics, make_setup
from manyeyes.training.trained_model import ModelInfo, write_model
from manyeyes.training.withholding import check_recording, public_splits

MIB = 2**20


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
    **options: Unpack[TrainOptions],
) -> Result:
    """Train a model on the data of many users.

    Parameters
    ----------
    population
        The users and their images. If they have splits, `train` is trained on and `eval_split` is evaluated.
    model
        A name, a name with options as a mapping, a module (which is not changed), or a function that returns one, also
        as "package.module:function".
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
        Whether to show progress; by default on a terminal and in a notebook. `title` is its first word.
    **options
        The settings of `RunConfig` (rounds, seed, evaluate_every, ...) and of `EngineOptions` (engine, device, ...).

    Returns
    -------
    Result
        The trained model, its curves and its scores.
    """
    if not isinstance(algorithm, Algorithm):
        fix = (
            f"call it: me.{algorithm.__name__}()" if isfunction(algorithm) else "give an Algorithm, such as me.fedavg()"
        )
        raise ValueError(f"algorithm is {algorithm!r}: {fix}.")
    config, engine_options = split_options(options)
    preprocess = (preprocess or Preprocess()).for_weights(weights_input(model))
    if engine_options.threads:
        torch.set_num_threads(engine_options.threads)
    callbacks, trackers = build_all("callback", callbacks), build_all("tracker", trackers)
    if trackers and folder is None:
        raise ValueError("Trackers write to the run folder and this run has none: set folder.")
    metric_set = MetricSet(build_all("metric", metrics))
    with show_progress(title, progress) as display:
        setup = make_setup(population, model, algorithm, test, preprocess, config, engine_options, metric_set)
        observers = trackers if display is None else (*trackers, RoundProgress(display, advice(setup)))
        with setup.engine, retained_memory(setup.device):
            description = describe_training(
                algorithm, model, preprocess, config, engine_options, trackers, callbacks, metric_set.metrics, metadata
            )
            return run_training(setup, folder, description, resume, callbacks, observers)


show_options(train, train, TRAIN_OPTIONS)


def run_training(
    setup: TrainingSetup,
    folder: str | Path | None,
    description: Mapping[str, Any],
    resume: bool = False,
    callbacks: Iterable[Any] = (),
    observers: Iterable[Any] = (),
) -> Result:
    """Run a training that is set up, from its start or its checkpoint.

    Callbacks take part in the run on every process; observers follow complete events, on the process that writes.
    """
    if setup.algorithm.privacy is not None:
        check_norm_statistics(setup.algorithm, setup.model)
        check_recording(setup.algorithm, setup.config)
    best_model = () if setup.best_model is None else (setup.best_model,)
    callbacks = (*best_model, FinalReports(), *callbacks)
    observers = (RejectionMessages(), *observers) if setup.dist.rank == 0 else ()
    check_callbacks(callbacks, setup)
    with ExitStack() as stack:
        loop = TrainingLoop(setup, *open_run(setup, folder, description, resume, stack), callbacks, observers)
        stack.callback(loop.callbacks.close)
        try:
            train_rounds(loop)
        except PeerLostError as error:
            saved = f"; the run is saved: continue it with resume={loop.recorder.path}" if loop.recorder.path else ""
            raise PeerLostError(f"{error}{saved}") from None
        except DivergenceError as error:
            saved = f" (its last good checkpoint is in {loop.recorder.path})" if loop.recorder.path else ""
            fix = "choose a lower lr of the algorithm (algorithm.lr), or set its max_grad_norm"
            raise DivergenceError(f"the run has diverged{saved}, {error}: {fix}") from None
        return finish(loop, description)


def check_callbacks(callbacks: Iterable[Any], setup: TrainingSetup) -> None:
    """Let callbacks refuse results that evaluations do not have, before a folder exists."""
    names = result_names(setup) + ([SELECTION_LOSS] if setup.best_model else [])
    for callback in callbacks:
        if hasattr(callback, "check_results"):
            callback.check_results(names)
        elif not type(callback).__module__.startswith(f"{PROJECT}."):
            return  # those after it may use what it adds to events


def open_run(
    setup: TrainingSetup, path: str | Path | None, description: Mapping[str, Any], resume: bool, stack: ExitStack
) -> tuple[Recorder, ClientStateStore, Checkpoint | None]:
    """Create or continue the run folder; of several processes, the first writes and the others only read."""
    max_bytes = setup.config.client_state_cache_mib * MIB
    if path is None:
        return Recorder(), stack.enter_context(closing(ClientStateStore(None, setup.device, max_bytes))), None
    folder, writes = RunFolder(Path(path)), setup.dist.rank == 0
    run_fingerprint = fingerprint(setup.algorithm, setup.preprocess, setup.config.seed, setup.model, setup.population)
    stats = training_statistics(setup) if writes and not resume else {}
    if writes:
        stack.enter_context(folder)
    mismatch = noise_mismatch(folder.path, description)
    checkpoint = folder.load(setup.device, run_fingerprint, mismatch) if resume else None
    recorder = Recorder()
    if writes:
        if resume:
            warn_of_changed_sources(read_config(folder.path), description)
        else:
            folder.create({"engine": setup.engine_name, "device": str(setup.device)})
            if stats:
                folder.write_text(DATASET_STATS_FILE, json.dumps(stats) + "\n")
        folder.write_config({**description, CAVEATS_KEY: CAVEAT_SEPARATOR.join(setup.caveats)})
        recorder = stack.enter_context(closing(Recorder(folder, run_fingerprint, checkpoint)))
    if setup.dist.size > 1:
        recorder.events = setup.dist.all_gather(recorder.events)[0]
    index = None if checkpoint is None else checkpoint.clients
    clients = ClientStateStore(folder.client_states, setup.device, max_bytes, index, writes)
    return recorder, stack.enter_context(closing(clients)), checkpoint


def noise_mismatch(path: Path, description: Mapping[str, Any]) -> str:
    """Return why a private run cannot be continued with another number of rounds; empty if that is not the reason."""
    planned = read_config(path).get("rounds")
    if not description.get("privacy") or planned in (None, description.get("rounds")):
        return ""
    if (path / MODEL_FILE).exists():
        return f"is a private run that is complete after {planned} rounds, for which its noise was calibrated: more rounds need a new run"
    fix = f"continue it with rounds={planned}, or start a new run"
    return f"is a private run whose noise was calibrated for rounds={planned}: {fix}"


def training_statistics(setup: TrainingSetup) -> dict[str, Any]:
    """Return the dataset statistics of a run; of a private one, of the splits without training users."""
    splits: Mapping[str, Population | None] = setup.splits
    if setup.config.withholds_statistics(setup.algorithm):
        splits = public_splits(splits, setup.population)
    return dataset_stats(splits) if splits else {}


def finish(loop: TrainingLoop, description: Mapping[str, Any]) -> Result:
    """Write the trained model and return the result."""
    setup, recorder, scores = loop.setup, loop.recorder, loop.scores
    FlatModel(setup.module).write(loop.state.weights)
    info = model_info(loop, description)
    if recorder.path is not None:
        write_model(recorder.path / MODEL_FILE, setup.module, info)
    result = Result(
        model=setup.module,
        events=recorder.events,
        score=scores.shared,
        folder=recorder.path,
        personalized=scores.personalized,
        caveats=setup.caveats,
        has_personal_layers=setup.algorithm.personal_layers is not None,
        info=info,
        evaluated=None if setup.evaluator is None else setup.evaluator.population,
    )
    loop.callbacks.call("on_train_end", result)
    return result


def model_info(loop: TrainingLoop, description: Mapping[str, Any]) -> ModelInfo:
    """Return what someone needs to know to use the trained model."""
    setup, state, train_split = loop.setup, loop.state, loop.setup.population
    privacy, guarantee = setup.algorithm.privacy, None
    if privacy is not None:
        epsilon = privacy.epsilon_spent(state.round, state.privacy_state)
        guarantee = {"guarantee": privacy.describe(), "epsilon": epsilon}
    height, width, channels = train_split.image_shape
    return ModelInfo(
        model=description.get("model"),
        module=import_path(type(setup.module)),
        classes=train_split.classes,
        is_multi_label=train_split.labels.multi,
        image_shape=(height, width),
        preprocess=description["preprocess"],
        rounds=state.round,
        metrics=loop.scores.results(),
        privacy=guarantee,
        caveats=setup.caveats,
        channels=channels,
    )
