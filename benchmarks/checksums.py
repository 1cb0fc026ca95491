"""The share of a training round that checksums take: of images, client states, checkpoints and metrics.

    python -m benchmarks.checksums [--size PIXELS] [--rounds N]

Every image is read from a store that is not in memory, most of them for the first time, when they are checked. The first
rows are of the default settings, with checkpoints a minute apart; for the others, every round writes a checkpoint and
keeps all client states on disk. Prints a Markdown table; the committed one is in benchmarks/records/checksums.md.
"""

from __future__ import annotations

import argparse
import tempfile
import time
import zlib
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch

from manyeyes.algorithms import fedavg, scaffold
from manyeyes.core.algorithm import Algorithm
from manyeyes.core.population import SingleLabels
from manyeyes.data.manifest import Manifest, Pixels
from manyeyes.data.store.reader import open_population
from manyeyes.data.store.writer import write_store
from manyeyes.training.train import train

NUM_USERS, IMAGES_PER_USER, COHORT_SIZE, BATCH_SIZE = 100, 20, 5, 10


def write_images(path: Path, size: int) -> None:
    rng = np.random.default_rng(0)
    count = NUM_USERS * IMAGES_PER_USER
    manifest = Manifest(
        dataset="random",
        source=Pixels(rng.integers(0, 256, (count, size, size, 3), np.uint8), "image"),
        image=np.arange(count),
        users=np.repeat(np.arange(NUM_USERS), IMAGES_PER_USER).astype(str),
        split=np.repeat(["train", "test"], [count - IMAGES_PER_USER, IMAGES_PER_USER]),
        labels={"class": SingleLabels(rng.integers(0, 10, count), tuple("abcdefghij"))},
        columns={},
        notes={},
    )
    write_store(manifest, path, size)


class Timer:
    """Adds up the CPU seconds in `zlib.crc32`."""

    def __init__(self, crc32: Callable[..., int]) -> None:
        self.seconds, self._crc32 = 0.0, crc32

    def __call__(self, *args: Any) -> int:
        start = time.thread_time()
        result = self._crc32(*args)
        self.seconds += time.thread_time() - start
        return result


SETTINGS: dict[str, dict[str, Any]] = {
    "default": {},
    "all on disk in every round": {"checkpoint_seconds": 0, "client_state_cache_mib": 0},
}


def measure(store: Path, folder: Path, model: str, algorithm: Any, settings: dict[str, Any]) -> tuple[float, float]:
    """Return the CPU seconds of a run's rounds and checkpoints, and those in checksums."""
    population = open_population(store)
    timer = Timer(zlib.crc32)
    zlib.crc32 = timer
    try:
        start = time.process_time()
        options: dict[str, Any] = {"engine": "reference", "device": "cpu", "progress": False} | settings
        train(population, model, algorithm, folder=folder, **options)
        return time.process_time() - start, timer.seconds
    finally:
        zlib.crc32 = timer._crc32


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=64, help="pixels per side of the images (%(default)s)")
    parser.add_argument("--rounds", type=int, default=4)
    args = parser.parse_args()
    torch.set_num_threads(1)
    options = {"cohort_size": COHORT_SIZE, "batch_size": BATCH_SIZE}
    print("| settings | model | algorithm | CPU seconds a round | in checksums | share |\n|---|---|---|---:|---:|---:|")
    with tempfile.TemporaryDirectory() as temp_folder:
        store = Path(temp_folder, "store")
        write_images(store, args.size)
        algorithms: tuple[Callable[..., Algorithm], ...] = (fedavg, scaffold)
        cases = product(SETTINGS.items(), ("lenet", "resnet18"), algorithms)
        for number, ((title, settings), model, make) in enumerate(cases):
            folder, algorithm = Path(temp_folder, str(number)), make(**options)
            seconds, in_crc = measure(store, folder, model, algorithm, settings | {"rounds": args.rounds})
            times = f"{seconds / args.rounds:.3f} | {in_crc / args.rounds:.4f}"
            print(f"| {title} | {model} | {make.__name__} | {times} | {in_crc / seconds:.2%} |", flush=True)


if __name__ == "__main__":
    main()
