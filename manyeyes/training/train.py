"""Training: all that a run needs is put together, then played from its start or its checkpoint, and kept."""

from __future__ import annotations

import copy
import hashlib
import json
import sys
from contextlib import ExitStack, closing
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from manyeyes.components.samplers import Centralized
from manyeyes.core.algorithm import Algorithm
from manyeyes.core.plan import plan_round
from manyeyes.core.population import Population
from manyeyes.core.rng import derive_key, make_rng
from manyeyes.core.state import DivergenceError, init_state
from manyeyes.data.preprocess import Preprocess
from manyeyes.engines.base import EngineOptions, EngineSetup
from manyeyes.engines.device_images import place_images
from manyeyes.engines.distributed import PeerLostError, dist_info, init_process_group
from manyeyes.engines.distributed_engine import distribute
from manyeyes.engines.evaluation import LocalEvaluator
from manyeyes.engines.malloc import retained_memory
from manyeyes.engines.prefetch import ImagePrefetcher, PlanPrefetcher, reads_from_disk
from manyeyes.engines.select import choose_device, choose_engine
from manyeyes.io.atomic import write_text
from manyeyes.models import build_model
from manyeyes.models.dropout import with_seeded_dropout
from manyeyes.models.fitting import check_fits
from manyeyes.models.flat import FlatModel
from manyeyes.models.traits import probe
from manyeyes.training.checkpoint import Checkpoint
from manyeyes.training.client_state import ClientStateStore
from manyeyes.training.config import RunConfig
from manyeyes.training.dataset_stats import write_dataset_stats
from manyeyes.training.loop import TrainingSetup, train_rounds
from manyeyes.training.recorder import FolderRecorder, InMemoryRecorder, Recorder
from manyeyes.training.result import Result, write_tables
from manyeyes.training.run_folder import RunFolder
from manyeyes.training.tensors import write_tensors


def train(
    population: Population,
    model: nn.Module | str,
    algorithm: Algorithm,
    *,
    test: Population | None = None,
    preprocess: Preprocess | None = None,
    folder: str | Path | None = None,
    resume: bool = False,
    metadata: dict[str, Any] | None = None,
    **settings: Any,
) -> Result:
    """Train `model` (a name, or a module, which is not changed) on `population`; returns curves and the trained model.

    The train split is trained on and the `evaluate_on` split evaluated, unless `test` gives a population for that.
    With a `folder`, everything is kept there and `resume` continues what it holds; `about` describes the run there.
    `settings` are the fields of `Settings`.
    """
    how = RunConfig(**settings)
    preprocess = preprocess or Preprocess()
    trained_on, tested_on = _parts(population, test, how.eval_split)
    counted = {"train": trained_on, how.eval_split: tested_on}
    if isinstance(algorithm.sampler, Centralized):
        trained_on = trained_on.pooled()
    algorithm.validate(trained_on)
    if algorithm.adaptation and tested_on is not None and not np.isin(trained_on.user_ids, tested_on.user_ids).any():
        raise ValueError(
            "fine-tuning needs users with a part to train on and one to be tested on, and here none has both: "
            "split the data within users"
        )
    algorithm, how = limit_to_budget(algorithm, trained_on, how)
    preprocess.check(*trained_on.image_shape[:2])
    device = choose_device(how.device)
    module = _module(model, trained_on, preprocess, how.seed).to(device)
    shape = preprocess.shape(*trained_on.image_shape[:2])
    check_fits(module, *shape, len(trained_on.classes), evaluated=tested_on is not None)
    flat = FlatModel(with_seeded_dropout(module))
    found = probe(flat, *shape)
    if found.mutated_buffer:
        raise ValueError(
            f"the model changes its buffer {found.mutated_buffer} when it trains, and of buffers only the statistics of norms "
            "go with a client: leave out the layer that it belongs to"
        )
    if not found.trains_on_one:
        _check_batches(algorithm, trained_on, tested_on, *shape)
    chosen_on = _selection_split(population, algorithm, how)
    held, *tested = place_images(
        [p for p in (trained_on, tested_on, chosen_on) if p is not None], how.image_storage, device
    )
    planner = partial(plan_round, algorithm, trained_on, how.seed, num_augment_uniforms=preprocess.num_uniforms)
    ahead: ImagePrefetcher | PlanPrefetcher | None = None
    if how.prefetch_mib and reads_from_disk(held.images):
        ahead = ImagePrefetcher(held, planner, how.rounds, how.prefetch_mib * 2**20)
        held = replace(held, images=ahead)
    here = dist_info()
    options = EngineOptions(
        **{one.name: getattr(how, one.name) for one in fields(EngineOptions) if hasattr(how, one.name)}
    )
    expected = getattr(algorithm.sampler, "cohort_size", len(trained_on.user_ids))
    setup = EngineSetup(flat, held, preprocess, device, options, expected, here)
    engine = distribute(choose_engine(algorithm, setup), setup)
    if ahead is None:
        ahead = PlanPrefetcher(planner, how.rounds, engine.prefetch)
        engine.on_device_busy = ahead.prepare
    if algorithm.personal_layers is not None:
        engine.personal_mask(
            algorithm.personal_layers
        )  # which refuses patterns that match no layer, before anything is written
    evaluators = [
        LocalEvaluator(flat, part, preprocess, device, engine.precision, engine.compiles, dist=here) for part in tested
    ]
    evaluator, chooser = (*evaluators, None, None)[:2]
    training = TrainingSetup(algorithm, trained_on, engine, evaluator, preprocess, how, here, ahead, chooser)
    with engine:
        return run_training(
            training, module, flat, device, folder=folder, resume=resume, metadata=metadata, stats_splits=counted
        )


def run_training(
    training: TrainingSetup,
    module: nn.Module,
    flat: FlatModel,
    device: torch.device,
    *,
    folder: str | Path | None = None,
    resume: bool = False,
    metadata: dict[str, Any] | None = None,
    stats_splits: dict[str, Population | None] | None = None,
) -> Result:
    """Play a run that is put together, from its start or from its checkpoint; `flat` is a view of `module`."""
    algorithm, augment, how, here = training.algorithm, training.augment, training.config, training.dist
    check_norm_statistics(algorithm, flat)
    fingerprint = _fingerprint(training, flat)
    with ExitStack() as stack:
        stack.enter_context(retained_memory(device))
        init_process_group(device)
        found: Checkpoint | None = None
        journal: Recorder = InMemoryRecorder()
        writes = folder is not None and here.rank == 0
        if folder is not None and resume and not writes:
            found = RunFolder(Path(folder)).load(device, fingerprint)
        if folder is not None and writes:
            place = stack.enter_context(RunFolder(Path(folder)))
            if resume:
                found = place.load(device, fingerprint)
            else:
                place.create(
                    {
                        "engine": getattr(training.engine, "name", type(training.engine).__name__.lower()),
                        "device": str(device),
                    }
                )
                if stats_splits is not None:
                    write_dataset_stats(place.path, stats_splits)
            place.diverged.unlink(missing_ok=True)
            place.describe(metadata or {"algorithm": repr(algorithm), "augment": repr(augment), "settings": repr(how)})
            journal = stack.enter_context(closing(FolderRecorder(place, how.trackers, fingerprint, found)))
        state = found.state if found else init_state(algorithm, flat.read(), flat.num_trainable)
        kept = RunFolder(Path(folder)).clients if folder is not None else None
        memory = how.client_state_cache_mib * 2**20
        if found is not None and kept is not None:
            clients = ClientStateStore.open(kept, found.clients, device, memory, writes)
        else:
            clients = ClientStateStore(kept if writes else None, device, memory)
        stack.enter_context(closing(clients))
        try:
            state, score, adapted = train_rounds(training, journal, state, clients)
        except PeerLostError as error:
            saved = f"; the run is saved: continue it with resume={journal.path}" if journal.path else ""
            raise PeerLostError(f"{error}{saved}") from None
        except DivergenceError as error:
            where = f" (its last good checkpoint is in {journal.path})" if journal.path else ""
            sentence = f"the run has diverged{where}, {error}: try a lower learning rate, or clip gradients"
            if writes:
                write_text(place.diverged, sentence + "\n")
            raise DivergenceError(sentence) from None

        FlatModel(module).write(state.weights)
        if writes:
            tensors = {name: tensor.contiguous() for name, tensor in module.state_dict().items()}
            write_tensors(place.model, tensors)
            if algorithm.privacy is not None:
                spent = {
                    "epsilon": algorithm.privacy.epsilon_spent(state.round, state.privacy_state),
                    "rounds": state.round,
                }
                about_privacy = {"promise": algorithm.privacy.describe(), **spent, "part": repr(algorithm.privacy)}
                write_text(place.path / "privacy.json", json.dumps(about_privacy, indent=1) + "\n")
            if score is not None and training.evaluator is not None:
                write_tables(place.path, score, training.evaluator.population, adapted)
        return Result(module, journal.events, score, journal.path, adapted)


def limit_to_budget(algorithm: Algorithm, population: Population, how: RunConfig) -> tuple[Algorithm, RunConfig]:
    """The algorithm with its privacy settled for this run, which has no more rounds than the budget allows."""
    algorithm, rounds = calibrate_privacy(algorithm, population, how.rounds)
    if rounds < how.rounds:
        print(f"the privacy budget allows {rounds} of {how.rounds} rounds: the run ends there", file=sys.stderr)
    return algorithm, replace(how, rounds=rounds)


def calibrate_privacy(algorithm: Algorithm, population: Population, rounds: int) -> tuple[Algorithm, int]:
    """The algorithm with the noise that so many rounds need, and how many of them the budget allows."""
    if algorithm.privacy is None:
        return algorithm, rounds
    privacy = algorithm.privacy.calibrate(algorithm, population, rounds)
    allowed = privacy.max_rounds(rounds)
    if not allowed:
        raise ValueError("one round would already spend more than the privacy budget: raise epsilon or noise")
    if allowed < rounds:
        privacy = privacy.calibrate(algorithm, population, allowed)  # the promise is about the rounds that are played
    return replace(algorithm, privacy=privacy), allowed


def check_norm_statistics(algorithm: Algorithm, flat: FlatModel) -> None:
    """Refuse statistics that would be noisy; those that stay with clients (FedBN) are not."""
    if algorithm.privacy is None:
        return
    own = algorithm.personal_layers.parameter_names(flat.module) if algorithm.personal_layers is not None else set()
    if not bool(flat.mask(own.__contains__)[flat.num_trainable :].all()):
        raise ValueError(
            "noise would make BatchNorm's statistics useless: use group or frozen_batch norms to be private"
        )


def _parts(population: Population, test: Population | None, split: str) -> tuple[Population, Population | None]:
    """What is trained on, and what is evaluated."""
    if test is not None or "split" not in population.columns:
        return population, test
    return population.split("train"), population.split(split)


def _selection_split(population: Population, algorithm: Algorithm, how: RunConfig) -> Population | None:
    """The split that says which model is the best."""
    if not how.select_best_on:
        return None
    if (
        algorithm.personal_layers is not None
        or algorithm.personal_model is not None
        or algorithm.adaptation is not None
    ):
        raise ValueError("best_on chooses among shared models, and here clients have their own: leave it empty")
    if "split" not in population.columns or how.select_best_on == how.eval_split:
        raise ValueError(f"best_on is {how.select_best_on!r}: give a split of the data that is not the one evaluated")
    return population.split(how.select_best_on)


def _check_batches(
    algorithm: Algorithm, population: Population, tested: Population | None, height: int, width: int
) -> None:
    """Refuse a batch of one photo, before it comes up."""
    drawn = [(algorithm.batching, population.num_examples)]
    if algorithm.adaptation is not None and tested is not None:
        drawn.append(
            (
                algorithm.adaptation.local_algorithm(algorithm).batching,
                population.num_examples[np.isin(population.user_ids, tested.user_ids)],
            )
        )
    for draw, sizes in drawn:
        for held in np.unique(sizes).tolist():
            if ((draw.batches(held, make_rng(0, "draw")) >= 0).sum(1) == 1).any():
                raise ValueError(
                    f"live BatchNorm cannot learn from a batch of one photo of {height} x {width} pixels, and a user "
                    f"who holds {held} has one: choose another algorithm.batch, larger images, or model.norm=group"
                )


def _module(model: nn.Module | str, population: Population, augment: Preprocess, seed: int) -> nn.Module:
    if isinstance(model, nn.Module):
        return copy.deepcopy(model)
    size = augment.crop or population.image_shape[0]
    return build_model(model, len(population.classes), size=size, seed=derive_key(seed, "weights") % 2**63)


def _fingerprint(training: TrainingSetup, flat: FlatModel) -> str:
    """A name for what is trained, so that a run is only continued by itself."""
    people = training.population
    digest = hashlib.blake2b(digest_size=16)
    for part in (repr(training.algorithm), repr(training.augment), str(training.config.seed), repr(flat.shapes)):
        digest.update(part.encode() + b"\0")
    for array in (people.offsets, people.user_ids, people.image_indices, *people.labels.nonzero()):
        digest.update(array.tobytes())
    return digest.hexdigest()
