"""Callbacks: what else happens in a run, apart from training, evaluating and saving.

A callback is an object with any of the hooks of `Callback`. Every process of `torchrun` calls its own.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any

from manyeyes.core.registry import build, describe
from manyeyes.core.state import ServerState
from manyeyes.training.run_files import Event

if TYPE_CHECKING:
    from manyeyes.training.loop import TrainingLoop
    from manyeyes.training.result import Result


class TrainingRun:
    """A run as callbacks see it: nothing that they do to what they are given changes the run.

    `events` and `state` are copies. The state is the server's: with privacy, its weights hold only noised updates.
    """

    def __init__(self, loop: TrainingLoop) -> None:
        setup, algorithm = loop.setup, loop.setup.algorithm
        self.algorithm = algorithm if algorithm.privacy is None else copy.deepcopy(algorithm)
        self.population = setup.population  # that is trained on
        self.config = setup.config
        self.evaluator = setup.evaluator
        self.metrics = setup.metrics  # that are reported in addition to the usual ones
        self.folder = loop.recorder.path  # None on the processes that write nothing, and in a run without a folder
        self.rank = setup.dist.rank  # of this process under torchrun; the first has 0
        self.stop_reason: str | None = None
        self._loop = loop

    @property
    def events(self) -> list[Event]:
        """The events so far, those before a resume too."""
        return copy.deepcopy(self._loop.recorder.events)

    @property
    def state(self) -> ServerState:
        """The server's state after the last round."""
        return copy.deepcopy(self._loop.state)

    @property
    def round(self) -> int:
        """How many rounds are completed."""
        return self._loop.state.round

    def request_stop(self, reason: str) -> None:
        """End the run after this round, as if it were the last."""
        self.stop_reason = reason


class Callback:
    """A callback that does nothing; a class of your own may inherit from it, or have only the hooks that it needs."""

    def on_train_start(self, run: TrainingRun) -> None:
        """Before the first round of a run or of a resumed run."""

    def on_evaluate_start(self, run: TrainingRun, event: Event) -> None:
        """Before the model is evaluated; keys that are added to the event are recorded."""

    def on_evaluate(self, run: TrainingRun, event: Event) -> None:
        """After the model was evaluated; the event has the metrics."""

    def on_round_end(self, run: TrainingRun, event: Event) -> None:
        """After a round, and after the first evaluation (round 0); keys that are added to the event are recorded."""

    def on_checkpoint(self, run: TrainingRun) -> None:
        """Before a checkpoint is written."""

    def on_train_end(self, run: TrainingRun, result: Result) -> None:
        """After the last round, when the model has been written."""

    def close(self) -> None:
        """At the end, also of a run that fails: release what the callback holds."""

    def state_dict(self) -> Mapping[str, Any]:
        """Return what the checkpoint keeps of the callback: tensors, and values that JSON can hold."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over the state of a checkpoint; called before `on_train_start` of a resumed run."""


NO_HOOKS = Callback()


@dataclass(frozen=True, eq=False)
class CallbackList:
    """Calls the hooks of callbacks, in their order, and then those of observers, which cannot change an event."""

    callbacks: tuple[Any, ...]
    observers: tuple[Any, ...]
    run: TrainingRun

    def call(self, hook: str, *args: Any) -> None:
        for callback in (*self.callbacks, *self.observers):
            _hook(callback, hook)(self.run, *args)

    def add_to_event(self, hook: str, event: Event) -> None:
        """Let each callback add keys to the event; refuse changed keys, and values that JSON cannot hold."""
        for callback in self.callbacks:
            seen = copy.deepcopy(event)
            _hook(callback, hook)(self.run, seen)
            event.update(_added_keys(callback, event, seen))

    def observe(self, event: Event) -> None:
        """Show observers the complete event of a round."""
        for observer in self.observers:
            _hook(observer, "on_round_end")(self.run, copy.deepcopy(event))

    def close(self) -> None:
        for callback in (*self.callbacks, *self.observers):
            _hook(callback, "close")()

    def state_dicts(self) -> dict[str, Mapping[str, Any]]:
        states = {name: _hook(callback, "state_dict")() for name, callback in self._by_name().items()}
        return {name: state for name, state in states.items() if state}

    def load_state_dicts(self, states: Mapping[str, Mapping[str, Any]]) -> None:
        for name, callback in self._by_name().items():
            if name in states:
                _hook(callback, "load_state_dict")(states[name])

    def _by_name(self) -> dict[str, Any]:
        """Return the callbacks by names that are the same after a resume."""
        named: dict[str, Any] = {}
        for callback in (*self.callbacks, *self.observers):
            name = describe("callback", callback)["name"]
            names = (name if number == 1 else f"{name}-{number}" for number in count(1))
            named[next(name for name in names if name not in named)] = callback
        return named


def build_all(slot: str, items: Iterable[Any]) -> tuple[Any, ...]:
    """Return the components of a list of names, descriptions and components."""
    configs = ({"name": item} if isinstance(item, str) else item for item in items)
    return tuple(build(slot, config) if isinstance(config, Mapping) else config for config in configs)


def _hook(callback: Any, name: str) -> Callable[..., Any]:
    """Return a method of a callback, which may be a class that has only some of them."""
    method: Callable[..., Any] = getattr(callback, name, getattr(NO_HOOKS, name))
    return method


def _added_keys(callback: Any, event: Event, seen: Event) -> Event:
    name = type(callback).__name__
    for key, value in event.items():
        if key not in seen or not (seen[key] is value or seen[key] == value):
            raise ValueError(f"callback={name} changed {key!r} of a round's event: add other keys instead.")
    added = {key: value for key, value in seen.items() if key not in event}
    try:
        json.dumps(added)
    except TypeError as error:
        raise ValueError(f"callback={name} added a value to a round's event that JSON cannot hold: {error}.") from None
    return added
