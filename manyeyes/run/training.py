"""Training: all that a run needs is put together, then played from its start or its checkpoint, and kept."""

from __future__ import annotations

import copy
import hashlib
import json
import sys
from contextlib import ExitStack, closing, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from manyeyes.algorithm import Algorithm, Diverged
from manyeyes.chance import generator, key
from manyeyes.data.augment import Augment
from manyeyes.engine.choice import Means, choose_device, choose_engine
from manyeyes.engine.distributed import Distributed, Lost, join, world
from manyeyes.engine.evaluation import Evaluator
from manyeyes.engine.lanes import Lanes
from manyeyes.engine.memory import kept_memory
from manyeyes.engine.prefetch import PlanAhead, Prefetch, needs_reading
from manyeyes.engine.ranks import Ranks
from manyeyes.engine.reference import Reference
from manyeyes.engine.resident import settle
from manyeyes.files import write_text
from manyeyes.models import build
from manyeyes.models.dropout import with_seeded_dropout
from manyeyes.models.fitting import check_fits
from manyeyes.models.flat import FlatModel
from manyeyes.models.habits import habits
from manyeyes.parts.cohort import Pooled
from manyeyes.parts.local import SGD, Adam
from manyeyes.population import Population
from manyeyes.round import plan_round, start
from manyeyes.run.census import write_census
from manyeyes.run.checkpoint import Checkpoint
from manyeyes.run.clients import ClientRecords
from manyeyes.run.folder import RunFolder
from manyeyes.run.journal import FolderJournal, Journal, MemoryJournal
from manyeyes.run.playing import Training, play
from manyeyes.run.result import Result, write_tables
from manyeyes.run.settings import Settings
from manyeyes.run.tensors import write_tensors


def train(
    population: Population,
    model: nn.Module | str,
    algorithm: Algorithm,
    *,
    test: Population | None = None,
    augment: Augment | None = None,
    folder: str | Path | None = None,
    resume: bool = False,
    about: dict[str, Any] | None = None,
    **settings: Any,
) -> Result:
    """Train `model` (a name, or a module, which is not changed) on `population`; returns curves and the trained model.

    The train split is trained on and the `evaluate_on` split evaluated, unless `test` gives a population for that.
    With a `folder`, everything is kept there and `resume` continues what it holds; `about` describes the run there.
    `settings` are the fields of `Settings`.
    """
    how = Settings(**settings)
    augment = augment or Augment()
    trained_on, tested_on = _parts(population, test, how.evaluate_on)
    counted = {"train": trained_on, how.evaluate_on: tested_on}
    if isinstance(algorithm.cohort, Pooled):
        trained_on = trained_on.pooled()
    algorithm.check(trained_on)
    if algorithm.adapt and tested_on is not None and not np.isin(trained_on.users, tested_on.users).any():
        raise ValueError(
            "fine-tuning needs users with a part to train on and one to be tested on, and here none has both: "
            "split the data within users"
        )
    algorithm, how = within_budget(algorithm, trained_on, how)
    augment.check(*trained_on.image_shape[:2])
    device = choose_device(how.device)
    module = _module(model, trained_on, augment, how.seed).to(device)
    shape = augment.shape(*trained_on.image_shape[:2])
    check_fits(module, *shape, len(trained_on.classes), evaluated=tested_on is not None)
    flat = FlatModel(with_seeded_dropout(module))
    found = habits(flat, *shape)
    if found.moves:
        raise ValueError(
            f"the model changes its buffer {found.moves} when it trains, and of buffers only the statistics of norms "
            "go with a client: leave out the layer that it belongs to"
        )
    if not found.alone:
        _check_batches(algorithm, trained_on, tested_on, *shape)
    chosen_on = _chosen_on(population, algorithm, how)
    held, *tested = settle([p for p in (trained_on, tested_on, chosen_on) if p is not None], how.resident, device)
    planner = partial(plan_round, algorithm, trained_on, how.seed, dice=augment.dice)
    ahead: Prefetch | PlanAhead | None = None
    if how.prefetch and needs_reading(held.images):
        ahead = Prefetch(held, planner, how.rounds, how.prefetch * 2**20)
        held = replace(held, images=ahead)
    apart = algorithm.compress is not None or algorithm.aggregate is not None
    sent = (algorithm.local, algorithm.correct, algorithm.compress, algorithm.beside)
    here = world()
    means = Means(how.precision, how.compile, how.workers, how.lanes, apart, sent, here.size)
    expected = getattr(algorithm.cohort, "clients", len(trained_on.users))
    engine = choose_engine(how.engine, flat, held, augment, device, means, expected)
    _check_side_by_side(algorithm, engine)
    spread = Distributed(engine, here, flat) if here.size > 1 else None
    if isinstance(engine, Lanes) and ahead is None:
        ahead = PlanAhead(planner, how.rounds, lambda plan: engine.ahead(spread.part(plan) if spread else plan))
        engine.meanwhile = ahead.prepare
    if algorithm.personal is not None:
        engine.personal(algorithm.personal)  # which refuses patterns that match no layer, before anything is written
    compile = isinstance(engine, Lanes) and engine.compile
    evaluators = [Evaluator(flat, part, augment, device, engine.precision, compile, here=here) for part in tested]
    evaluator, chooser = (*evaluators, None, None)[:2]
    training = Training(algorithm, trained_on, spread or engine, evaluator, augment, how, here, ahead, chooser)
    with engine if isinstance(engine, Ranks) else nullcontext():
        return carry_out(training, module, flat, device, folder=folder, resume=resume, about=about, counted=counted)


def carry_out(
    training: Training,
    module: nn.Module,
    flat: FlatModel,
    device: torch.device,
    *,
    folder: str | Path | None = None,
    resume: bool = False,
    about: dict[str, Any] | None = None,
    counted: dict[str, Population | None] | None = None,
) -> Result:
    """Play a run that is put together, from its start or from its checkpoint; `flat` is a view of `module`."""
    algorithm, augment, how, here = training.algorithm, training.augment, training.settings, training.here
    check_statistics(algorithm, flat)
    fingerprint = _fingerprint(training, flat)
    with ExitStack() as stack:
        stack.enter_context(kept_memory(device))
        join(device)
        found: Checkpoint | None = None
        journal: Journal = MemoryJournal()
        writes = folder is not None and here.rank == 0
        if folder is not None and resume and not writes:
            found = RunFolder(Path(folder)).load(device, fingerprint)
        if folder is not None and writes:
            place = stack.enter_context(RunFolder(Path(folder)))
            if resume:
                found = place.load(device, fingerprint)
            else:
                place.begin({"engine": type(training.engine).__name__.lower(), "device": str(device)})
                if counted is not None:
                    write_census(place.path, counted)
            place.diverged.unlink(missing_ok=True)
            place.describe(about or {"algorithm": repr(algorithm), "augment": repr(augment), "settings": repr(how)})
            journal = stack.enter_context(closing(FolderJournal(place, how.trackers, fingerprint, found)))
        state = found.state if found else start(algorithm, flat.read(), flat.trained)
        kept = RunFolder(Path(folder)).clients if folder is not None else None
        memory = how.client_memory * 2**20
        if found is not None and kept is not None:
            clients = ClientRecords.open(kept, found.clients, device, memory, writes)
        else:
            clients = ClientRecords(kept if writes else None, device, memory)
        stack.enter_context(closing(clients))
        try:
            state, score, adapted = play(training, journal, state, clients)
        except Lost as error:
            saved = f"; the run is saved: continue it with resume={journal.path}" if journal.path else ""
            raise Lost(f"{error}{saved}") from None
        except Diverged as error:
            where = f" (its last good checkpoint is in {journal.path})" if journal.path else ""
            sentence = f"the run has diverged{where}, {error}: try a lower learning rate, or clip gradients"
            if writes:
                write_text(place.diverged, sentence + "\n")
            raise Diverged(sentence) from None

        FlatModel(module).write(state.weights)
        if writes:
            tensors = {name: tensor.contiguous() for name, tensor in module.state_dict().items()}
            write_tensors(place.model, tensors)
            if algorithm.privacy is not None:
                spent = {"epsilon": algorithm.privacy.spent(state.round, state.privacy), "rounds": state.round}
                about_privacy = {"promise": algorithm.privacy.words(), **spent, "part": repr(algorithm.privacy)}
                write_text(place.path / "privacy.json", json.dumps(about_privacy, indent=1) + "\n")
            if score is not None and training.evaluator is not None:
                write_tables(place.path, score, training.evaluator.population, adapted)
        return Result(module, journal.events, score, journal.path, adapted)


def within_budget(algorithm: Algorithm, population: Population, how: Settings) -> tuple[Algorithm, Settings]:
    """The algorithm with its privacy settled for this run, which has no more rounds than the budget allows."""
    algorithm, rounds = settle_privacy(algorithm, population, how.rounds)
    if rounds < how.rounds:
        print(f"the privacy budget allows {rounds} of {how.rounds} rounds: the run ends there", file=sys.stderr)
    return algorithm, replace(how, rounds=rounds)


def settle_privacy(algorithm: Algorithm, population: Population, rounds: int) -> tuple[Algorithm, int]:
    """The algorithm with the noise that so many rounds need, and how many of them the budget allows."""
    if algorithm.privacy is None:
        return algorithm, rounds
    privacy = algorithm.privacy.settled(algorithm, population, rounds)
    allowed = privacy.affordable(rounds)
    if not allowed:
        raise ValueError("one round would already spend more than the privacy budget: raise epsilon or noise")
    if allowed < rounds:
        privacy = privacy.settled(algorithm, population, allowed)  # the promise is about the rounds that are played
    return replace(algorithm, privacy=privacy), allowed


def check_statistics(algorithm: Algorithm, flat: FlatModel) -> None:
    """Refuse statistics that would be noisy; those that stay with clients (FedBN) are not."""
    if algorithm.privacy is None:
        return
    own = algorithm.personal.names(flat.module) if algorithm.personal is not None else set()
    if not bool(flat.mask(own.__contains__)[flat.trained :].all()):
        raise ValueError(
            "noise would make BatchNorm's statistics useless: use group or frozen_batch norms to be private"
        )


def _parts(population: Population, test: Population | None, split: str) -> tuple[Population, Population | None]:
    """What is trained on, and what is evaluated."""
    if test is not None or "split" not in population.columns:
        return population, test
    return population.split("train"), population.split(split)


def _chosen_on(population: Population, algorithm: Algorithm, how: Settings) -> Population | None:
    """The split that says which model is the best."""
    if not how.best_on:
        return None
    if algorithm.personal is not None or algorithm.beside is not None or algorithm.adapt is not None:
        raise ValueError("best_on chooses among shared models, and here clients have their own: leave it empty")
    if "split" not in population.columns or how.best_on == how.evaluate_on:
        raise ValueError(f"best_on is {how.best_on!r}: give a split of the data that is not the one evaluated")
    return population.split(how.best_on)


def _check_batches(
    algorithm: Algorithm, population: Population, tested: Population | None, height: int, width: int
) -> None:
    """Refuse a batch of one photo, before it comes up."""
    drawn = [(algorithm.draw, population.sizes)]
    if algorithm.adapt is not None and tested is not None:
        drawn.append((algorithm.adapt.task(algorithm).draw, population.sizes[np.isin(population.users, tested.users)]))
    for draw, sizes in drawn:
        for held in np.unique(sizes).tolist():
            if ((draw.rows(held, generator(0, "draw")) >= 0).sum(1) == 1).any():
                raise ValueError(
                    f"live BatchNorm cannot learn from a batch of one photo of {height} x {width} pixels, and a user "
                    f"who holds {held} has one: choose another algorithm.batch, larger images, or model.norm=group"
                )


def _check_side_by_side(algorithm: Algorithm, engine: Reference | Ranks | Lanes) -> None:
    """Refuse a local optimizer that is given several clients at once, if it may mix them and that is to be private."""
    together = isinstance(engine, Lanes) and engine.width > 1
    if algorithm.privacy is not None and together and type(algorithm.local) not in (SGD, Adam):
        raise ValueError(
            f"engine=vector steps several clients at once, and privacy has no guarantee that "
            f"local={type(algorithm.local).__name__} keeps them apart: use engine=lanes or reference"
        )


def _module(model: nn.Module | str, population: Population, augment: Augment, seed: int) -> nn.Module:
    if isinstance(model, nn.Module):
        return copy.deepcopy(model)
    size = augment.crop or population.image_shape[0]
    return build(model, len(population.classes), size=size, seed=key(seed, "weights") % 2**63)


def _fingerprint(training: Training, flat: FlatModel) -> str:
    """A name for what is trained, so that a run is only continued by itself."""
    people = training.population
    digest = hashlib.blake2b(digest_size=16)
    for part in (repr(training.algorithm), repr(training.augment), str(training.settings.seed), repr(flat.shapes)):
        digest.update(part.encode() + b"\0")
    for array in (people.offsets, people.users, people.rows, *people.labels.entries()):
        digest.update(array.tobytes())
    return digest.hexdigest()
