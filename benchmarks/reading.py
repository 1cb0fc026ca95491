"""Time to open a store of FLAIR's size, plan a round, read a cohort's images from a cold disk, and train on them.

python benchmarks/reading.py [--gigabytes 2] [--repeats 5] [--folder DIR]
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from manyeyes.algorithms import fedavg
from manyeyes.core.plan import plan_round
from manyeyes.core.population import Ints, MultiLabels, Population
from manyeyes.data.manifest import Manifest
from manyeyes.data.preprocess import Preprocess
from manyeyes.data.store.reader import open_population
from manyeyes.data.store.writer import write_store
from manyeyes.data.synthetic.users import sizes
from manyeyes.training.train import train

NUM_USERS, NUM_IMAGES = 51_414, 429_078  # FLAIR
COHORT_SIZE, MAX_IMAGES = 200, 512
IMAGE_SIZE = 256
ROUNDS, MODEL, CROP = 6, "linear", 32  # trains for about as long as it waits for images without prefetching


@dataclass(frozen=True)
class SmoothImages:
    """Images that compress as well as photos: blocks of color and some noise."""

    num_images: int
    size: int

    def __len__(self) -> int:
        return self.num_images

    def read(self, index: int) -> NDArray[np.uint8]:
        rng = np.random.default_rng(index % 64)
        coarse = rng.integers(0, 256, (self.size // 16 + 1, self.size // 16 + 1, 3))
        pixels = np.kron(coarse, np.ones((16, 16, 1), np.int64))[: self.size, : self.size]
        return (pixels + rng.integers(-8, 9, pixels.shape)).clip(0, 255).astype(np.uint8)

    def name(self, index: int) -> str:
        return str(index)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--gigabytes", type=float, default=2, help="of raw pixels to read from")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--folder", type=Path, help="on the disk to be measured; default: the temporary one")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        time_index(Path(folder) / "index")
        for encoding in ("raw", "jpeg"):
            time_reading(
                Path(folder) / encoding,
                encoding,
                int(args.gigabytes * 1e9 / (IMAGE_SIZE * IMAGE_SIZE * 3)),
                args.repeats,
            )
        time_prefetching(Path(folder) / "raw", args.repeats)


def time_index(path: Path) -> None:
    """Time a store with as many users and examples as FLAIR, whose images are one pixel."""
    counts = sizes(NUM_USERS, 0)
    users = np.repeat(np.arange(NUM_USERS), counts * NUM_IMAGES // counts.sum() + 1)
    write(path, users, 1, "raw")
    seconds = [time_call(lambda: open_population(path))[0] for _ in range(5)]
    population = open_population(path)
    print(f"opening {len(population.user_ids):,} users, {len(population):,} examples: {1000 * median(seconds):.0f} ms")
    algorithm = fedavg(cohort_size=COHORT_SIZE)
    seconds = [time_call(partial(plan_round, algorithm, population, 0, r))[0] for r in range(20)]
    print(f"planning a round of {COHORT_SIZE}: {1000 * median(seconds):.1f} ms")
    seconds = [time_call(partial(algorithm.sampler.sample, population, np.random.default_rng(r)))[0] for r in range(20)]
    print(f"  of which sampling the cohort: {1000 * median(seconds):.1f} ms")


def time_reading(path: Path, encoding: str, num_images: int, repeats: int) -> None:
    counts = np.minimum(sizes(num_images // 8, 0), 4 * MAX_IMAGES)
    users = np.repeat(np.arange(len(counts)), counts)[:num_images]
    seconds, _ = time_call(lambda: write(path, users, IMAGE_SIZE, encoding))
    print(f"\n{encoding}: {len(users):,} images of {IMAGE_SIZE} x {IMAGE_SIZE} written in {seconds:.0f} s")
    population = open_population(path)
    file = next(path.glob("images.*"))
    cold = defaultdict(list)
    for repeat in range(repeats):
        examples = sample_cohort(population, repeat)
        size = len(examples) * IMAGE_SIZE * IMAGE_SIZE * 3
        calls: dict[str, Callable[[], Any]] = {"cohort": partial(population.pixels, examples)}
        if encoding == "raw":
            offset = int(np.random.default_rng(repeat).integers(os.path.getsize(file) - size))
            calls["one stretch"] = partial(np.fromfile, file, np.uint8, size, offset=offset)
            calls["in sequence"] = partial(in_sequence, file, np.sort(population.image_indices[examples]))
            calls["memory map"] = partial(from_memory_map, file, population.image_indices[examples])
        for name in np.roll(list(calls), repeat).tolist():  # alternate the order
            drop_caches(file)
            cold[name].append(size / time_call(calls[name])[0])
    warm = [size / time_call(lambda: population.pixels(examples))[0] for _ in range(repeats)]
    for name, rates in {**cold, "cohort, warm": warm}.items():
        low, middle, high = (rate / 1e6 for rate in (min(rates), median(rates), max(rates)))
        print(
            f"  {name:13} {middle:6.0f} MB/s ({low:.0f} to {high:.0f}) "
            f"{middle * 1e6 / (IMAGE_SIZE * IMAGE_SIZE * 3):8.0f} images/s"
        )
    if encoding == "raw":
        for name in ("one stretch", "in sequence"):
            print(f"  cohort / {name}: {median(cold['cohort']) / median(cold[name]):.2f}")


@dataclass(frozen=True)
class GivenCohorts:
    """Samples other users every round, so that every image is read once from a cold disk."""

    cohorts: Iterator[Ints]

    def sample(self, population: Population, rng: np.random.Generator) -> Ints:
        return next(self.cohorts)


def time_prefetching(path: Path, repeats: int) -> None:
    """Compare rounds whose images are prefetched with rounds that wait for their images."""
    population = replace(open_population(path), columns={})  # without splits: all users train, and nothing is evaluated
    file = next(path.glob("images.*"))
    runs: dict[str, Callable[[list[Ints]], list[float]]] = {
        "only reading": lambda cohorts: [time_call(partial(read, population, users))[0] for users in cohorts],
        "only training": partial(rounds, replace(population, images=population.images[:])),
        "no prefetch": partial(rounds, population, prefetch_mib=0),
        "prefetch": partial(rounds, population),
    }
    seconds: dict[str, list[float]] = defaultdict(list)
    torch.set_num_threads(1)  # another core can read, as if a GPU trained
    for repeat in range(repeats):
        cohorts = np.array_split(np.random.default_rng(repeat).permutation(len(population.user_ids)), ROUNDS)
        for name in np.roll(list(runs), repeat).tolist():
            drop_caches(file)
            seconds[name] += runs[name](cohorts)[1:-1]  # the first waits for its images, the last prefetches none
    print(
        f"\ntraining {MODEL} from raw, {len(population) // ROUNDS:,} images per round, each read once from a cold disk"
    )
    for name, times in seconds.items():
        print(f"  {name:13} {median(times):6.3f} s per round ({min(times):.3f} to {max(times):.3f})")
    reads, trains, waits, overlaps = (median(seconds[name]) for name in runs)
    print(f"  no prefetch / prefetch: {waits / overlaps:.2f}")
    print(f"  ideal, only reading + only training / the longer: {(reads + trains) / max(reads, trains):.2f}")


def read(population: Population, users: Ints) -> NDArray[np.uint8]:
    return population.pixels(np.concatenate([population.examples(user) for user in users]))


def rounds(population: Population, cohorts: list[Ints], **options: Any) -> list[float]:
    """Return the seconds of each round of a run."""
    algorithm = replace(fedavg(), sampler=GivenCohorts(iter(cohorts)))
    options |= {"engine": "reference", "device": "cpu", "rounds": ROUNDS, "progress": False}
    result = train(population, MODEL, algorithm, preprocess=Preprocess(crop=CROP), **options)
    return [event["seconds"] for event in result.events[1:]]


def in_sequence(file: Path, rows: NDArray[np.int64]) -> list[NDArray[np.uint8]]:
    """Read the same bytes user by user, in the order of the file, with NumPy."""
    size, start = IMAGE_SIZE * IMAGE_SIZE * 3, os.path.getsize(file) % (IMAGE_SIZE * IMAGE_SIZE * 3)
    runs = np.split(rows, np.flatnonzero(np.diff(rows) != 1) + 1)
    return [np.fromfile(file, np.uint8, len(run) * size, offset=start + int(run[0]) * size) for run in runs]


def from_memory_map(file: Path, rows: NDArray[np.int64]) -> NDArray[np.uint8]:
    """Read the same images from a memory map."""
    return np.load(file, mmap_mode="r")[rows]


def write(path: Path, users: NDArray[Any], size: int, encoding: str) -> None:
    labels = MultiLabels.from_lists(
        [[user % 17, (user + k) % 17] for k, user in enumerate(users.tolist())], tuple("abcdefghijklmnopq")
    )
    split = np.where(users % 10 == 0, "val", "train")
    listing = Manifest(
        "benchmark",
        SmoothImages(len(users), size),
        np.arange(len(users)),
        np.char.mod("%08d@N00", users),
        split,
        {"coarse": labels, "fine": labels},
        {"image_id": np.char.mod("%011d", np.arange(len(users)))},
    )
    write_store(listing, path, size, encoding=encoding, processes=1)  # processes could not import SmoothImages


def sample_cohort(population: Population, seed: int) -> NDArray[np.int64]:
    """Return the examples of a random cohort, each user's in random order and at most MAX_IMAGES."""
    rng = np.random.default_rng(seed)
    users = rng.choice(len(population.user_ids), COHORT_SIZE, replace=False)
    return np.concatenate([rng.permutation(population.examples(user))[:MAX_IMAGES] for user in users])


def drop_caches(path: Path) -> None:
    """Drop all caches of the system if that is permitted, otherwise this file's."""
    os.sync()
    try:
        Path("/proc/sys/vm/drop_caches").write_text("3")
    except OSError:
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def time_call(call: Callable[[], Any]) -> tuple[float, Any]:
    start = time.perf_counter()
    result = call()
    return time.perf_counter() - start, result


if __name__ == "__main__":
    main()
