"""The privacy of a run: its noise and budget before it starts, and what it has spent in the end."""

from __future__ import annotations

import sys
from dataclasses import replace

from manyeyes.core.algorithm import Algorithm
from manyeyes.core.population import Population
from manyeyes.core.registry import describe
from manyeyes.training.callbacks import Callback, TrainingRun
from manyeyes.training.config import RunConfig
from manyeyes.training.result import Result
from manyeyes.training.run_folder import RunFolder


class PrivacyLedger(Callback):
    """Writes `privacy.json` at the end of a private run: the guarantee, and what was spent."""

    def on_train_end(self, run: TrainingRun, result: Result) -> None:
        privacy, state = run.algorithm.privacy, run.state
        if privacy is None or run.folder is None:
            return
        RunFolder(run.folder).write_privacy(
            {
                "guarantee": privacy.describe(),
                "epsilon": privacy.epsilon_spent(state.round, state.privacy_state),
                "rounds": state.round,
                "mechanism": describe("privacy", privacy),
            }
        )


def limit_to_budget(algorithm: Algorithm, population: Population, config: RunConfig) -> tuple[Algorithm, RunConfig]:
    """Return the algorithm with its privacy calibrated for this run, and as many rounds as the budget allows."""
    algorithm, rounds = calibrate_privacy(algorithm, population, config.rounds)
    if rounds < config.rounds:
        print(
            f"The privacy budget allows {rounds} of {config.rounds} rounds: the run ends after round {rounds}.",
            file=sys.stderr,
        )
    return algorithm, replace(config, rounds=rounds)


def calibrate_privacy(algorithm: Algorithm, population: Population, rounds: int) -> tuple[Algorithm, int]:
    """Return the algorithm with the noise that this many rounds need, and how many of them the budget allows."""
    if algorithm.privacy is None:
        return algorithm, rounds
    privacy = algorithm.privacy.calibrate(algorithm, population, rounds)
    allowed = privacy.max_rounds(rounds)
    if not allowed:
        raise ValueError(
            "One round spends more than the privacy budget: raise privacy.epsilon or privacy.noise_multiplier."
        )
    if allowed < rounds:  # the guarantee is about the rounds that are trained
        privacy = privacy.calibrate(algorithm, population, allowed)
    return replace(algorithm, privacy=privacy), allowed
