"""Rounds that train the last layer of a model, on images and on cached features.

    python benchmarks/features.py [--model mobilenet_v2] [--size 96] [--rounds 1000] [--record FILE]

Ten clients with 20 images each train one epoch a round. Both kinds of rounds are timed alternately in the same process,
since other programs may use the machine: a few rounds on images, then a share of the rounds on features, and again.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

import manyeyes as me
from manyeyes.core.population import Population
from manyeyes.engines.multiprocess.worker import cores
from manyeyes.training.description import environment

NUM_USERS, IMAGES_PER_USER, COHORT_SIZE = 50, 20, 10
REPEATS = 3


def random_images(size: int) -> Population:
    rng, count = np.random.default_rng(0), NUM_USERS * IMAGES_PER_USER
    labels = me.SingleLabels(rng.integers(10, size=count), tuple("0123456789"))
    images = rng.integers(0, 256, (count, size, size, 3), np.uint8)
    return me.Population.from_arrays(images, labels, np.repeat(np.arange(NUM_USERS), IMAGES_PER_USER))


def round_milliseconds(population: Population, model: str, features: str, rounds: int) -> list[float]:
    """Return how long each round took; the first ones warm up."""
    result = me.train(
        population,
        {"name": model, "trainable": "last:1"},
        me.fedavg(cohort_size=COHORT_SIZE, batch_size=IMAGES_PER_USER, lr=0.01),
        rounds=rounds,
        evaluate_every=0,
        features=features,
        device="cpu",
        progress=False,
    )
    return [1e3 * event["seconds"] for event in result.events[1:]]


def extraction_seconds(population: Population, model: str) -> float:
    start = time.perf_counter()
    round_milliseconds(population, model, "on", 1)
    return time.perf_counter() - start


def measure(model: str, size: int, rounds: int) -> dict[str, Any]:
    population, times = random_images(size), {"off": list[float](), "on": list[float]()}
    torch.set_num_threads(cores())
    seconds = extraction_seconds(population, model)
    for _ in range(REPEATS):
        times["off"] += round_milliseconds(population, model, "off", 3)[1:]
        times["on"] += round_milliseconds(population, model, "on", rounds // REPEATS)[2:]
    images, features = (statistics.median(times[name]) for name in ("off", "on"))
    return {
        "model": model,
        "size": size,
        "cores": cores(),
        "clients": COHORT_SIZE,
        "images_per_client": IMAGES_PER_USER,
        "extraction_seconds_of_1000_images": round(seconds, 2),
        "round_ms_on_images": round(images, 2),
        "round_ms_on_features": round(features, 3),
        "fastest_round_ms_on_images": round(min(times["off"]), 2),
        "fastest_round_ms_on_features": round(min(times["on"]), 3),
        "speedup": round(images / features, 1),
        "load": [round(load, 1) for load in os.getloadavg()],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="mobilenet_v2")
    parser.add_argument("--size", type=int, default=96)
    parser.add_argument("--rounds", type=int, default=1000)
    parser.add_argument("--record", type=Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_CACHE_HOME"] = folder  # so that features are computed, whatever ran before
        result = measure(args.model, args.size, args.rounds)
    text = json.dumps({**environment(), **result}, indent=1, default=str)
    print(text)
    if args.record:
        args.record.write_text(text + "\n")


if __name__ == "__main__":
    main()
