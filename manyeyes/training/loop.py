"""The training loop: train, evaluate, record and save, from wherever the run is."""

from __future__ import annotations

import os
import secrets
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import replace
from types import FrameType
from typing import Any

import numpy as np

from manyeyes.components.samplers import Centralized
from manyeyes.core.round import run_round
from manyeyes.core.state import DivergenceError, RoundMetrics, ServerState, init_state
from manyeyes.engines.distributed.process_group import PeerLostError
from manyeyes.io.steps import announce, format_seconds
from manyeyes.metrics import Scores
from manyeyes.training.callbacks import CallbackList, TrainingRun
from manyeyes.training.checkpoint import Checkpoint
from manyeyes.training.client_state import ClientStateStore
from manyeyes.training.run_files import Event
from manyeyes.training.run_folder import Recorder
from manyeyes.training.scoring import score_models, scored_models
from manyeyes.training.setup import TrainingSetup
from manyeyes.training.withholding import public_event, public_results


def train_rounds(loop: TrainingLoop) -> None:
    """Train the rounds that are left."""
    config, source = loop.setup.config, loop.setup.plan_source
    handles_signals = loop.recorder.path is not None or loop.setup.dist.size > 1
    loop.start()
    with (
        source if isinstance(source, AbstractContextManager) else nullcontext(),
        deferred_interrupts() if handles_signals else nullcontext(lambda: False) as is_stop_requested,
    ):
        while not loop.is_complete:
            event = loop.train_round()
            if loop.is_complete or config.evaluates_after(loop.state.round):
                loop.evaluate(event)
            is_interrupted = loop.end_round(event, is_stop_requested())
            if loop.is_complete or is_interrupted or loop.is_checkpoint_due:
                loop.save()
            if is_interrupted and not loop.is_complete:
                raise Interrupted(f"Stopped after round {loop.state.round} of {config.rounds}; the run is saved.")
    loop.state = loop.kept_state


class TrainingLoop:
    """The state of a run between rounds, and the steps of the loop."""

    def __init__(
        self,
        setup: TrainingSetup,
        recorder: Recorder,
        clients: ClientStateStore,
        checkpoint: Checkpoint | None = None,
        callbacks: tuple[Any, ...] = (),
        observers: tuple[Any, ...] = (),
    ) -> None:
        """Start from the checkpoint, or else from the model of the setup."""
        self.setup, self.recorder, self.clients = setup, recorder, clients
        model = setup.model
        self.state = checkpoint.state if checkpoint else init_state(setup.algorithm, model.read(), model.num_trainable)
        self.scores, self.scored_round, self.scoring_seconds = Scores(), -1, 0.0
        self.num_batches = sum(event.get("max_client_batches", 0) for event in recorder.events)
        self.stop_reason: str | None = None
        self.saved_at = time.monotonic()
        self.callbacks = CallbackList(callbacks, observers, TrainingRun(self))
        if checkpoint:
            self.callbacks.load_state_dicts(checkpoint.callbacks)

    @property
    def is_complete(self) -> bool:
        """Whether no round is left."""
        config = self.setup.config
        is_at_batch_limit = 0 < config.max_local_batches <= self.num_batches
        return self.state.round >= config.rounds or is_at_batch_limit or self.stop_reason is not None

    @property
    def is_checkpoint_due(self) -> bool:
        return time.monotonic() - self.saved_at >= self.setup.config.checkpoint_seconds

    @property
    def kept_state(self) -> ServerState:
        """The state with the weights that are kept if the run ends now."""
        best = self.setup.best_model
        return self.state if best is None else replace(self.state, weights=best.weights)

    def start(self) -> None:
        """Evaluate the untrained model; of a finished run, the model that it kept."""
        self.callbacks.call("on_train_start")
        self._agree(False)
        if not self.recorder.events:
            event: Event = {"round": 0}
            self.evaluate(event)
            self.callbacks.add_to_event("on_round_end", event)
            self._record(event)
            self.save()
        elif self.is_complete:
            self._score({})

    def train_round(self) -> Event:
        setup, algorithm, start = self.setup, self.setup.algorithm, time.perf_counter()
        try:
            plan = setup.plan_source.plan(self.state.round) if setup.plan_source else None
            noise_seed = setup.dist.all_gather(secrets.randbits(128))[0] if algorithm.privacy is not None else None
            self.state, metrics = run_round(
                algorithm, self.state, setup.population, setup.engine, self.clients, setup.config.seed, plan, noise_seed
            )
        except (DivergenceError, PeerLostError):
            self.save()
            raise
        self.num_batches += metrics.max_client_batches
        event = make_event(metrics, time.perf_counter() - start, isinstance(algorithm.sampler, Centralized))
        return public_event(event) if setup.config.withholds_statistics(algorithm) else event

    def evaluate(self, event: Event) -> None:
        """Add the scores of the current model to an event; after the last round, those of the model that is kept."""
        self.callbacks.add_to_event("on_evaluate_start", event)
        self._score(event)
        self.callbacks.add_to_event("on_evaluate", event)

    def end_round(self, event: Event, is_interrupt_requested: bool) -> bool:
        """Record a round; return whether the run was interrupted."""
        was_complete, was_evaluated = self.is_complete, self.scored_round == self.state.round
        self.callbacks.add_to_event("on_round_end", event)
        is_interrupted = self._agree(is_interrupt_requested)
        if self.is_complete and not was_complete:  # a callback ends the run with this round
            event["stop_reason"] = self.stop_reason
            if not was_evaluated:
                self.evaluate(event)
            elif self.setup.best_model is not None:
                self._score(event)
        self._record(event)
        return is_interrupted

    def save(self) -> None:
        self.callbacks.call("on_checkpoint")
        self.recorder.save(self.state, self.clients, self.callbacks.state_dicts())
        self.saved_at = time.monotonic()

    def _record(self, event: Event) -> None:
        self.callbacks.observe(event)
        self.recorder.write(event)

    def _score(self, event: Event) -> None:
        setup = self.setup
        self.scored_round, start = self.state.round, time.monotonic()
        if setup.evaluator is not None:
            last = f"last time {format_seconds(self.scoring_seconds)}" if self.scoring_seconds >= 1 else ""
            announce(f"evaluating {scored_models(setup)}", last)
        self.scores = score_models(setup, self.kept_state if self.is_complete else self.state, self.clients)
        self.scoring_seconds = time.monotonic() - start
        results = self.scores.results() | count_users_without_test(setup)
        if setup.evaluator is not None and setup.config.withholds_statistics(setup.algorithm):
            results = public_results(results, setup.evaluator.population, setup.population)
        event |= results
        if setup.best_model is not None and self.is_complete:
            event["best_round"] = setup.best_model.round

    def _agree(self, is_interrupt_requested: bool) -> bool:
        """Take over a request to stop from any process; return whether any process was interrupted."""
        requests = [(is_interrupt_requested, self.callbacks.run.stop_reason)]
        if self.setup.dist.size > 1:
            requests = self.setup.dist.all_gather(requests[0])
        self.stop_reason = next((reason for _, reason in requests if reason is not None), None)
        return any(interrupted for interrupted, _ in requests)


def count_users_without_test(setup: TrainingSetup) -> dict[str, float]:
    """Return how many users have no test examples, if the others have some."""
    if setup.evaluator is None:
        return {}
    trained, tested = setup.population.user_ids, setup.evaluator.population.user_ids
    count = len(np.setdiff1d(trained, tested))
    return {"num_users_without_test": float(count)} if count < len(trained) else {}


def make_event(metrics: RoundMetrics, seconds: float, is_centralized: bool = False) -> Event:
    """Return what is recorded of a round: no means of no clients, and no bytes where nothing is sent."""
    rejected, reasons = list(metrics.rejected_clients), dict(metrics.rejection_reasons)
    event = vars(metrics) | {"seconds": round(seconds, 4), "rejected_clients": rejected, "rejection_reasons": reasons}
    if is_centralized:
        del event["bytes_up"], event["bytes_down"]
    return {name: value for name, value in event.items() if value not in (None, [], {}) and value == value}


SIGNALS = (signal.SIGINT, signal.SIGTERM, *([signal.SIGHUP] if hasattr(signal, "SIGHUP") else []))  # not on Windows
FIRST_SIGNAL_MESSAGE = "\nFinishing this round, then saving; press Ctrl-C again to stop at once.\n"


def is_ignored_hangup(number: signal.Signals) -> bool:
    """Return whether this is SIGHUP and ignored, as `nohup` asks for."""
    return number.name == "SIGHUP" and signal.getsignal(number) == signal.SIG_IGN


class Interrupted(KeyboardInterrupt):
    """A user stopped the run, and it was saved."""


@contextmanager
def deferred_interrupts() -> Iterator[Callable[[], bool]]:
    """Return whether SIGINT, SIGTERM or SIGHUP was received, instead of stopping; a second one stops at once."""
    received: list[int] = []

    def record(number: int, frame: FrameType | None) -> None:
        if received:
            raise KeyboardInterrupt
        received.append(number)
        with suppress(OSError):  # the terminal may be gone
            os.write(2, FIRST_SIGNAL_MESSAGE.encode())  # print is not reentrant, and a signal may interrupt one

    can_handle = threading.current_thread() is threading.main_thread()
    handled = [number for number in SIGNALS if not is_ignored_hangup(number)]
    previous = {number: signal.signal(number, record) for number in handled if can_handle}
    try:
        yield lambda: bool(received)
    finally:
        for number, handler in previous.items():
            if signal.getsignal(number) == record:  # else someone has replaced it since
                signal.signal(number, handler)
