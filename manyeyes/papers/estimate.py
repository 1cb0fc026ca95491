"""About how long runs will take, from the rounds that were played of runs like them."""

import json
from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from statistics import fmean, median

from manyeyes.papers.plan import PlannedRun

SOME = 200  # rounds that are read of a run; the first ones may compile and read from a cold disk
WARM = 3
# Settings that hardly change how long a round takes.
QUICK = (
    "rounds",
    "evaluate",
    "batches",
    "best_on",
    "seed",
    "data.path",
    "data.alpha",
    "algorithm.lr",
    "algorithm.server",
)


def estimate(jobs: Iterable[PlannedRun], at_once: int = 1) -> str:
    """A sentence."""
    every = list(jobs)
    speeds: dict[tuple[str, ...], list[float]] = {}
    for job in every:
        if (seconds := seconds_a_round(job.folder)) is not None:
            speeds.setdefault(_kind(job), []).append(seconds)
    left = [job for job in every if job.status not in ("finished", "diverged", "other")]
    known = [job for job in left if _kind(job) in speeds]
    text = f"{len(left)} of {len(every)} runs are to be done"
    if known:
        total = sum(max(0, job.wanted - job.rounds) * fmean(speeds[_kind(job)]) for job in known)
        text += f": about {spoken(total / max(1, at_once))} of training for {len(known)} of them"
        text += f", {at_once} at a time" if at_once > 1 else ""
        text += ", evaluation apart"
    unknown = len(left) - len(known)
    return text + (f"; how long {unknown} take is told when rounds like theirs have been played" if unknown else "")


def seconds_a_round(folder: Path) -> float | None:
    """The median of a run's rounds, without the first ones where there are more; None where none was played."""
    path = folder / "metrics.jsonl"
    if not path.exists():
        return None
    with path.open("rb") as file:
        whole = [line for line in islice(file, SOME) if line.endswith(b"\n")]
    try:
        seconds = [event["seconds"] for event in map(json.loads, whole) if "seconds" in event]
    except ValueError:
        return None  # the file is damaged
    return median(seconds[WARM:] or seconds) if seconds else None


def spoken(seconds: float) -> str:
    """A length of time, roughly."""
    for size, unit in ((86_400, "days"), (3600, "hours"), (60, "minutes")):
        if seconds >= 1.5 * size:
            return f"{seconds / size:.2g} {unit}"
    return f"{seconds:.0f} seconds"


def _kind(job: PlannedRun) -> tuple[str, ...]:
    """Runs of the same kind have the same rounds but for their rates and partitions."""
    return tuple(word for word in job.run.settings if not word.startswith(QUICK))
