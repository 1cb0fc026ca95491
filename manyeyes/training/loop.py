"""The rounds of a run: play, evaluate, tell, and save, from wherever it stands."""

from __future__ import annotations

import math
import secrets
import sys
import time
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from manyeyes.components.samplers import Centralized
from manyeyes.core.algorithm import Algorithm
from manyeyes.core.engine import Engine
from manyeyes.core.plan import RoundPlan
from manyeyes.core.population import Population
from manyeyes.core.round import run_round
from manyeyes.core.state import DivergenceError, RoundMetrics, ServerState
from manyeyes.data.preprocess import Preprocess
from manyeyes.engines.distributed import DistInfo, PeerLostError
from manyeyes.engines.evaluation import Evaluator, LocalEvaluator, Score
from manyeyes.training.client_state import ClientStateStore
from manyeyes.training.config import RunConfig
from manyeyes.training.events import Event
from manyeyes.training.interrupt import Interrupt, Interrupted
from manyeyes.training.model_selection import LOSS, BestModel, loss
from manyeyes.training.personalized_evaluation import evaluate_personalized as adapt
from manyeyes.training.progress import progress_bar
from manyeyes.training.recorder import Recorder
from manyeyes.training.result import headline, results


class PlanSource(Protocol):
    """Who decides what a round is."""

    def plan(self, round: int) -> RoundPlan: ...


@dataclass(frozen=True, eq=False)
class TrainingSetup:
    """All that a run works with, and nothing that changes in it."""

    algorithm: Algorithm
    population: Population  # what is trained on
    engine: Engine
    evaluator: Evaluator | None
    augment: Preprocess
    config: RunConfig
    dist: DistInfo
    prefetcher: PlanSource | None = None  # who plans rounds before they are played
    validation_evaluator: LocalEvaluator | None = None  # of the split that says which model is the best


def train_rounds(
    training: TrainingSetup, journal: Recorder, state: ServerState, clients: ClientStateStore
) -> tuple[ServerState, Score | None, Score | None]:
    """Play the rounds that are left."""
    how, best = training.config, _best(training, journal, state)
    over = best is not None and state.round >= how.rounds
    score, adapted = _evaluate(training, replace(state, weights=best.weights) if best and over else state, clients)
    metric = headline(score)
    spent = training.dist.all_gather(sum(event.get("batches", 0) for event in journal.events))[0]
    if not journal.events:
        journal.write({"round": 0} | _results(training, score, adapted) | _offer(training, best, state))
        _save(journal, state, clients, best)
    saved = time.monotonic()
    here, private = training.dist, training.algorithm.privacy is not None
    interrupt = Interrupt() if journal.path or here.size > 1 else nullcontext()
    with (
        progress_bar(how.title, state.round, how.rounds, how.progress if here.rank == 0 else False) as bar,
        interrupt as asked,
        training.prefetcher if isinstance(training.prefetcher, AbstractContextManager) else nullcontext(),
    ):
        while state.round < how.rounds and not (how.max_local_batches and spent >= how.max_local_batches):
            began = time.perf_counter()
            try:
                plan = training.prefetcher.plan(state.round) if training.prefetcher else None
                noise = here.all_gather(secrets.randbits(128))[0] if private else None
                state, report = run_round(
                    training.algorithm, state, training.population, training.engine, clients, how.seed, plan, noise
                )
            except (DivergenceError, PeerLostError):
                _save(journal, state, clients, best)
                raise
            seconds = time.perf_counter() - began
            event = _event(report, seconds)
            if isinstance(training.algorithm.sampler, Centralized):  # where nothing is sent
                event = {name: value for name, value in event.items() if not name.startswith("bytes_")}
            spent += report.max_client_batches
            last = state.round == how.rounds or 0 < how.max_local_batches <= spent
            if last or how.evaluates_after(state.round):
                chosen = _offer(training, best, state)
                tested = replace(state, weights=best.weights) if best and last else state
                score, adapted = _evaluate(training, tested, clients)
                event |= _results(training, score, adapted) | chosen
                event |= {"best_round": best.round} if best and last else {}
                metric = headline(score)
            journal.write(event)
            if report.epsilon is not None:
                metric = f"{headline(score)}  epsilon {report.epsilon:.2f}"
            for name in report.rejected_clients if here.rank == 0 else ():
                what = report.rejection_reasons.get(name, f"the update of user {name} was not finite and is left out")
                print(f"round {report.round}: {what}", file=sys.stderr)
            bar.advance(state.round, report.train_loss, metric, report.num_images / seconds)
            stop = here.any(asked is not None and asked.asked)
            if last or stop or time.monotonic() - saved >= how.checkpoint_seconds:
                _save(journal, state, clients, best)
                saved = time.monotonic()
            if stop and not last:
                raise Interrupted(f"Stopped after round {state.round} of {how.rounds}; the run is saved.")
    return (replace(state, weights=best.weights) if best else state), score, adapted


def _best(training: TrainingSetup, journal: Recorder, state: ServerState) -> BestModel | None:
    """The best model so far, the same on every process."""
    if training.validation_evaluator is None:
        return None
    best = BestModel(journal.path, journal.events, state.weights.device)
    if training.dist.size > 1:
        best.loss, best.round, weights = training.dist.all_gather((best.loss, best.round, best.weights.cpu()))[0]
        best.weights = weights.to(state.weights.device)
    return best


def _offer(training: TrainingSetup, best: BestModel | None, state: ServerState) -> dict[str, float]:
    """The loss on the split that chooses, for an event; the model is kept if no other had a lower one."""
    if best is None or training.validation_evaluator is None:
        return {}
    found = loss(training.validation_evaluator.evaluate_global(state.weights))
    best.update(state.round, found, state.weights)
    return {LOSS: found}


def _save(journal: Recorder, state: ServerState, clients: ClientStateStore, best: BestModel | None) -> None:
    if best is not None:
        best.save()
    journal.save(state, clients)
    if best is not None:
        best.prune()


def _evaluate(
    training: TrainingSetup, state: ServerState, clients: ClientStateStore
) -> tuple[Score | None, Score | None]:
    """With the shared model and the clients' own layers, and with the models that the clients have made their own."""
    algorithm, evaluator, engine = training.algorithm, training.evaluator, training.engine
    if evaluator is None:
        return None, None
    if algorithm.personal_layers is None or not clients:
        score = evaluator.evaluate_global(state.weights)
    else:
        score = evaluator.evaluate_personal_layers(
            state.weights, engine.personal_mask(algorithm.personal_layers), clients
        )
    if algorithm.adaptation is None and algorithm.personal_model is None:
        return score, None
    return score, adapt(algorithm, state, training.population, engine, evaluator, clients, training.config.seed)


def _event(report: RoundMetrics, seconds: float) -> Event:
    learned = {"train_loss": report.train_loss, "update_norm": report.update_norm}
    event: Event = {
        "round": report.round,
        **{name: value for name, value in learned.items() if not math.isnan(value)},  # chance may have chosen nobody
        **({} if report.epsilon is None else {"epsilon": report.epsilon, "clip": report.clipping_norm}),
        "clients": report.num_clients,
        "images": report.num_images,
        "batches": report.max_client_batches,
        "bytes_up": report.bytes_up,
        "bytes_down": report.bytes_down,
        "seconds": round(seconds, 4),
    }
    event |= {"left_out": list(report.rejected_clients)} if report.rejected_clients else {}
    return event | ({"why": dict(report.rejection_reasons)} if report.rejection_reasons else {})


def _results(training: TrainingSetup, score: Score | None, adapted: Score | None) -> dict[str, float]:
    """All metrics and, where users have a part to train on and one to be tested on, how many are too small for both."""
    found = results(score, adapted)
    if training.evaluator is not None:
        trained, tested = training.population.user_ids, training.evaluator.population.user_ids
        untested = len(np.setdiff1d(trained, tested))
        found |= {"user_untested": float(untested)} if untested < len(trained) else {}
    return found
