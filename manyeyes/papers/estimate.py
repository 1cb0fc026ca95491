"""About how long runs will take, from the rounds of similar runs that were already trained."""

import json
from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from statistics import fmean, median

from manyeyes.papers.plan import PlannedRun
from manyeyes.report.text import format_duration
from manyeyes.training.run_files import METRICS_FILE

MAX_TIMED_ROUNDS = 200  # that are read of a run
WARMUP_ROUNDS = 3  # which may compile, and read images from disk for the first time
DONE = ("finished", "diverged", "other")  # statuses of runs that are not trained
SPEED_INDEPENDENT = (  # settings that hardly change how long a round takes
    "rounds", "evaluate", "max_local_batches", "select_best_on", "seed", "data.path", "data.alpha", "algorithm.lr",
    "server_optimizer",
)  # fmt: skip


def estimate(runs: Iterable[PlannedRun], parallel: int = 1) -> str:
    """Return one sentence about the runs that are still to be trained."""
    runs = list(runs)
    speeds: dict[tuple[str, ...], list[float]] = {}
    for run in runs:
        if (seconds := seconds_per_round(run.folder)) is not None:
            speeds.setdefault(_kind(run), []).append(seconds)
    remaining = [run for run in runs if run.status not in DONE]
    known = [run for run in remaining if _kind(run) in speeds]
    text = f"{len(remaining)} of {len(runs)} runs remain"
    if known:
        total = sum(max(0, run.run.count("rounds") - run.rounds) * fmean(speeds[_kind(run)]) for run in known)
        text += f": about {format_duration(total / parallel)} of training for {len(known)} of them"
        text += (f", {parallel} at a time" if parallel > 1 else "") + ", plus evaluation"
    if num_unknown := len(remaining) - len(known):
        text += f"; the time of {num_unknown} is unknown until similar runs have trained"
    return text


def seconds_per_round(folder: Path) -> float | None:
    """Return the median of a run's rounds after the warm-up; None if no round was trained."""
    try:
        with (folder / METRICS_FILE).open("rb") as file:
            events = [json.loads(line) for line in islice(file, MAX_TIMED_ROUNDS) if line.endswith(b"\n")]
    except (FileNotFoundError, ValueError):
        return None
    seconds = [event["seconds"] for event in events if "seconds" in event]
    return median(seconds[WARMUP_ROUNDS:] or seconds) if seconds else None


def _kind(run: PlannedRun) -> tuple[str, ...]:
    """Return the settings that decide how long a round takes."""
    return tuple(setting for setting in run.run.settings if not setting.startswith(SPEED_INDEPENDENT))
