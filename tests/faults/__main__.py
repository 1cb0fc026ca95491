"""`python -m tests.faults --every`: every fault at every operation, with counts; about ten minutes on one core.

`--kills N` kills training N times, and `--flips N` changes N bits of each file of a run and of a store.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import torch

from tests.faults.bit_flips import FLIPS
from tests.faults.campaign import NAMED, SAID, SAME, Campaign, Tally, run_faults, run_power_losses
from tests.faults.kills import CASES, kill_and_compare
from tests.faults.workloads import WORKLOADS

Row = tuple[str, str, Tally]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("workloads", nargs="*", help=", ".join(WORKLOADS))
    parser.add_argument("--every", type=int, nargs="?", const=1, default=10, help="every N-th operation (10; alone: 1)")
    parser.add_argument("--first", type=int, default=0, help="number of the first of these operations (0)")
    parser.add_argument("--seeds", type=int, default=4, help="random power losses at each operation (4)")
    parser.add_argument("--kills", type=int, default=0, help="kill training this number of times, and nothing else")
    parser.add_argument("--flips", type=int, default=0, help="change this many bits of each file, and nothing else")
    args = parser.parse_args()
    torch.set_num_threads(1)
    num_failures, start = 0, time.monotonic()
    print(f"{'what':<34}{'fault':<30}{'cases':>7}{'same bytes':>12}{'reported':>9}{'failed':>8}{'seconds':>9}")
    for name, kind, tally in _rows(args):
        same, named, failed = tally.counts[SAME], tally.counts[SAID] + tally.counts[NAMED], len(tally.failures)
        seconds, start = time.monotonic() - start, time.monotonic()
        print(
            f"{name:<34}{kind:<30}{same + named + failed:>7}{same:>12}{named:>9}{failed:>8}{seconds:>9.0f}", flush=True
        )
        for failure in tally.failures:
            print(f"    {failure}", file=sys.stderr)
        num_failures += failed
    return 1 if num_failures else 0


def _rows(args: argparse.Namespace) -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder, "root")
        if args.kills:
            for number, name in enumerate(CASES):
                num_kills = args.kills // len(CASES) + (number < args.kills % len(CASES))
                if num_kills:
                    yield name, "killed", kill_and_compare(name, root, num_kills)
        elif args.flips:
            for number, (name, flip) in enumerate(FLIPS.items()):
                yield name, "a bit is changed", flip(root / str(number), args.flips)
        else:
            for name in args.workloads or WORKLOADS:
                campaign = Campaign(name, root)
                sample = campaign, args.every, args.first
                tallies = run_faults(*sample), run_power_losses(*sample, seeds=args.seeds)
                yield from ((name, kind, tally) for found in tallies for kind, tally in found.items())


if __name__ == "__main__":
    sys.exit(main())
