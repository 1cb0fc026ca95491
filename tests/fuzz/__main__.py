"""The command of the fuzzer: `python -m tests.fuzz --seconds 3600 --seed 1`."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from tests.fuzz.process import Case, Progress, fuzz, quiet, save
from tests.fuzz.settings import KINDS, SettingsCase, write_inputs
from tests.fuzz.targets import targets

CORPUS = Path(__file__).parent / "corpus"


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser("python -m tests.fuzz", description=__doc__)
    parser.add_argument("--inputs", type=int, default=0, help="inputs of each reader (as many as there is time for)")
    parser.add_argument("--seconds", type=float, default=60, help="of all readers together, without --inputs")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--start", type=int, default=0, help="number of the first input of each reader")
    parser.add_argument("--only", default="", help="readers, separated by commas")
    parser.add_argument("--save", type=Path, help=f"keep failing inputs in this folder, such as {CORPUS.name}")
    parser.add_argument("--verbose", action="store_true", help="print tracebacks")
    args = parser.parse_args(argv)
    all_targets = {target.name: target for target in targets()}
    chosen = args.only.split(",") if args.only else [*all_targets, *KINDS]
    start, total = time.monotonic(), [0, 0, 0]
    with tempfile.TemporaryDirectory(prefix="fuzz-inputs-") as inputs:
        if any(name in KINDS for name in chosen):
            with quiet():
                write_inputs(Path(inputs))
        for name in chosen:
            case = SettingsCase(name, Path(inputs)) if name in KINDS else Case.create(all_targets[name])
            progress = run_case(case, args, args.seconds / len(chosen))
            total = [total[0] + progress.inputs, total[1] + progress.refused, total[2] + len(progress.failures)]
    seconds = time.monotonic() - start
    print(f"{total[0]:,} inputs of {len(chosen)} kinds in {seconds:.0f} s: {total[1]:,} refused, {total[2]:,} failures")
    return 1 if total[2] else 0


def run_case(case: Case | SettingsCase, args: argparse.Namespace, seconds: float) -> Progress:
    limits = (args.inputs, float("inf")) if args.inputs else (10**9, seconds)
    if isinstance(case, SettingsCase):  # of which there is a limited number
        limits = (min(limits[0], case.count - args.start), limits[1])
    progress = fuzz(case, args.seed, args.start, *limits)
    name, slowest = case.name, progress.slowest_seconds
    print(f"{name:20s} {progress.inputs:7,} inputs, {progress.refused:7,} refused, slowest {slowest:.2f} s", flush=True)
    kinds: dict[str, int] = {}
    for failure in progress.failures:
        kinds[failure.reason] = kinds.get(failure.reason, 0) + 1
        if kinds[failure.reason] == 1:
            print(f"  FAILURE {name} {failure.index}: {failure.reason}")
            if args.verbose:
                print(failure.detail)
            if args.save and isinstance(case, Case):
                save(case, failure, args.seed, args.save)
    return progress


if __name__ == "__main__":
    sys.exit(main())
