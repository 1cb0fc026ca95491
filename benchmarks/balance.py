"""How long ranks wait for the slowest one, with users of FLAIR's sizes; rounds are planned and not trained.

    python benchmarks/balance.py [--rounds 300]

51,414 users of FLAIR's sizes, 2 epochs of at most 512 images in batches of 16. A client costs its images and 3 more per
step (`manyeyes/engines/load_balancing.py`). Each client is trained by one rank, or the largest ones by groups of ranks,
with the cost of an all-reduce of the gradients of a ResNet18 at 224 pixels. Writes benchmarks/records/balance.json and
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

NUM_USERS, MAX_IMAGES, EPOCHS, BATCH_SIZE = 51_414, 512, 2, 16
COHORT_SIZES, RANKS = (50, 200, 1000, 5000), (8, 64)


def sample_costs(num_held: Ints, cohort_size: int, round: int) -> list[ClientCost]:
    users = make_rng(0, "cohort", round).choice(len(num_held), cohort_size, replace=False)
    return [ClientCost(EPOCHS * math.ceil(n / BATCH_SIZE), EPOCHS * n) for n in num_held[users].tolist()]


def mean_balance(cohorts: list[list[ClientCost]], num_ranks: int, allreduce_cost: float) -> dict[str, float]:
    """Return means over rounds: idle and useful time, rounds with a client above a fair part, and groups."""
    rows = []
    for costs in cohorts:
        assignment = balance_with_groups(costs, num_ranks, allreduce_cost)
        loads, fair_cost = assignment.loads, sum(cost.cost for cost in costs) / num_ranks
        exceeds = max(cost.cost for cost in costs) > fair_cost
        idle = 1 - sum(loads) / num_ranks / max(loads)
        rows.append((idle, fair_cost / max(loads), exceeds, len(assignment.groups)))
    names = ("idle", "useful", "exceeds_fair_part", "groups")
    return {name: round(float(mean), 4) for name, mean in zip(names, np.mean(rows, axis=0), strict=True)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=300)
    args = parser.parse_args()
    num_held = np.minimum(sizes(NUM_USERS, 0), MAX_IMAGES)
    allreduce_cost = GroupCache(FlatModel(build_model("resnet18", 17, size=224, seed=0)), (224, 224)).allreduce_cost
    rows: list[dict[str, Any]] = []
    for cohort_size in COHORT_SIZES:
        cohorts = [sample_costs(num_held, cohort_size, round) for round in range(args.rounds)]
        for num_ranks in RANKS:
            unsplit = mean_balance(cohorts, num_ranks, math.inf)
            groups = mean_balance(cohorts, num_ranks, allreduce_cost)
            rows.append({"cohort_size": cohort_size, "ranks": num_ranks, "unsplit": unsplit, "groups": groups})
    record: dict[str, Any] = {
        "command": "python benchmarks/balance.py",
        "rounds": args.rounds,
        "allreduce_cost": allreduce_cost,
    }
    record["rows"] = rows
    path = Path(__file__).parent / "records" / "balance.json"
    path.write_text(json.dumps(record, indent=1) + "\n")
    print(
        "| cohort | ranks | a client exceeds a fair part | idle, one rank per client | idle, groups | useful, groups |"
    )
    print("|---:|---:|---:|---:|---:|---:|")
    for row in rows:
        unsplit, groups = row["unsplit"], row["groups"]
        print(
            f"| {row['cohort_size']:,} | {row['ranks']} | {unsplit['exceeds_fair_part']:.0%} of rounds "
            f"| {unsplit['idle']:.1%} | {groups['idle']:.1%} | {groups['useful']:.1%} |"
        )


if __name__ == "__main__":
    main()
