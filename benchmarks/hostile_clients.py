"""What hostile clients do to a federated run with its default protection, and without it.

    python -m benchmarks.hostile_clients [STORE] [--seeds 1 2 3 4 5] [--processes 2] [--record FILE]

STORE has images of one class each, for example made by `manyeyes data prepare folder`; its images are dealt to the
clients again, and a part of them is the server's test set. Without a store the images are stripes of four directions,
and the model is a convolution and a linear layer. Messages travel serialized over a grid in one process, to the client
app that nodes run. We report the accuracy on the test images after ten rounds, next to a run in which the hostile
clients are absent, and what protection costs where all clients are honest. Defaults were chosen with seeds 0, 100 and
101, so these are not in the table.
"""

from __future__ import annotations

import argparse
import io
import json
import multiprocessing
import statistics
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from torch import nn

from manyeyes.core.population import Ints, Population, SingleLabels
from manyeyes.core.state import DivergenceError
from manyeyes.data.partition import dirichlet
from manyeyes.data.store.reader import open_population
from manyeyes.engines.distributed.process_group import PeerLostError
from manyeyes.engines.evaluation import LocalEvaluator
from manyeyes.flower.app import FederationConfig
from manyeyes.flower.messages import CONFIG
from manyeyes.flower.server import serve
from manyeyes.flower.split import split
from manyeyes.flower.training_spec import parse_settings
from manyeyes.metrics import Accuracy
from manyeyes.models.flat import FlatModel
from manyeyes.training.description import environment
from tests.flower.fake_grid import Change, FakeGrid, Node

COMMON = "algorithm=fedavg rounds=10 evaluate_every=0 engine.device=cpu engine.threads=1"
STRIPES = (
    f"{COMMON} model=benchmarks.hostile_clients:stripe_net algorithm.batch_size=16 algorithm.epochs=2 algorithm.lr=0.2"
)
IMAGES = f"{COMMON} model=lenet model.width=8 algorithm.batch_size=8 algorithm.epochs=5 algorithm.lr=0.05"  # of a store
NUM_TRAIN, NUM_TEST = 480, 400  # stripes
TEST_FRACTION = NUM_TEST / (NUM_TRAIN + NUM_TEST)
NUM_CLAIMED = 100_000
UNPROTECTED = {"max_norm_ratio": 0.0, "reject_norm_ratio": 0.0, "reject_opposed": False, "max_weight_ratio": 0.0}
FIRST_NODE = 10
WITHOUT = ", without protection"
SIZES = ((4, 1), (10, 2))  # clients, and how many of them are hostile
PARTITIONS = ("unequal", "dirichlet 0.5", "dirichlet 0.1")  # of honest clients, next to "alike" of the attacks
HONEST_SIZES = (4, 10)
TEST_SEEDS = (1, 2, 3, 4, 5)


@dataclass(frozen=True)
class Attack:
    """What a hostile client does."""

    change_update: Callable[[Any], Any] | None = None  # what it sends instead of its update, or upload
    claims_examples: bool = False
    flips_labels: bool = False
    is_absent: bool = False

    def change(self, task: Message, reply: Message) -> Message:
        """Change a reply to a query or to a training task; other replies are true."""
        if reply.has_error() or task.metadata.message_type == "evaluate":
            return reply
        if self.claims_examples:
            values = dict(reply.content.config_records[CONFIG])
            reply.content[CONFIG] = ConfigRecord(values | {"num_examples": NUM_CLAIMED})
        if task.metadata.message_type == "train" and self.change_update is not None:
            for name, record in list(reply.content.array_records.items()):
                reply.content[name] = ArrayRecord({k: self._changed(array) for k, array in record.items()})
        return reply

    def _changed(self, array: Array) -> Array:
        assert self.change_update is not None, "an attack that changes replies says how"
        return Array(np.asarray(self.change_update(array.numpy()), np.float32))


def times(factor: float) -> Callable[[Any], Any]:
    return lambda values: factor * values


def of_norm(norm: float) -> Callable[[Any], Any]:
    return lambda values: values * (norm / max(float(np.linalg.norm(values)), 1e-12))


ABSENT, HONEST = "absent", "behave"
ATTACKS = {
    ABSENT: Attack(is_absent=True),
    HONEST: Attack(),
    "update times -10": Attack(times(-10)),
    "update times -5": Attack(times(-5)),  # clipped by default, not left out
    "update of length 9e5": Attack(of_norm(9e5)),
    "claims 100,000 images": Attack(claims_examples=True),
    "claims 100,000 images, update times -10": Attack(times(-10), claims_examples=True),
    "claims 100,000 images, update times -5": Attack(times(-5), claims_examples=True),
    "labels flipped": Attack(flips_labels=True),
    "claims 100,000 images, labels flipped": Attack(claims_examples=True, flips_labels=True),
}


@dataclass(frozen=True)
class Federation:
    """A federated run with hostile clients."""

    num_clients: int
    num_hostile: int
    attack: str = HONEST
    partition: str = "alike"  # or unequal: in numbers of images; or dirichlet ALPHA: in classes
    seed: int = 0
    settings: str = STRIPES
    is_protected: bool = True


@dataclass(frozen=True)
class Outcome:
    """What a run ended with; clients are counted once for each round."""

    accuracy: float  # on the test images; 0 if the run stopped because its weights diverged
    honest_clipped: int
    honest_left_out: int
    hostile_named: int  # clipped or left out


class StripeNet(nn.Module):
    """Linear in the mean responses of 16 filters."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.filters = nn.Conv2d(3, 16, 7, stride=2)
        self.classifier = nn.Linear(16, classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.classifier(self.filters(images).relu().mean((2, 3)))
        return logits


def stripe_net(classes: int, size: int) -> nn.Module:
    """Return the model of the stripes, for images of any size."""
    return StripeNet(classes)


def stripes(num_images: int, size: int, seed: int) -> tuple[Any, Ints]:
    """Return noisy stripes in random colors [N, H, W, 3], and which of four directions they have [N]."""
    rng = np.random.default_rng(seed)
    labels: Ints = rng.integers(4, size=num_images)
    angle, frequency = np.pi * labels / 4 + rng.normal(0, 0.2, num_images), rng.uniform(0.8, 1.6, num_images)
    rows, columns = np.mgrid[:size, :size]
    distance = np.cos(angle)[:, None, None] * rows + np.sin(angle)[:, None, None] * columns
    wave = np.sin(frequency[:, None, None] * distance + rng.uniform(0, 2 * np.pi, (num_images, 1, 1)))
    pixels = 128 + 60 * wave[..., None] * rng.uniform(0.3, 1, (num_images, 1, 1, 3))
    noise = rng.normal(0, 25, pixels.shape)
    return np.clip(pixels + noise, 0, 255).astype(np.uint8), labels


def read_images(store: Path | None, seed: int) -> Population:
    """Return all images of one user, a part of them for test, chosen by the seed."""
    if store is None:
        images, labels = stripes(NUM_TRAIN + NUM_TEST, 16, seed)
        names: tuple[str, ...] = ("0", "45", "90", "135")
    else:
        population = open_population(store)
        everything = np.arange(len(population))
        images, names = population.pixels(everything), population.classes
        labels = population.labels.targets(everything).astype(np.int64)
    order = np.random.default_rng(seed).permutation(len(labels))
    is_test = np.arange(len(labels)) < TEST_FRACTION * len(labels)
    classes = SingleLabels(labels[order], names)
    return Population.from_arrays(
        images[order], classes, np.zeros(len(labels), int), split=np.where(is_test, "test", "train")
    )


def deal(labels: Ints, federation: Federation) -> Ints:
    """Return the client of each image, or -1."""
    kind, _, alpha = federation.partition.partition(" ")
    num_clients, num_images = federation.num_clients, len(labels)
    if kind == "dirichlet":
        return dirichlet(labels, num_clients, float(alpha), federation.seed)
    if kind == "unequal":  # the largest has about six times the images of the smallest
        shares = np.exp(np.linspace(0, 1.8, num_clients))
        ends = np.cumsum(shares / shares.sum()) * num_images
        return np.minimum(np.searchsorted(ends, np.arange(num_images), "right"), num_clients - 1)
    return np.arange(num_images) % num_clients


def hostile_ids(federation: Federation) -> list[int]:
    """Return the hostile clients: the last ones, chosen before anything else is drawn."""
    return list(range(federation.num_clients - federation.num_hostile, federation.num_clients))


def make_stores(images: Population, federation: Federation, folder: Path) -> list[Path]:
    """Write a store for each client; those that flip labels call class c the class C - 1 - c."""
    attack, num_classes = ATTACKS[federation.attack], len(images.classes)
    labels = images.labels.targets(np.arange(len(images))).astype(np.int64)
    owners = deal(labels, federation)
    if attack.flips_labels:
        labels = np.where(np.isin(owners, hostile_ids(federation)), num_classes - 1 - labels, labels)
    mask = np.flatnonzero(owners >= 0)
    mask = mask[np.argsort(owners[mask], kind="stable")]
    classes = SingleLabels(labels[mask], images.classes)
    clients = Population.from_arrays(images.pixels(mask), classes, owners[mask], split=np.full(len(mask), "train"))
    return split(clients, folder, "single")


def test_accuracy(module: torch.nn.Module, test: Population, settings: str) -> float:
    flat = FlatModel(module)
    score = LocalEvaluator(flat, test, parse_settings(settings).preprocess, torch.device("cpu"))
    result = score.evaluate_global(flat.read())
    assert isinstance(result, Accuracy), "images have one class each"
    return result.compute()["accuracy"]


def train(store: Path | None, federation: Federation) -> Outcome:
    """Return the outcome of a federated run; its output is not shown."""
    torch.set_num_threads(1)
    images = read_images(store, federation.seed)
    attack, hostile = ATTACKS[federation.attack], hostile_ids(federation)
    present = [id for id in range(federation.num_clients) if not (attack.is_absent and id in hostile)]
    settings = f"{federation.settings} seed={federation.seed} algorithm.cohort_size={len(present)}"
    with tempfile.TemporaryDirectory() as folder, redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        stores = make_stores(images.split("train"), federation, Path(folder) / "stores")
        options: dict[str, Any] = {} if federation.is_protected else UNPROTECTED
        config = FederationConfig(settings, f"{folder}/run", num_clients=len(present), reply_timeout=60, **options)
        nodes = {FIRST_NODE + id: _node(stores[id], config, attack.change if id in hostile else None) for id in present}
        try:
            result = serve(FakeGrid(nodes), config)
        except (DivergenceError, PeerLostError):
            return Outcome(0.0, 0, 0, 0)
    clipped, left_out = Counter[str](), Counter[str]()
    for event in result.events:
        clipped.update([*event.get("clipped_clients", {})])
        left_out.update(event.get("rejected_clients", []))
    is_hostile = {str(id): attack != ATTACKS[HONEST] for id in hostile}
    return Outcome(
        test_accuracy(result.model, images.split("test"), settings),
        honest_clipped=sum(count for name, count in clipped.items() if not is_hostile.get(name)),
        honest_left_out=sum(count for name, count in left_out.items() if not is_hostile.get(name)),
        hostile_named=sum(count for name, count in (clipped + left_out).items() if is_hostile.get(name)),
    )


def _node(store: Path, config: FederationConfig, change: Change | None) -> Node:
    context = Context(1, 1, {"store": str(store)}, RecordDict(), dict(vars(config)))
    return Node(context) if change is None else Node(context, change=change)


def federations(seeds: Sequence[int], settings: str) -> list[Federation]:
    """Return the runs of the tables, seed after seed: all attacks, and different honest clients; each with and without
    protection."""
    runs = [Federation(*size, attack) for attack in ATTACKS for size in SIZES]
    runs += [Federation(clients, 0, HONEST, kind) for kind in PARTITIONS for clients in HONEST_SIZES]
    runs += [replace(run, is_protected=False) for run in runs]
    return [replace(run, seed=seed, settings=settings) for seed in seeds for run in runs]


def percent(values: Sequence[float]) -> str:
    """Return the mean and the least."""
    return f"{100 * statistics.mean(values):.1f} ({100 * min(values):.1f})"


def table(outcomes: dict[str, list[Outcome]]) -> str:
    """Return accuracies in %: the mean over the seeds and, in parentheses, the least."""
    lines = ["| run | protected | without | protected honest clients clipped, left out | hostile clients named |"]
    lines.append("|---|---:|---:|---:|---:|")
    for name in (name for name in outcomes if not name.endswith(WITHOUT)):
        values, without = outcomes[name], outcomes[name + WITHOUT]
        counts = [sum(getattr(value, f.name) for value in values) for f in fields(Outcome)[1:]]
        accuracies = " | ".join(percent([outcome.accuracy for outcome in cell]) for cell in (values, without))
        lines.append(f"| {name} | {accuracies} | {counts[0]}, {counts[1]} | {counts[2]} |")
    return "\n".join(lines)


def describe(federation: Federation) -> str:
    """Return the name of a cell."""
    hostile = f"{federation.num_hostile} of {federation.num_clients} hostile: {federation.attack}"
    cohort = hostile if federation.num_hostile else f"{federation.num_clients} honest clients, {federation.partition}"
    return f"{cohort}{'' if federation.is_protected else WITHOUT}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store", type=Path, nargs="?")
    parser.add_argument("--seeds", type=int, nargs="+", default=TEST_SEEDS)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--record", type=Path)
    args = parser.parse_args()
    settings = IMAGES if args.store else STRIPES
    runs = federations(args.seeds, settings)
    outcomes: dict[str, list[Outcome]] = {}
    with ProcessPoolExecutor(args.processes, multiprocessing.get_context("spawn")) as pool:
        for run, outcome in zip(runs, pool.map(partial(train, args.store), runs), strict=True):
            print(f"{describe(run)}, seed {run.seed}: {outcome}", flush=True)
            outcomes.setdefault(describe(run), []).append(outcome)
    print(table(outcomes))
    if args.record:
        cells = {name: [asdict(outcome) for outcome in cell] for name, cell in outcomes.items()}
        protection = {name: getattr(FederationConfig(), name) for name in UNPROTECTED}
        record = {"settings": settings, "protection": protection, "seeds": args.seeds, "outcomes": cells}
        args.record.write_text(json.dumps(record | {"environment": environment()}, indent=1) + "\n")


if __name__ == "__main__":
    main()
