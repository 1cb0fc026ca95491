"""Whether a run goes on, has ended, and how: from its lock, its last words and what it has left."""

import os
from contextlib import suppress
from dataclasses import dataclass

from manyeyes.dashboard.settings import shown
from manyeyes.io.tail import read_small_file

FRESH_SECONDS = 10.0  # seconds in which a run without a lock may have been seen at work on another machine
STALE_SECONDS = 300.0  # seconds without a line after which a run that should go on is looked at
LOCKS = "/proc/locks"


@dataclass(frozen=True)
class RunSignals:
    """What is known of a run from outside."""

    held: bool  # a process on this machine has it
    elsewhere: bool  # it was seen to go on without one
    quiet: float  # seconds since its last line
    pace: float  # seconds a round
    whole: bool  # its model was written after its last line
    ended: tuple[str, str] | None  # its last words


def run_status(signs: RunSignals) -> tuple[str, str]:
    """One of running, stale, finished, stopped, diverged and failed, and a sentence where there is one to say."""
    late = signs.quiet > max(STALE_SECONDS, 20 * signs.pace)
    if signs.held or signs.elsewhere:
        return ("stale", "its process is there, but writes nothing") if late and signs.held else _seen(signs, late)
    if signs.ended:
        return signs.ended
    if signs.whole:
        return "finished", ""
    if signs.quiet < FRESH_SECONDS:
        return "running", ""
    return "stopped", "its process is gone; resume= continues it"


def _seen(signs: RunSignals, late: bool) -> tuple[str, str]:
    if not signs.held and (signs.ended or signs.whole):
        return signs.ended or ("finished", "")
    return ("stale", "it was at work elsewhere, and writes nothing any more") if late else ("running", "")


def end_reason(folder: str, names: frozenset[str]) -> tuple[str, str] | None:
    """How a run that did not finish says that it ended."""
    for kind in ("diverged", "failed"):
        if f"{kind}.txt" in names:
            with suppress(OSError):
                return kind, shown(
                    read_small_file(os.path.join(folder, f"{kind}.txt")).decode(errors="replace").strip()
                )
    return None


def locked() -> frozenset[int] | None:
    """The files that processes of this machine hold locks on, by inode; None where the system does not say."""
    try:
        with open(LOCKS) as file:
            lines = [line.split() for line in file]
    except OSError:
        return None
    return frozenset(int(words[5].rsplit(":", 1)[1]) for words in lines if len(words) > 5 and words[1] == "FLOCK")


def held(lock: str, locks: frozenset[int] | None) -> bool:
    """Whether a process has the run; the lock itself is not touched, or a run that begins just now would be refused."""
    with suppress(OSError, ValueError):
        if locks is not None:
            return os.stat(lock, follow_symlinks=False).st_ino in locks
        os.kill(int(read_small_file(lock)), 0)
        return True
    return False
