"""Opening a store of FLAIR's size, planning a round on it, reading a cohort's images from a cold disk, and training so.

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

USERS, IMAGES = 51_414, 429_078  # FLAIR
COHORT, MOST = 200, 512
SIDE = 256
ROUNDS, MODEL, CROP = 6, "linear", 32  # trains for about as long as it waits for images without prefetch


@dataclass(frozen=True)
class Smooth:
    """Images as easy to compress as photographs: a few waves of colour and some noise."""

    images: int
    side: int

    def __len__(self) -> int:
        return self.images

    def read(self, index: int) -> NDArray[np.uint8]:
        chance = np.random.default_rng(index % 64)
        coarse = chance.integers(0, 256, (self.side // 16 + 1, self.side // 16 + 1, 3))
        pixels = np.kron(coarse, np.ones((16, 16, 1), np.int64))[: self.side, : self.side]
        return (pixels + chance.integers(-8, 9, pixels.shape)).clip(0, 255).astype(np.uint8)

    def name(self, index: int) -> str:
        return str(index)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--gigabytes", type=float, default=2, help="of raw pixels to read from")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--folder", type=Path, help="on the disk to be measured; default: the temporary one")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        index(Path(folder) / "index")
        for encoding in ("raw", "jpeg"):
            reading(Path(folder) / encoding, encoding, int(args.gigabytes * 1e9 / (SIDE * SIDE * 3)), args.repeats)
        ahead(Path(folder) / "raw", args.repeats)


def index(path: Path) -> None:
    """A store of as many users and examples as FLAIR, all of them one pixel."""
    counts = sizes(USERS, 0)
    users = np.repeat(np.arange(USERS), counts * IMAGES // counts.sum() + 1)
    write(path, users, 1, "raw")
    seconds = [timed(lambda: open_population(path))[0] for _ in range(5)]
    people = open_population(path)
    print(f"opening {len(people.user_ids):,} users, {len(people):,} examples: {1000 * median(seconds):.0f} ms")
    algorithm = fedavg(cohort_size=COHORT)
    seconds = [timed(partial(plan_round, algorithm, people, 0, r))[0] for r in range(20)]
    print(f"planning a round of {COHORT}: {1000 * median(seconds):.1f} ms")
    seconds = [timed(partial(algorithm.sampler.sample, people, np.random.default_rng(r)))[0] for r in range(20)]
    print(f"  of which choosing the cohort: {1000 * median(seconds):.1f} ms")


def reading(path: Path, encoding: str, images: int, repeats: int) -> None:
    counts = np.minimum(sizes(images // 8, 0), 4 * MOST)
    users = np.repeat(np.arange(len(counts)), counts)[:images]
    seconds, _ = timed(lambda: write(path, users, SIDE, encoding))
    print(f"\n{encoding}: {len(users):,} images of {SIDE} x {SIDE} written in {seconds:.0f} s")
    people = open_population(path)
    file = next(path.glob("images.*"))
    cold = defaultdict(list)
    for repeat in range(repeats):
        examples = cohort(people, repeat)
        size = len(examples) * SIDE * SIDE * 3
        work: dict[str, Callable[[], Any]] = {"cohort": partial(people.pixels, examples)}
        if encoding == "raw":
            place = int(np.random.default_rng(repeat).integers(os.path.getsize(file) - size))
            work["one stretch"] = partial(np.fromfile, file, np.uint8, size, offset=place)
            work["in sequence"] = partial(in_sequence, file, np.sort(people.image_indices[examples]))
            work["memory map"] = partial(by_map, file, people.image_indices[examples])
        for name in np.roll(list(work), repeat).tolist():  # in turns: whatever favours the first favours all
            drop(file)
            cold[name].append(size / timed(work[name])[0])
    warm = [size / timed(lambda: people.pixels(examples))[0] for _ in range(repeats)]
    for name, rates in {**cold, "cohort, warm": warm}.items():
        low, middle, high = (rate / 1e6 for rate in (min(rates), median(rates), max(rates)))
        print(
            f"  {name:13} {middle:6.0f} MB/s ({low:.0f} to {high:.0f}) {middle * 1e6 / (SIDE * SIDE * 3):8.0f} images/s"
        )
    if encoding == "raw":
        for name in ("one stretch", "in sequence"):
            print(f"  cohort / {name}: {median(cold['cohort']) / median(cold[name]):.2f}")


@dataclass(frozen=True)
class InTurn:
    """Other users every round, so that every image is read once and from a cold disk."""

    cohorts: Iterator[Ints]

    def sample(self, population: Population, rng: np.random.Generator) -> Ints:
        return next(self.cohorts)


def ahead(path: Path, repeats: int) -> None:
    """Rounds whose images are read while the one before trains, against rounds that wait for theirs."""
    people = replace(open_population(path), columns={})  # without splits: everyone is trained on, nobody evaluated
    file = next(path.glob("images.*"))
    work: dict[str, Callable[[list[Ints]], list[float]]] = {
        "only reading": lambda cohorts: [timed(partial(read, people, users))[0] for users in cohorts],
        "only training": partial(rounds, replace(people, images=people.images[:])),
        "no prefetch": partial(rounds, people, prefetch=0),
        "prefetch": partial(rounds, people),
    }
    seconds: dict[str, list[float]] = defaultdict(list)
    torch.set_num_threads(1)  # a core is left to read with, as where a GPU trains
    for repeat in range(repeats):
        cohorts = np.array_split(np.random.default_rng(repeat).permutation(len(people.user_ids)), ROUNDS)
        for name in np.roll(list(work), repeat).tolist():
            drop(file)
            seconds[name] += work[name](cohorts)[1:-1]  # the first waits for its own images, the last reads no others
    print(f"\ntraining {MODEL} from raw, {len(people) // ROUNDS:,} images a round, each read once and cold")
    for name, each in seconds.items():
        print(f"  {name:13} {median(each):6.3f} s a round ({min(each):.3f} to {max(each):.3f})")
    reads, trains, waits, overlaps = (median(seconds[name]) for name in work)
    print(f"  no prefetch / prefetch: {waits / overlaps:.2f}")
    print(f"  ideal, only reading + only training / the longer: {(reads + trains) / max(reads, trains):.2f}")


def read(people: Population, users: Ints) -> NDArray[np.uint8]:
    return people.pixels(np.concatenate([people.examples(user) for user in users]))


def rounds(people: Population, cohorts: list[Ints], **settings: Any) -> list[float]:
    """The seconds of each round of a run."""
    algorithm = replace(fedavg(), sampler=InTurn(iter(cohorts)))
    settings |= {"engine": "reference", "device": "cpu", "rounds": ROUNDS, "progress": False}
    result = train(people, MODEL, algorithm, preprocess=Preprocess(crop=CROP), **settings)
    return [event["seconds"] for event in result.events[1:]]


def in_sequence(file: Path, rows: NDArray[np.int64]) -> list[NDArray[np.uint8]]:
    """The same bytes, one user's after another's in the order of the file, with NumPy."""
    size, start = SIDE * SIDE * 3, os.path.getsize(file) % (SIDE * SIDE * 3)
    runs = np.split(rows, np.flatnonzero(np.diff(rows) != 1) + 1)
    return [np.fromfile(file, np.uint8, len(run) * size, offset=start + int(run[0]) * size) for run in runs]


def by_map(file: Path, rows: NDArray[np.int64]) -> NDArray[np.uint8]:
    """What a plain memory map would do."""
    return np.load(file, mmap_mode="r")[rows]


def write(path: Path, users: NDArray[Any], side: int, encoding: str) -> None:
    labels = MultiLabels.from_lists(
        [[user % 17, (user + k) % 17] for k, user in enumerate(users.tolist())], tuple("abcdefghijklmnopq")
    )
    split = np.where(users % 10 == 0, "val", "train")
    listing = Manifest(
        "benchmark",
        Smooth(len(users), side),
        np.arange(len(users)),
        np.char.mod("%08d@N00", users),
        split,
        {"coarse": labels, "fine": labels},
        {"image_id": np.char.mod("%011d", np.arange(len(users)))},
    )
    write_store(listing, path, side, encoding=encoding, processes=1)  # Smooth is of this script, which no other imports


def cohort(people: Population, seed: int) -> NDArray[np.int64]:
    """All examples of a random cohort, each user's in random order and at most so many."""
    chance = np.random.default_rng(seed)
    users = chance.choice(len(people.user_ids), COHORT, replace=False)
    return np.concatenate([chance.permutation(people.examples(user))[:MOST] for user in users])


def drop(path: Path) -> None:
    """Let the machine forget what is in the file: all caches where we may, else this file's."""
    os.sync()
    try:
        Path("/proc/sys/vm/drop_caches").write_text("3")
    except OSError:
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    start = time.perf_counter()
    result = work()
    return time.perf_counter() - start, result


if __name__ == "__main__":
    main()
