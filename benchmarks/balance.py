"""Load balance: how long ranks wait for the slowest, with FLAIR's user sizes; rounds are planned and not played.

    python benchmarks/balance.py [--rounds 300]

51,414 users as FLAIR's (the world's sizes), 2 epochs of at most 512 images in batches of 16. A client costs its images
and 3 more for each step (`manyeyes/engine/sharing.py`). Clients go whole to one rank, or the longest ones to teams of
ranks, with what a ResNet18 of 224 pixels takes to add up its gradients. Writes benchmarks/records/balance.json and
prints its table.
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from typing import Any

import numpy as np

from manyeyes.core.population import Ints
from manyeyes.core.rng import make_rng
from manyeyes.data.synthetic.users import sizes
from manyeyes.engines.distributed.data_parallel import GroupCache
from manyeyes.engines.load_balancing import ClientCost, balance_with_groups
from manyeyes.models import build_model
from manyeyes.models.flat import FlatModel

USERS, LIMIT, EPOCHS, BATCH = 51_414, 512, 2, 16
COHORTS, RANKS = (50, 200, 1000, 5000), (8, 64)


def cohort(held: Ints, clients: int, round: int) -> list[ClientCost]:
    chosen = make_rng(0, "cohort", round).choice(len(held), clients, replace=False)
    return [ClientCost(EPOCHS * math.ceil(n / BATCH), EPOCHS * n) for n in held[chosen].tolist()]


def measured(cohorts: list[list[ClientCost]], ranks: int, agreeing: float) -> dict[str, float]:
    """Means over rounds: what waits, what of the ranks' time is the clients' own work, and what limits it."""
    rows = []
    for jobs in cohorts:
        shares = balance_with_groups(jobs, ranks, agreeing)
        slowest, fair = max(shares.loads), sum(job.cost for job in jobs) / ranks
        longest = max(job.cost for job in jobs) > fair
        rows.append((1 - sum(shares.loads) / ranks / slowest, fair / slowest, longest, len(shares.groups)))
    names = ("idle", "useful", "longest", "teams")
    return {name: round(float(mean), 4) for name, mean in zip(names, np.mean(rows, axis=0), strict=True)}


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("--rounds", type=int, default=300)
    given = words.parse_args()
    held = np.minimum(sizes(USERS, 0), LIMIT)
    agreeing = GroupCache(FlatModel(build_model("resnet18", 17, size=224, seed=0)), (224, 224)).allreduce_cost
    rows: list[dict[str, Any]] = []
    for clients in COHORTS:
        cohorts = [cohort(held, clients, round) for round in range(given.rounds)]
        for ranks in RANKS:
            alone, teams = measured(cohorts, ranks, math.inf), measured(cohorts, ranks, agreeing)
            rows.append({"cohort": clients, "ranks": ranks, "alone": alone, "teams": teams})
    record = {"command": "python benchmarks/balance.py", "rounds": given.rounds, "agreeing": agreeing, "rows": rows}
    path = Path(__file__).parent / "records" / "balance.json"
    path.write_text(json.dumps(record, indent=1) + "\n")
    print("| cohort | ranks | longest is more than a fair part | idle, whole clients | idle, teams | useful, teams |")
    print("|---:|---:|---:|---:|---:|---:|")
    for row in rows:
        alone, teams = row["alone"], row["teams"]
        print(
            f"| {row['cohort']:,} | {row['ranks']} | {alone['longest']:.0%} of rounds | {alone['idle']:.1%} "
            f"| {teams['idle']:.1%} | {teams['useful']:.1%} |"
        )


if __name__ == "__main__":
    main()
