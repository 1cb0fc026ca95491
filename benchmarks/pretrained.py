"""CIFAR-10 and CIFAR-100 with the clients of Hsu et al., from real ImageNet weights and from scratch.

    manyeyes data prepare cifar10 --raw RAW --download --partition iid     (likewise cifar100)
    python -m benchmarks.pretrained data --splits hsu_cifar_splits.npz [--grid cpu] [--processes 2]
        [--out runs/pretrained] [--record FILE] [--only TEXT] [settings of manyeyes run, for every run]

`data` has the prepared datasets `cifar10` and `cifar100`. Every client also has test images, by the class mix of its
training images, so that a run has both the accuracy on the 10,000 official test images and that of each client on its
own. Features are computed first, once for each dataset and model. Then short runs choose the learning rate of each
algorithm on images held out from training, and the grid runs with the best one. What is in the record is not run again;
the record is written after each run, so that Ctrl-C loses none.
"""

from __future__ import annotations

import argparse
import json
import shlex
import statistics
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from manyeyes.cli.embed import embed
from manyeyes.core.population import Ints, Population, SingleLabels
from manyeyes.core.rng import make_rng
from manyeyes.data.partition import released
from manyeyes.data.store.reader import load_store
from manyeyes.training.description import environment
from manyeyes.training.processes import Train, run_parallel
from manyeyes.training.run_folder import read_events

NUM_VALIDATION = (
    5000  # training images that are held out to choose learning rates: the first of a store, in random order
)
ALPHAS = {"cifar10": (0.5, 100.0, 0.0), "cifar100": (0.5, 1000.0, 0.0)}  # 1000 is the largest that was released
SWEPT_ALPHA = 0.5
HEAD_ROUNDS = 300
MODELS, LENET = ("mobilenet_v2", "efficientnet_lite0"), "lenet"
ALGORITHMS = {
    "FedAvg": ("algorithm=fedavg",),
    "FedVC + FedIR": ("algorithm=fedvc", "example_weighting=importance"),
    "FedPer": ("algorithm=fedper", "algorithm.head_layers=1"),
    "centralized": ("algorithm=centralized",),
}
TRAINED = {
    "head": ("model.trainable=last:1", "engine.features=on", "engine.compile=false"),  # a head has nothing to compile
    "head and last block": ("model.trainable=head:2", "engine.features=on", "engine.compile=false"),
    "LoRA": ("model.adapter=lora", "model.adapter.rank=8"),
    "all": (),
}
LEARNING_RATES = {  # that are tried, by what trains, or by the model
    "head": (0.003, 0.01, 0.03, 0.1),
    "head and last block": (0.003, 0.01, 0.03),
    "LoRA": (0.03, 0.1),
    "all": (0.01, 0.03),
    LENET: (0.01, 0.03, 0.1),
}
CIFAR_SIZE, PEOPLE_SIZE = 32, 96  # pixels per side of the prepared images
PEOPLE, PEOPLE_PER_USER = (
    "sign_digits",
    "sign_digits_per_user",
)  # the photos of 207 people, split by user and within users
PEOPLE_ROUND = ["algorithm.batch_size=8", "algorithm.cohort_size=20"]  # a person has ten photos
PLACES = (Path("data"), Path("hsu_cifar_splits.npz"))  # of the datasets and the splits, in the commands of the record
SCORES = (
    "accuracy",
    "loss",
    "user_mean",
    "user_worst_decile",
    "personalized_user_mean",
    "personalized_user_worst_decile",
)


def released_cifar(
    store: Annotated[str, "prepared CIFAR-10 or CIFAR-100, with --partition iid"],
    splits: Annotated[str, "the released splits"],
    alpha: Annotated[float, "concentration of the released split"],
    validation: Annotated[bool, "hold out a tenth of the training images as the split val"] = False,
) -> Population:
    """CIFAR with the 100 clients of Hsu et al., who also have the test images, by the class mix of their training images.

    All alphas are views of the same images in the same order, so that they have the same features.
    """
    population = load_store(store)
    assert isinstance(population.labels, SingleLabels), "an image of CIFAR has one class"
    by_row = np.argsort(population.image_indices)
    labels = population.labels.take(by_row)
    image_ids = np.char.partition(np.asarray(population.columns["image_id"])[by_row].astype(str), "-")
    is_test, image_numbers = image_ids[:, 0] == "test", image_ids[:, 2].astype(int)
    train_rows = np.flatnonzero(~is_test)[np.argsort(image_numbers[~is_test])]  # in the official order
    users = np.empty(len(labels), np.int64)
    users[train_rows] = released(Path(splits), labels.ids[train_rows], f"cifar{len(labels.classes)}", alpha)
    users[is_test] = like_training(labels.ids[is_test], labels.ids[~is_test], users[~is_test])
    split = np.where(is_test, "test", "train")
    if validation:
        split[:NUM_VALIDATION] = "val"
    return Population.from_arrays(population.images, labels, users, split=split)


def like_training(test_classes: Ints, train_classes: Ints, train_users: Ints) -> Ints:
    """Return the user of each test image: of each class, users get the share that they have in training."""
    users = np.empty(len(test_classes), np.int64)
    for number in np.unique(train_classes):
        counts = np.bincount(train_users[train_classes == number])
        rows = make_rng(0, f"test images of class {number}").permutation(np.flatnonzero(test_classes == number))
        ends = np.round(np.cumsum(counts) / counts.sum() * len(rows))
        users[rows] = np.searchsorted(ends, np.arange(len(rows)), side="right")
    return users


@dataclass(frozen=True)
class Case:
    """One run of the grid; `lr` is what the short runs found, and these have `validation`."""

    dataset: str
    alpha: float | None  # None: the dataset has its own users
    model: str
    trains: str
    algorithm: str
    size: int
    rounds: int
    precision: str = "auto"
    lr: float = 0.0
    validation: bool = False

    @property
    def name(self) -> str:
        parts = [self.dataset, self.alpha, self.model, self.trains, self.algorithm, f"{self.size}px", self.rounds]
        parts += [f"lr{self.lr:g}"] if self.validation else []
        name = "-".join(str(part) for part in parts if part is not None)
        return name.replace(" ", "").replace("+", "_").lower()

    @property
    def uses_features(self) -> bool:
        return "engine.features=on" in TRAINED[self.trains]

    def inputs(self, stores: Path, splits: Path) -> list[str]:
        """Return the settings of the data and the model, which features depend on."""
        store = stores / self.dataset
        if self.alpha is None:
            settings = ["data=store", f"data.path={store}"]
        else:
            data = f"data=benchmarks.pretrained:{released_cifar.__name__}"
            settings = [data, f"data.store={store}", f"data.splits={splits}", f"data.alpha={self.alpha}"]
        settings += [f"model={self.model}", *TRAINED[self.trains]]
        if self.model != LENET:
            settings += ["model.pretrained=true", "model.norm=frozen"]
        elif self.alpha is not None:
            settings += ["preprocess.flip_horizontal=true", "preprocess.pad=4"]
        settings.append(f"preprocess.crop={self.size}")
        is_resized = self.size != (PEOPLE_SIZE if self.alpha is None else CIFAR_SIZE)
        return settings + (["preprocess.scale=[1,1]", "preprocess.ratio=[1,1]"] if is_resized else [])

    def training(self) -> list[str]:
        local = ["algorithm.batch_size=64"] if self.alpha is not None else PEOPLE_ROUND
        settings = [*ALGORITHMS[self.algorithm], f"algorithm.lr={self.lr}", *local]
        if self.model != LENET and not self.uses_features:
            settings.append("algorithm.max_grad_norm=1")  # without it, the first rounds destroy the pretrained weights
            settings += ["algorithm.max_examples=256"] if self.alpha is not None else []
        is_personal = self.dataset != PEOPLE and not self.validation  # new people have no photos to train on
        if self.algorithm == "FedAvg" and is_personal and (self.trains == "head" or self.alpha is None):
            settings.append("adaptation=finetune")  # also scores the model after an epoch on each client
        settings += [f"rounds={self.rounds}", f"evaluate_every={max(1, self.rounds // 5)}"]
        settings.append(f"engine.precision={self.precision}")
        if not self.validation:
            return settings
        return [*settings, *(["data.validation=true"] if self.alpha is not None else []), "eval_split=val"]


@dataclass(eq=False)
class Record:
    """Results by the names of their cases, in a file."""

    path: Path
    content: dict[str, Any] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    @staticmethod
    def open(path: Path) -> Record:
        content = json.loads(path.read_text()) if path.exists() else {}
        return Record(path, {**environment(), "features": {}, "learning_rates": {}, "runs": {}} | content)

    def add(self, section: str, name: str, row: dict[str, Any]) -> None:
        with self.lock:
            self.content[section][name] = row
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.path.write_text(json.dumps(self.content, indent=1) + "\n")

    def best_lr(self, case: Case) -> float:
        """Return the learning rate with the best accuracy on the images held out."""
        case = as_swept(case)
        tried = [
            row
            for row in self.content["learning_rates"].values()
            if all(row[name] == getattr(case, name) for name in ("model", "trains", "algorithm", "size"))
            and (row["alpha"] is None) == (case.alpha is None)
        ]
        if not tried:
            raise ValueError(f"no run has chosen a learning rate for {case.name}: see the messages above")
        return float(max(tried, key=lambda row: row["accuracy"])["lr"])


SWEPT: dict[
    bool, dict[str, Any]
] = {  # where learning rates are chosen: with the clients of Hsu et al., and with people
    False: {"dataset": "cifar10", "alpha": SWEPT_ALPHA},
    True: {"dataset": PEOPLE},
}


def cpu_grid() -> Iterator[Case]:
    """Yield the runs at 96 px on a CPU: heads on features."""
    for model in MODELS:
        yield from head_grid(model, 96)
    for alpha in (SWEPT_ALPHA, 0.0):
        yield Case("cifar100", alpha, "mobilenet_v2", "head", "FedAvg", 96, 1000)


def h200_grid() -> Iterator[Case]:
    """Yield the runs at 224 px on a GPU: on features, and a small model from scratch."""
    for model in MODELS:
        yield from head_grid(model, 224)
    for dataset, alphas in ALPHAS.items():
        for alpha in alphas:
            yield Case(dataset, alpha, LENET, "all", "FedAvg", 32, 2000, "bf16")


def layers_grid() -> Iterator[Case]:
    """Yield the runs at 224 px on a GPU in which all layers train, or adapters; with the rates that were best at 64 px."""
    for model in MODELS:
        for trains, lr in (("all", 0.03), ("LoRA", 0.1)):
            yield Case("cifar10", SWEPT_ALPHA, model, trains, "FedAvg", 224, 30, lr=lr)


def people_grid() -> Iterator[Case]:
    """Yield the runs on the photos of 207 people: a model for new people, and personal models."""
    for dataset in (PEOPLE, PEOPLE_PER_USER):
        yield Case(dataset, None, LENET, "all", "FedAvg", 32, 150)
        for model in MODELS:
            yield Case(dataset, None, model, "head", "FedAvg", PEOPLE_SIZE, 300)
    yield Case(PEOPLE_PER_USER, None, "mobilenet_v2", "head", "FedPer", PEOPLE_SIZE, 300)
    for trains in ("head and last block", "LoRA", "all"):
        yield Case(PEOPLE, None, "mobilenet_v2", trains, "FedAvg", PEOPLE_SIZE, 40)
    yield Case(PEOPLE, None, "mobilenet_v2", "LoRA", "FedAvg", PEOPLE_SIZE, 100)
    yield Case(PEOPLE, None, "mobilenet_v2", "head and last block", "FedAvg", PEOPLE_SIZE, 300)
    yield Case(PEOPLE_PER_USER, None, "mobilenet_v2", "head and last block", "FedPer", PEOPLE_SIZE, 40)


def head_grid(model: str, size: int) -> Iterator[Case]:
    for dataset, alphas in ALPHAS.items():
        for alpha in alphas:
            for algorithm in ("FedAvg", "FedVC + FedIR", "FedPer"):
                yield Case(dataset, alpha, model, "head", algorithm, size, HEAD_ROUNDS)
        yield Case(dataset, SWEPT_ALPHA, model, "head", "centralized", size, 20)


def as_swept(case: Case) -> Case:
    """Return the run whose learning rate a run has: FedPer has that of FedAvg where new people are held out, or all trains."""
    return replace(case, algorithm="FedAvg") if case.alpha is None or case.trains != "head" else case


def sweep(cases: Sequence[Case]) -> list[Case]:
    """Return the short runs that choose the learning rate of each algorithm, each once."""
    runs: dict[str, Case] = {}
    for case in (as_swept(case) for case in cases if not case.lr):
        rounds = 60 if case.trains == "head" or case.model == LENET else 10
        short = replace(case, **SWEPT[case.alpha is None], rounds=rounds, validation=True)
        short = replace(short, rounds=4) if case.algorithm == "centralized" else short
        for lr in LEARNING_RATES[LENET if case.model == LENET else case.trains]:
            scaled = round(lr / 10, 6) if case.algorithm == "centralized" else lr  # which has a momentum of 0.9
            runs.setdefault(replace(short, lr=scaled).name, replace(short, lr=scaled))
    return list(runs.values())


def compute_features(cases: Sequence[Case], args: argparse.Namespace, extra: list[str], record: Record) -> None:
    for case in cases:
        name = f"{case.dataset}-{case.model}-{case.trains}-{case.size}px"
        if not case.uses_features or name in record.content["features"]:
            continue
        settings = [*case.inputs(args.stores, args.splits), *extra]
        start = time.perf_counter()
        embed(settings)
        seconds = round(time.perf_counter() - start, 1)
        command = shlex.join(["manyeyes", "data", "embed", *case.inputs(*PLACES), *extra])
        record.add("features", name, {"seconds": seconds, "images": 60_000, "command": command})
        print(f"{name}: {seconds} s", flush=True)


def run(case: Case, args: argparse.Namespace, extra: list[str], record: Record, section: str, train: Train) -> None:
    """Train, and add the result to the record."""
    case = case if case.lr else replace(case, lr=record.best_lr(case))
    folder = args.out / case.name
    settings = [*case.inputs(args.stores, args.splits), *case.training(), *extra]
    is_started = (folder / "checkpoint.safetensors").exists()
    start = time.perf_counter()
    message = train([f"resume={folder}", f"rounds={case.rounds}"] if is_started else [*settings, f"folder={folder}"])
    seconds = time.perf_counter() - start
    if message:  # the other runs continue
        print(f"{case.name}: {message}", file=sys.stderr, flush=True)
        return
    events = read_events(folder / "metrics.jsonl")
    final = next(event for event in reversed(events) if "accuracy" in event)
    row = asdict(case) | {name: final[name] for name in SCORES if name in final}
    row["curve"] = {event["round"]: event["accuracy"] for event in events if "accuracy" in event}
    row["seconds_per_round"] = statistics.median(event["seconds"] for event in events[1:])
    row["bytes_up_per_client"] = events[-1].get("bytes_up", 0) / events[-1]["num_clients"]  # nothing if centralized
    command = shlex.join(["manyeyes", "run", *case.inputs(*PLACES), *case.training(), *extra])
    row |= {"seconds": round(seconds, 1), "processes": args.processes, "command": command}
    record.add(section, case.name, row)
    print(f"{case.name}: {100 * row['accuracy']:.1f} %, {seconds:.0f} s", flush=True)


GRIDS = {"cpu": cpu_grid, "h200": h200_grid, "layers": layers_grid, "people": people_grid}


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stores", type=Path)
    parser.add_argument("--splits", type=Path, required=True)
    parser.add_argument("--grid", choices=GRIDS, default="cpu")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("runs/pretrained"))
    parser.add_argument("--record", type=Path, default=Path("runs/pretrained.json"))
    parser.add_argument("--only", default="", help="text that the names of the runs contain")
    parser.add_argument("--rounds", type=int, default=0, help="rounds of every run, to try it; 0: those of the grid")
    args, extra = parser.parse_known_args(argv)
    record = Record.open(args.record)
    cases = [case for case in GRIDS[args.grid]() if args.only in case.name]
    cases = [replace(case, rounds=args.rounds or case.rounds) for case in cases]
    compute_features(cases, args, extra, record)
    for section, planned in (("learning_rates", sweep(cases)), ("runs", cases)):
        missing = [case for case in planned if case.name not in record.content[section]]
        run_parallel([partial(run, case, args, extra, record, section) for case in missing], args.processes)


if __name__ == "__main__":
    main()
