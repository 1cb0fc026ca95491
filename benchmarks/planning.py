"""What a round costs the host before a device can start: microseconds per client of the fastest of several rounds.

    python -m benchmarks.planning [--record FILE]

Nothing is trained. `plan` samples clients and draws their batches, `schedule` groups clients and assigns groups to
streams, `pack` makes the arrays that are sent to a device.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path

import torch

from benchmarks.rounds.workloads import WORKLOADS
from manyeyes.core.plan import plan_round
from manyeyes.engines.gpu.buffers import PlanBuffers
from manyeyes.engines.gpu.engine import MAX_VMAP_WIDTH, VMAP_STREAMS, streams_for
from manyeyes.engines.gpu.scheduling import Schedule, make_schedule
from manyeyes.engines.images import load_to_device
from manyeyes.training.description import environment

CASES = {  # workload, users, clients, and whether clients run side by side
    "50 clients of 5 images": ("crowd", 100, 50, True),
    "5,000 clients of 5 images": ("crowd", 1_000_000, 5_000, True),
    "200 users of FLAIR's sizes": ("flair", 2_000, 200, False),
    "10 clients of 500 images": ("hsu", 100, 10, True),
}


def measure(name: str, users: int, num_clients: int, vmapped: bool) -> dict[str, float]:
    workload = WORKLOADS[name].resized(users, num_clients)
    population, rounds = load_to_device(workload.population(), torch.device("cpu")), count()
    num_streams = min(VMAP_STREAMS, num_clients) if vmapped else streams_for(num_clients)
    width = min(MAX_VMAP_WIDTH, -(-num_clients // num_streams)) if vmapped else 1
    algorithm, num_uniforms = workload.algorithm, workload.preprocess.num_uniforms
    buffers = PlanBuffers(population, torch.device("cpu"), num_streams, width, workload.batch_size, num_uniforms)
    plan = plan_round(algorithm, population, 0, 0, num_uniforms)

    def schedule() -> Schedule:
        return make_schedule(plan, num_streams, width, exact=False, max_steps=buffers.max_steps)

    chunks, repeats = schedule(), 5 if num_clients > 1000 else 50
    calls = {
        "plan": lambda: plan_round(algorithm, population, 0, next(rounds), num_uniforms),
        "schedule": schedule,
        "pack": lambda: [buffers.pack(plan, chunk) for chunk in chunks],
    }
    return {name: round(1e6 * fastest(call, repeats) / num_clients, 2) for name, call in calls.items()}


def fastest(call: Callable[[], object], repeats: int) -> float:
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - start)
    return min(seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--record", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    rows = {}
    for title, case in CASES.items():
        rows[title] = measure(*case)
        total = sum(rows[title].values())
        print(
            f"{title:28}",
            *(f"{name} {microseconds:6.2f}" for name, microseconds in rows[title].items()),
            f"{total:6.1f}",
        )
    if args.record:
        args.record.write_text(json.dumps({**environment(), "microseconds": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
