"""`python -m tests.faults --every`: every fault at every operation, with counts; about ten minutes on one core."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

import torch

from tests.faults.campaign import SAID, SAME, Campaign, run_faults, run_power_losses
from tests.faults.workloads import WORKLOADS


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults")
    parser.add_argument("workloads", nargs="*", help=", ".join(WORKLOADS))
    parser.add_argument("--every", type=int, nargs="?", const=1, default=10, help="every N-th operation (10; alone: 1)")
    parser.add_argument("--seeds", type=int, default=4, help="random power losses at each operation (4)")
    parser.add_argument("--only", choices=("faults", "power"), help="only faults, or only power losses")
    args = parser.parse_args()
    torch.set_num_threads(1)
    num_failures = 0
    print(f"{'workload':<13}{'fault':<30}{'cases':>7}{'same bytes':>12}{'said so':>9}{'failed':>8}{'seconds':>9}")
    for name in args.workloads or WORKLOADS:
        with tempfile.TemporaryDirectory() as folder:
            campaign = Campaign(name, Path(folder, "root"))
            for run in (run_faults, run_power_losses):
                if args.only and args.only not in run.__name__:
                    continue
                start = time.monotonic()
                tallies = (
                    run_faults(campaign, args.every)
                    if run is run_faults
                    else run_power_losses(campaign, args.every, seeds=args.seeds)
                )
                for kind, tally in tallies.items():
                    same, said, failed = tally.counts[SAME], tally.counts[SAID], len(tally.failures)
                    print(f"{name:<13}{kind:<30}{same + said + failed:>7}{same:>12}{said:>9}{failed:>8}")
                    for failure in tally.failures:
                        print(f"    {failure}", file=sys.stderr)
                    num_failures += failed
                print(
                    f"{name:<13}{len(campaign.operations)} operations, {len(campaign.events)} changes, {time.monotonic() - start:.0f} seconds"
                )
    return 1 if num_failures else 0


if __name__ == "__main__":
    sys.exit(main())
