"""Long steps, announced to what shows the progress of a run: records of the logger `manyeyes.steps`."""

import logging
import os

STEPS = logging.getLogger("manyeyes.steps")
STEPS.propagate = False  # a library that configures the root logger would print them a second time
PROGRESS_VARIABLE = "MANYEYES_PROGRESS"  # of the environment: `off` silences the progress of commands


def shows_progress() -> bool:
    """Return whether a command shows its progress; of several processes of one run, the first does."""
    return os.environ.get(PROGRESS_VARIABLE, "") != "off" and os.environ.get("RANK", "0") == "0"


def announce(step: str, expected: str = "") -> None:
    """Say what begins now, such as "evaluating 50 personal models", and how long it is expected to take."""
    STEPS.info("%s (%s)" if expected else "%s%s", step, expected)


def announce_progress(step: str, done: int, total: int) -> None:
    """Say how much of a long step is done."""
    STEPS.info("%s", step, extra={"done": done, "total": total})


def format_seconds(seconds: float) -> str:
    """Return a duration for a reader, such as `12 s` or `3 min`."""
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"
