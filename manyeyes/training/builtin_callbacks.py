"""The callbacks of a run: those that every run has, and the user's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from manyeyes.training import early_stopping, trackers  # noqa: F401  # which register themselves
from manyeyes.training.loop import TrainingSetup
from manyeyes.training.privacy_ledger import PrivacyLedger
from manyeyes.training.progress_bar import RejectionMessages
from manyeyes.training.tables import Tables


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
