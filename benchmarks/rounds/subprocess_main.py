"""`python -m benchmarks.rounds.subprocess_main CASE`: time one case, given as JSON, and print a line of JSON.

With the second argument `watched`, it ends when its standard input does: the process that started it has ended.
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
    # pfl 0.6.0 needs dp-accounting < 0.6, which conflicts with ours; Ray, for Flower's simulation, is large
    "pfl": ("pfl", "create an environment with torch and pfl, and set --python pfl=PATH"),
    "flower": ("flwr", "create an environment with torch and flwr[simulation], and set --python flower=PATH"),
    "handwritten": ("torch", ""),
}
EXTRA_PACKAGES = {"flower": ("ray",)}


def main(argv: list[str]) -> int:
    if argv[1:] == ["watched"]:
        threading.Thread(target=_end_with_input, daemon=True).start()
    fields = json.loads(argv[0])
    package, remedy = RUNNERS[fields["runner"]]
    for required in (package, *EXTRA_PACKAGES.get(fields["runner"], ())):
        if importlib.util.find_spec(required) is None:
            return _print_result(
                failure="not installed", reason=f"{required} is not installed for {sys.executable}: {remedy}"
            )
    try:
        return _print_result(**run_case(fields))
    except Exception as error:
        traceback.print_exc()
        failure = "out of memory" if type(error).__name__ == "OutOfMemoryError" else "failed"
        lines = str(error).strip().splitlines()
        return _print_result(failure=failure, reason=f"{type(error).__name__}: {lines[0] if lines else ''}")


def run_case(fields: dict[str, Any]) -> dict[str, Any]:
    """Return the seconds and images of the rounds that count, and the versions of packages."""
    from benchmarks.rounds.case import BenchCase
    from benchmarks.rounds.workloads import WORKLOADS

    case = BenchCase(**fields)
    runner = importlib.import_module(f"benchmarks.rounds.{case.runner}")
    result = runner.run(case, WORKLOADS[case.workload].resized(case.users, case.cohort))
    package = RUNNERS[case.runner][0]
    versions = {"python": platform.python_version()} | {name: _version(name) for name in ("torch", package)}
    return {"seconds": result.seconds[case.warmup :], "images": result.images[case.warmup :], "versions": versions}


def _end_with_input() -> None:
    """Wait for the end of standard input, then end this process and all that it started."""
    os.read(0, 1)
    os.killpg(0, signal.SIGKILL)


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:  # on the path without being installed
        return "unknown"


def _print_result(**fields: Any) -> int:
    print("\n" + json.dumps(fields), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
