"""The rounds of a run: play, evaluate, tell, and save, from wherever it stands."""

from __future__ import annotations

import math
import secrets
import sys
import time
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from manyeyes.algorithm import Algorithm, Diverged, Report, State
from manyeyes.data.augment import Augment
from manyeyes.engine.distributed import Lost, World
from manyeyes.engine.evaluation import Evaluator, Judge, Score
from manyeyes.engine.prefetch import Prefetch
from manyeyes.parts.cohort import Pooled
from manyeyes.population import Population
from manyeyes.round import play_round
from manyeyes.run.adapting import adapted as adapt
from manyeyes.run.best import LOSS, Best, loss
from manyeyes.run.clients import ClientRecords
from manyeyes.run.events import Event
from manyeyes.run.interrupt import Interrupt, Stopped
from manyeyes.run.journal import Journal
from manyeyes.run.progress import watch
from manyeyes.run.result import headline, results
from manyeyes.run.settings import Settings
from manyeyes.work import Engine, Plan


class Planner(Protocol):
    """Who decides what a round is."""

    def plan(self, round: int) -> Plan: ...


@dataclass(frozen=True, eq=False)
class Training:
    """All that a run works with, and nothing that changes in it."""

    algorithm: Algorithm
    population: Population  # what is trained on
    engine: Engine
    evaluator: Judge | None
    augment: Augment
    settings: Settings
    here: World
    ahead: Planner | None = None  # who plans rounds before they are played
    chooser: Evaluator | None = None  # of the split that says which model is the best


def play(
    training: Training, journal: Journal, state: State, clients: ClientRecords
) -> tuple[State, Score | None, Score | None]:
    """Play the rounds that are left."""
    how, best = training.settings, _best(training, journal, state)
    over = best is not None and state.round >= how.rounds
    score, adapted = _evaluate(training, replace(state, weights=best.weights) if best and over else state, clients)
    metric = headline(score)
    spent = training.here.everyones(sum(event.get("batches", 0) for event in journal.events))[0]
    if not journal.events:
        journal.write({"round": 0} | _results(training, score, adapted) | _offer(training, best, state))
        _save(journal, state, clients, best)
    saved = time.monotonic()
    here, private = training.here, training.algorithm.privacy is not None
    interrupt = Interrupt() if journal.path or here.size > 1 else nullcontext()
    with (
        watch(how.title, state.round, how.rounds, how.progress if here.rank == 0 else False) as bar,
        interrupt as asked,
        training.ahead if isinstance(training.ahead, Prefetch) else nullcontext(),
    ):
        while state.round < how.rounds and not (how.batches and spent >= how.batches):
            began = time.perf_counter()
            try:
                plan = training.ahead.plan(state.round) if training.ahead else None
                noise = here.everyones(secrets.randbits(128))[0] if private else None
                state, report = play_round(
                    training.algorithm, state, training.population, training.engine, clients, how.seed, plan, noise
                )
            except (Diverged, Lost):
                _save(journal, state, clients, best)
                raise
            seconds = time.perf_counter() - began
            event = _event(report, seconds)
            if isinstance(training.algorithm.cohort, Pooled):  # where nothing is sent
                event = {name: value for name, value in event.items() if not name.startswith("bytes_")}
            spent += report.batches
            last = state.round == how.rounds or 0 < how.batches <= spent
            if last or how.evaluates(state.round):
                chosen = _offer(training, best, state)
                tested = replace(state, weights=best.weights) if best and last else state
                score, adapted = _evaluate(training, tested, clients)
                event |= _results(training, score, adapted) | chosen
                event |= {"best_round": best.round} if best and last else {}
                metric = headline(score)
            journal.write(event)
            if report.epsilon is not None:
                metric = f"{headline(score)}  epsilon {report.epsilon:.2f}"
            for name in report.left_out if here.rank == 0 else ():
                what = report.why.get(name, f"the update of user {name} was not finite and is left out")
                print(f"round {report.round}: {what}", file=sys.stderr)
            bar.advance(state.round, report.loss, metric, report.images / seconds)
            stop = here.agree(asked is not None and asked.asked)
            if last or stop or time.monotonic() - saved >= how.checkpoint_seconds:
                _save(journal, state, clients, best)
                saved = time.monotonic()
            if stop and not last:
                raise Stopped(f"Stopped after round {state.round} of {how.rounds}; the run is saved.")
    return (replace(state, weights=best.weights) if best else state), score, adapted


def _best(training: Training, journal: Journal, state: State) -> Best | None:
    """The best model so far, the same on every process."""
    if training.chooser is None:
        return None
    best = Best(journal.path, journal.events, state.weights.device)
    if training.here.size > 1:
        best.loss, best.round, weights = training.here.everyones((best.loss, best.round, best.weights.cpu()))[0]
        best.weights = weights.to(state.weights.device)
    return best


def _offer(training: Training, best: Best | None, state: State) -> dict[str, float]:
    """The loss on the split that chooses, for an event; the model is kept if no other had a lower one."""
    if best is None or training.chooser is None:
        return {}
    found = loss(training.chooser.shared(state.weights))
    best.offer(state.round, found, state.weights)
    return {LOSS: found}


def _save(journal: Journal, state: State, clients: ClientRecords, best: Best | None) -> None:
    if best is not None:
        best.save()
    journal.save(state, clients)
    if best is not None:
        best.settle()


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


def _event(report: Report, seconds: float) -> Event:
    learned = {"train_loss": report.loss, "update_norm": report.norm}
    event: Event = {
        "round": report.round,
        **{name: value for name, value in learned.items() if not math.isnan(value)},  # chance may have chosen nobody
        **({} if report.epsilon is None else {"epsilon": report.epsilon, "clip": report.clip}),
        "clients": report.clients,
        "images": report.images,
        "batches": report.batches,
        "bytes_up": report.bytes_up,
        "bytes_down": report.bytes_down,
        "seconds": round(seconds, 4),
    }
    event |= {"left_out": list(report.left_out)} if report.left_out else {}
    return event | ({"why": dict(report.why)} if report.why else {})


def _results(training: Training, score: Score | None, adapted: Score | None) -> dict[str, float]:
    """All metrics and, where users have a part to train on and one to be tested on, how many are too small for both."""
    found = results(score, adapted)
    if training.evaluator is not None:
        trained, tested = training.population.users, training.evaluator.population.users
        untested = len(np.setdiff1d(trained, tested))
        found |= {"user_untested": float(untested)} if untested < len(trained) else {}
    return found
