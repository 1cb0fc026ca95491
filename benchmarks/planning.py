"""What a round costs the host before a device can begin it: microseconds a client, best of several rounds, no training.

    python benchmarks/planning.py [--record FILE]

`plan` chooses clients and draws what each trains on, `group` says who runs beside whom and in which lane, `pack` makes
the arrays that are sent to a device.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path

import torch

from benchmarks.rounds.works import WORKS
from manyeyes.core.plan import plan_round
from manyeyes.engines.gpu.buffers import PlanBuffers
from manyeyes.engines.gpu.engine import MAX_VMAP_WIDTH, VMAP_STREAMS, streams_for
from manyeyes.engines.gpu.scheduling import Schedule, make_schedule
from manyeyes.engines.images import load_to_device
from manyeyes.training.environment import environment

CASES = {  # work, users, clients, and whether clients run side by side
    "50 clients of 5 images": ("crowd", 100, 50, True),
    "5,000 clients of 5 images": ("crowd", 1_000_000, 5_000, True),
    "200 users of FLAIR's sizes": ("flair", 2_000, 200, False),
    "10 clients of 500 images": ("hsu", 100, 10, True),
}


def measured(name: str, users: int, clients: int, beside: bool) -> dict[str, float]:
    work = WORKS[name].resized(users, clients)
    population, rounds = load_to_device(work.population(), torch.device("cpu")), count()
    lanes = min(VMAP_STREAMS, clients) if beside else streams_for(clients)
    width = min(MAX_VMAP_WIDTH, -(-clients // lanes)) if beside else 1
    table = PlanBuffers(population, torch.device("cpu"), lanes, width, work.batch, work.augment.num_uniforms)
    plan = plan_round(work.algorithm, population, 0, 0, work.augment.num_uniforms)

    def group() -> Schedule:
        return make_schedule(plan, lanes, width, exact=False, max_steps=table.max_steps)

    program, repeats = group(), 5 if clients > 1000 else 50
    parts = {
        "plan": lambda: plan_round(work.algorithm, population, 0, next(rounds), work.augment.num_uniforms),
        "group": group,
        "pack": lambda: [table.pack(plan, piece) for piece in program],
    }
    return {part: round(1e6 * best(call, repeats) / clients, 2) for part, call in parts.items()}


def best(call: Callable[[], object], repeats: int) -> float:
    seconds = []
    for _ in range(repeats):
        began = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - began)
    return min(seconds)


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("--record", type=Path)
    given = words.parse_args()
    torch.set_num_threads(1)
    rows = {}
    for title, case in CASES.items():
        rows[title] = measured(*case)
        total = sum(rows[title].values())
        print(f"{title:28}", *(f"{part} {found:6.2f}" for part, found in rows[title].items()), f"{total:6.1f}")
    if given.record:
        given.record.write_text(json.dumps({**environment(), "microseconds": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
