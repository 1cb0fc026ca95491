"""Training: rounds, evaluation, events and checkpoints, so that a run stopped anywhere goes on as if it had not."""

from __future__ import annotations

import copy
import hashlib
import json
import math
import secrets
import sys
import time
from contextlib import ExitStack, closing, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from manyeyes.algorithm import Algorithm, Diverged, Engine, Report, State, plan_round, play_round, start
from manyeyes.chance import key
from manyeyes.data.augment import Augment
from manyeyes.engine.choice import Means, choose_device, choose_engine
from manyeyes.engine.distributed import Distributed, Lost, World, join, world
from manyeyes.engine.evaluation import Evaluator, Score
from manyeyes.engine.lanes import Lanes
from manyeyes.engine.prefetch import PlanAhead, Prefetch, needs_reading
from manyeyes.engine.ranks import Ranks
from manyeyes.engine.resident import settle
from manyeyes.files import write_text
from manyeyes.models import build
from manyeyes.models.dropout import with_seeded_dropout
from manyeyes.models.flat import FlatModel
from manyeyes.parts.cohort import Pooled
from manyeyes.population import Population
from manyeyes.run.adapting import adapted as adapt
from manyeyes.run.checkpoint import Checkpoint
from manyeyes.run.clients import ClientRecords
from manyeyes.run.events import TRACKERS, Event
from manyeyes.run.folder import RunFolder
from manyeyes.run.interrupt import Interrupt, Stopped
from manyeyes.run.journal import FolderJournal, Journal, MemoryJournal
from manyeyes.run.progress import watch
from manyeyes.run.result import Result, headline, results, write_tables
from manyeyes.run.tensors import write_tensors


@dataclass(frozen=True)
class Settings:
    """How a run goes, apart from what it trains."""

    rounds: int = 100
    seed: int = 0
    evaluate_every: int = 10  # rounds between evaluations; 0: only the first and the last
    evaluate_on: str = "test"  # the split that is evaluated
    checkpoint_seconds: float = 60.0  # at most so much work is lost by a crash
    engine: str = "auto"
    device: str = "auto"
    precision: str = "auto"  # float32, tf32 or bf16; auto: float32, on a GPU with the products of TF32
    compile: bool = True  # steps, on a GPU
    workers: int = 0  # processes on a CPU; 0: one a core
    lanes: int = 0  # clients that train at the same time on a GPU; 0: the number that is best
    resident: str = "auto"  # where images are kept: device, host, or auto: on a GPU where they fit
    prefetch: int = 1024  # MiB of a store's images that are read for the next round while one trains
    client_memory: int = 1024  # MiB of what clients keep that stay in memory; the rest is in the run's folder
    trackers: tuple[str, ...] = ()
    progress: bool | None = None  # None: if somebody looks
    title: str = "training"

    def __post_init__(self) -> None:
        for name, least in (
            ("rounds", 1),
            ("evaluate_every", 0),
            ("checkpoint_seconds", 0),
            ("seed", 0),
            ("prefetch", 0),
            ("client_memory", 0),
        ):
            if not getattr(self, name) >= least:  # not a number is not enough either
                raise ValueError(f"{name} is {getattr(self, name)}: it must be at least {least}")
        for tracker in self.trackers:
            if tracker not in TRACKERS:
                raise ValueError(f"tracker {tracker!r} is unknown: choose {', '.join(TRACKERS)}")


@dataclass(frozen=True, eq=False)
class Training:
    """All that a run works with, and nothing that changes in it."""

    algorithm: Algorithm
    population: Population  # what is trained on
    engine: Engine
    evaluator: Evaluator | None
    augment: Augment
    settings: Settings
    here: World
    ahead: Prefetch | PlanAhead | None = None  # who plans rounds before they are played


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
    if isinstance(algorithm.cohort, Pooled):
        trained_on = trained_on.pooled()
    algorithm.check(trained_on)
    if algorithm.adapt and tested_on is not None and not np.isin(trained_on.users, tested_on.users).any():
        raise ValueError(
            "fine-tuning needs users with a part to train on and one to be tested on, and here none has both: "
            "split the data within users"
        )
    algorithm, how = _private(algorithm, trained_on, how)
    augment.check(*trained_on.image_shape[:2])
    device = choose_device(how.device)
    module = _module(model, trained_on, augment, how.seed).to(device)
    flat = FlatModel(with_seeded_dropout(module))
    if algorithm.privacy is not None and flat.size > flat.trained:
        raise ValueError(
            "noise would make BatchNorm's statistics useless: use group or frozen_batch norms to be private"
        )
    held, *tested = settle([trained_on] if tested_on is None else [trained_on, tested_on], how.resident, device)
    planner = partial(plan_round, algorithm, trained_on, how.seed, dice=augment.dice)
    ahead: Prefetch | PlanAhead | None = None
    if how.prefetch and needs_reading(held.images):
        ahead = Prefetch(held, planner, how.rounds, how.prefetch * 2**20)
        held = replace(held, images=ahead)
    means = Means(how.precision, how.compile, how.workers, how.lanes)
    expected = getattr(algorithm.cohort, "clients", len(trained_on.users))
    here = world()
    name = "reference" if how.engine == "auto" and here.size > 1 and device.type == "cpu" else how.engine
    engine = choose_engine(name, flat, held, augment, device, means, expected)
    if isinstance(engine, Lanes) and ahead is None:
        ahead = PlanAhead(planner, how.rounds, engine.ahead)
        engine.meanwhile = ahead.prepare
    if algorithm.personal is not None:
        engine.personal(algorithm.personal)  # which refuses patterns that match no layer, before anything is written
    evaluator = None
    if tested:
        precision, compile = (engine.precision, engine.compile) if isinstance(engine, Lanes) else ("float32", False)
        evaluator = Evaluator(flat, tested[0], augment, device, precision, compile, here=here)
    spread = Distributed(engine, here) if here.size > 1 else engine
    training = Training(algorithm, trained_on, spread, evaluator, augment, how, here, ahead)
    fingerprint = _fingerprint(training, flat)

    with ExitStack() as stack:
        join(device)
        if isinstance(engine, Ranks):
            stack.enter_context(engine)
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
                place.begin()
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
            state, score, adapted = _rounds(training, journal, state, clients)
        except Lost as error:
            saved = f"; the run is saved: continue it with resume={journal.path}" if journal.path else ""
            raise Lost(f"{error}{saved}") from None
        except Diverged as error:
            where = f" (its last good checkpoint is in {journal.path})" if journal.path else ""
            raise Diverged(
                f"the run has diverged{where}, {error}: try a lower learning rate, or clip gradients"
            ) from None

        FlatModel(module).write(state.weights)
        if writes:
            tensors = {name: tensor.contiguous() for name, tensor in module.state_dict().items()}
            write_tensors(place.model, tensors)
            if algorithm.privacy is not None:
                spent = {"epsilon": algorithm.privacy.spent(state.round, state.privacy), "rounds": state.round}
                about_privacy = {"promise": algorithm.privacy.words(), **spent, "part": repr(algorithm.privacy)}
                write_text(place.path / "privacy.json", json.dumps(about_privacy, indent=1) + "\n")
            if score is not None and tested_on is not None:
                write_tables(place.path, score, tested_on, adapted)
        return Result(module, journal.events, score, journal.path, adapted)


def _rounds(
    training: Training, journal: Journal, state: State, clients: ClientRecords
) -> tuple[State, Score | None, Score | None]:
    """Play the rounds that are left."""
    how, (score, adapted) = training.settings, _evaluate(training, state, clients)
    metric = headline(score)
    if not journal.events:
        journal.write({"round": 0} | _results(training, score, adapted))
        journal.save(state, clients)
    saved = time.monotonic()
    here, private = training.here, training.algorithm.privacy is not None
    interrupt = Interrupt() if journal.path or here.size > 1 else nullcontext()
    with (
        watch(how.title, state.round, how.rounds, how.progress if here.rank == 0 else False) as bar,
        interrupt as asked,
        training.ahead if isinstance(training.ahead, Prefetch) else nullcontext(),
    ):
        while state.round < how.rounds:
            began = time.perf_counter()
            try:
                plan = training.ahead.plan(state.round) if training.ahead else None
                noise = here.everyones(secrets.randbits(128))[0] if private else None
                state, report = play_round(
                    training.algorithm, state, training.population, training.engine, clients, how.seed, plan, noise
                )
            except (Diverged, Lost):
                journal.save(state, clients)
                raise
            seconds = time.perf_counter() - began
            event = _event(report, seconds)
            last = state.round == how.rounds
            if last or (how.evaluate_every and state.round % how.evaluate_every == 0):
                score, adapted = _evaluate(training, state, clients)
                event |= _results(training, score, adapted)
                metric = headline(score)
            journal.write(event)
            if report.epsilon is not None:
                metric = f"{headline(score)}  epsilon {report.epsilon:.2f}"
            for name in report.left_out if here.rank == 0 else ():
                print(
                    f"round {report.round}: the update of user {name} was not finite and is left out", file=sys.stderr
                )
            bar.advance(state.round, report.loss, metric, report.images / seconds)
            stop = here.agree(asked is not None and asked.asked)
            if last or stop or time.monotonic() - saved >= how.checkpoint_seconds:
                journal.save(state, clients)
                saved = time.monotonic()
            if stop and not last:
                raise Stopped(f"Stopped after round {state.round} of {how.rounds}; the run is saved.")
    return state, score, adapted


def _evaluate(training: Training, state: State, clients: ClientRecords) -> tuple[Score | None, Score | None]:
    """With the shared model and the clients' own layers, and with the models that the clients have made their own."""
    algorithm, evaluator, engine = training.algorithm, training.evaluator, training.engine
    if evaluator is None:
        return None, None
    if algorithm.personal is None or not clients:
        score = evaluator.shared(state.weights)
    else:
        score = evaluator.personal(state.weights, engine.personal(algorithm.personal), clients)
    if algorithm.adapt is None and algorithm.beside is None:
        return score, None
    return score, adapt(algorithm, state, training.population, engine, evaluator, clients, training.settings.seed)


def _private(algorithm: Algorithm, population: Population, how: Settings) -> tuple[Algorithm, Settings]:
    """The algorithm with its privacy settled for this run, which has no more rounds than the budget allows."""
    if algorithm.privacy is None:
        return algorithm, how
    privacy = algorithm.privacy.settled(algorithm, population, how.rounds)
    rounds = privacy.affordable(how.rounds)
    if not rounds:
        raise ValueError("one round would already spend more than the privacy budget: raise epsilon or noise")
    if rounds < how.rounds:
        print(f"the privacy budget allows {rounds} of {how.rounds} rounds: the run ends there", file=sys.stderr)
    return replace(algorithm, privacy=privacy), replace(how, rounds=rounds)


def _event(report: Report, seconds: float) -> Event:
    learned = {"train_loss": report.loss, "update_norm": report.norm}
    event: Event = {
        "round": report.round,
        **{name: value for name, value in learned.items() if not math.isnan(value)},  # chance may have chosen nobody
        **({} if report.epsilon is None else {"epsilon": report.epsilon, "clip": report.clip}),
        "clients": report.clients,
        "images": report.images,
        "batches": report.batches,
        "seconds": round(seconds, 4),
    }
    return event | ({"left_out": list(report.left_out)} if report.left_out else {})


def _results(training: Training, score: Score | None, adapted: Score | None) -> dict[str, float]:
    """All metrics and, where users have a part to train on and one to be tested on, how many are too small for both."""
    found = results(score, adapted)
    if training.evaluator is not None:
        trained, tested = training.population.users, training.evaluator.population.users
        untested = len(np.setdiff1d(trained, tested))
        found |= {"user_untested": float(untested)} if untested < len(trained) else {}
    return found


def _parts(population: Population, test: Population | None, split: str) -> tuple[Population, Population | None]:
    """What is trained on, and what is evaluated."""
    if test is not None or "split" not in population.columns:
        return population, test
    return population.split("train"), population.split(split)


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
