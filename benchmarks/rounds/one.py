"""`python -m benchmarks.rounds.one CASE`: measure one case, given as JSON, and print what was seen as one line of JSON.

With `watched` after it, it ends when its input does: whoever started it has gone.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import platform
import signal
import sys
import threading
import traceback
from importlib.metadata import PackageNotFoundError, version
from typing import Any

RUNNERS = {  # the package that each needs, and how to get it
    "ours": ("torch", ""),
    "plain": ("torch", ""),
    # pfl 0.6.0 wants dp-accounting < 0.6 and does not live beside us; Ray, for Flower's simulation, is large
    "pfl": ("pfl", "make an environment with torch and pfl, and give its python: --python pfl=PATH"),
    "flower": (
        "flwr",
        "make an environment with torch and flwr[simulation], and give its python: --python flower=PATH",
    ),
    "handwritten": ("torch", ""),
}


ALSO = {"flower": ("ray",)}  # packages that a runner needs beside its own


def main(words: list[str]) -> int:
    if words[1:] == ["watched"]:
        threading.Thread(target=_end_with_input, daemon=True).start()
    given = json.loads(words[0])
    package, remedy = RUNNERS[given["runner"]]
    for needed in (package, *ALSO.get(given["runner"], ())):
        if importlib.util.find_spec(needed) is None:
            return _tell(failure="not installed", reason=f"{needed} is not installed for {sys.executable}: {remedy}")
    try:
        return _tell(**measure(given))
    except Exception as error:
        traceback.print_exc()
        short = "out of memory" if type(error).__name__ == "OutOfMemoryError" else "failed"
        lines = str(error).strip().splitlines()
        return _tell(failure=short, reason=f"{type(error).__name__}: {lines[0] if lines else ''}")


def measure(given: dict[str, Any]) -> dict[str, Any]:
    from benchmarks.rounds.case import Case
    from benchmarks.rounds.works import WORKS

    case = Case(**given)
    runner = importlib.import_module(f"benchmarks.rounds.{case.runner}")
    played = runner.play(case, WORKS[case.work].resized(case.users, case.cohort))
    package = RUNNERS[case.runner][0]
    versions = {"python": platform.python_version()} | {name: _version(name) for name in ("torch", package)}
    return {"seconds": played.seconds[case.warmup :], "images": played.images[case.warmup :], "versions": versions}


def _end_with_input() -> None:
    """End this process and all that it started."""
    os.read(0, 1)
    os.killpg(0, signal.SIGKILL)


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:  # it is on the path and was not installed
        return "unknown"


def _tell(**seen: Any) -> int:
    print("\n" + json.dumps(seen), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
