"""Golden cases: every run and plan whose numbers are pinned, and the script that writes them.

python -m tests.golden_cases            # list the cases
python -m tests.golden_cases --write    # overwrite tests/assets/golden: only with a reason

The keys of the JSON files never change. When something is renamed, change the right-hand side of a table here.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import manyeyes as me
from manyeyes.algorithms import NAMED_ALGORITHMS
from manyeyes.components import (
    BF16,
    Adam,
    AdaptiveServer,
    AllClients,
    EpochBatching,
    Int8,
    Krum,
    MatchingLayers,
    Median,
    PoissonSampler,
    Schedule,
    ServerSGD,
    TopK,
    TrimmedMean,
    WeightUniformly,
)
from manyeyes.core.algorithm import Algorithm
from manyeyes.core.plan import plan_round
from manyeyes.core.population import Population, SingleLabels
from manyeyes.data.partition import ClassPartitioner, by_users, dirichlet, repartition
from manyeyes.data.registry import dataset
from manyeyes.data.store.reader import open_population
from manyeyes.data.store.writer import write_store
from manyeyes.engines.base import dist_info
from manyeyes.engines.distributed.process_group import shutdown
from manyeyes.models.flat import FlatModel
from manyeyes.privacy.mechanisms import CentralDP, LocalDP
from tests.golden import Record, record, save

ROOT = Path(__file__).parent.parent

# ---------------------------------------------------------------------------- names: in the JSON, and today

ENGINES = {"reference": "reference", "ranks": "multiprocess", "vector": "vmap", "lanes": "cuda_graphs"}

ALGORITHMS = {
    "fedavg": "fedavg",
    "fedavgm": "fedavgm",
    "fedadam": "fedadam",
    "fedyogi": "fedyogi",
    "fedadagrad": "fedadagrad",
    "fedir": "fedir",
    "fedvc": "fedvc",
    "fedprox": "fedprox",
    "scaffold": "scaffold",
    "fednova": "fednova",
    "mimelite": "mimelite",
    "centralised": "centralized",
    "local_only": "local_only",
    "fedper": "fedper",
    "fedrep": "fedrep",
    "fedbn": "fedbn",
    "ditto": "ditto",
    "finetuned": "finetuned",
}

PERSONALIZED = "personalized_"  # before the metrics of personalized models

SCORES = {
    "examples": "examples",
    "accuracy": "accuracy",
    "loss": "loss",
    "macro_accuracy": "macro_accuracy",
    "macro_ap": "macro_ap",
    "macro_precision": "macro_precision",
    "macro_recall": "macro_recall",
    "macro_f1": "macro_f1",
    "c_f1": "c_f1",
    "micro_ap": "micro_ap",
    "micro_precision": "micro_precision",
    "micro_recall": "micro_recall",
    "micro_f1": "micro_f1",
    "classes_without_positives": "classes_without_positives",
    "user_scored": "num_users_scored",
    "user_too_small": "num_users_unscorable",
    "user_mean": "user_mean",
    "user_weighted_mean": "user_weighted_mean",
    "user_q05": "user_q05",
    "user_q25": "user_q25",
    "user_q50": "user_q50",
    "user_q75": "user_q75",
    "user_q95": "user_q95",
    "user_worst_decile": "user_worst_decile",
}

METRIC_NAMES = {
    "round": "round",
    "train_loss": "train_loss",
    "update_norm": "update_norm",
    "epsilon": "epsilon",
    "clip": "clipping_norm",
    "clients": "num_clients",
    "images": "num_images",
    "batches": "max_client_batches",
    "bytes_up": "bytes_up",
    "bytes_down": "bytes_down",
    "best_on_loss": "selection_loss",
    "best_round": "best_round",
    "user_untested": "num_users_without_test",
    **SCORES,
    **{f"adapted_{stable}": PERSONALIZED + current for stable, current in SCORES.items()},
}

MEASURED = ("seconds",)
LATER_SCORES = ("macro_ap_200", "micro_ap_200")  # that the JSON files do not have
UNPINNED = (*MEASURED, *LATER_SCORES, *(PERSONALIZED + score for score in LATER_SCORES))

PLAN_FIELDS = {  # arrays and numbers of each client of a plan
    "user": "user",
    "key": "client_id",
    "size": "num_examples",
    "weight": "weight",
    "rows": "example_indices_SB",
    "weights": "example_weights_SB",
    "dice": "augment_uniforms_SBD",
    "seeds": "dropout_seeds_S",
    "whole": "full_indices",
    "whole_weights": "full_weights",
    "only": "phase_S",
}

# ---------------------------------------------------------------------------- populations and models


@cache
def albums() -> Population:
    """Return ten users of 6 to 22 images (one to three local steps), each with training and test images."""
    population = me.make_synthetic(
        me.SyntheticImages(users=10, size=32, images_per_user=22, coarse=4, fine=8, split="per_user"), processes=1
    )
    num_examples = population.num_examples
    index_in_user = np.arange(len(population)) - np.repeat(population.offsets[:-1], num_examples)
    return population.filter(index_in_user < np.repeat(6 + 2 * (5 * np.arange(10) % 9), num_examples))


@cache
def strangers() -> Population:
    """Return twenty users of eight images, each user in one of train, val and test."""
    return me.make_synthetic(
        me.SyntheticImages(users=20, size=32, images_per_user=8, coarse=4, fine=8, seed=1), processes=1
    )


@cache
def large() -> Population:
    """Return six users with images of 64 pixels: with smaller ones, live batch norms amplify rounding errors."""
    return me.make_synthetic(
        me.SyntheticImages(users=6, size=64, images_per_user=12, coarse=4, fine=8, split="per_user"), processes=1
    )


@cache
def tagged() -> Population:
    """Return the albums with several labels per image."""
    return albums().task("fine")


@cache
def numbered() -> Population:
    """Return thirty users of one to thirty examples, made of integers only: the same on every machine."""
    rng = np.random.default_rng(7)
    users = np.repeat(np.arange(30), 1 + 7 * np.arange(30) % 30)
    labels = SingleLabels(rng.integers(0, 5, len(users)), tuple("abcde"))
    return Population.from_arrays(np.zeros((len(users), 1, 1, 3), np.uint8), labels, users)


class Normed(nn.Module):
    """A convolution and a live batch norm."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 6, 3, stride=4)
        self.norm = nn.BatchNorm2d(6)
        self.fc = nn.Linear(6, classes)

    def forward(self, x_BCHW: Tensor) -> Tensor:
        logits: Tensor = self.fc(torch.relu(self.norm(self.conv(x_BCHW))).mean((2, 3)))
        return logits


class Dropping(nn.Module):
    """A linear model behind dropout."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.drop, self.fc = nn.Dropout(0.3), nn.Linear(3 * 32 * 32, classes)

    def forward(self, x_BCHW: Tensor) -> Tensor:
        logits: Tensor = self.fc(self.drop(x_BCHW.flatten(1)))
        return logits


def seeded(make: Callable[[int], nn.Module], classes: int) -> nn.Module:
    """Return a module with the initial weights of seed 0."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return make(classes)


def lenet(classes: int, size: int = 32) -> nn.Module:
    return me.build_model("lenet", classes, size=size, width=4)


def named(name: str, **options: Any) -> Callable[[int], nn.Module]:
    return partial(me.build_model, name, size=32, **options)


# ---------------------------------------------------------------------------- algorithms

SMALL = {"cohort_size": 3, "batch_size": 8, "lr": 0.05}
OPTIONS: dict[str, dict[str, Any]] = {  # of algorithms that need others than SMALL
    "fedadam": {**SMALL, "server_lr": 0.01},
    "fedyogi": {**SMALL, "server_lr": 0.01},
    "fedadagrad": {**SMALL, "server_lr": 0.01},
    "fedvc": {**SMALL, "virtual_client_size": 12},
    "fednova": {**SMALL, "momentum": 0.5},
    "centralised": {"batch_size": 8, "lr": 0.05},
    "fedrep": {**SMALL, "head_epochs": 2},
}
MODELS = {"fedbn": partial(seeded, Normed)}  # of algorithms that lenet does not suit


def make(name: str, **options: Any) -> Algorithm:
    """Return a named algorithm with small numbers."""
    return NAMED_ALGORITHMS[ALGORITHMS.get(name, name)](**{**OPTIONS.get(name, SMALL), **options})


def uniform(**components: Any) -> Algorithm:
    """Return FedAvg with uniform client weights and other components."""
    return replace(make("fedavg", cohort_size=5), client_weighting=WeightUniformly(), **components)


# ---------------------------------------------------------------------------- records


def run(
    algorithm: Algorithm,
    make_population: Callable[[], Population] = albums,
    model: Callable[[int], nn.Module] = lenet,
    **settings: Any,
) -> Record:
    """Train with small settings and return the record of the run."""
    torch.set_num_threads(1)
    population = make_population()
    defaults = {"rounds": 2, "evaluate_every": 0, "engine": "reference", "workers": 2, "progress": False}
    settings = {**defaults, "unprotected_statistics": True, **settings}
    result = me.train(population, model(len(population.classes)), algorithm, device="cpu", **settings)
    return record(FlatModel(result.model).read(), *pinned(result.events, result.final))


def pinned(events: list[dict[str, Any]], final: dict[str, float]) -> tuple[list[dict[str, float]], dict[str, float]]:
    """Return the metrics of each round and the final ones, by their names in the JSON files."""
    stable = {current: name for name, current in METRIC_NAMES.items()}
    rounds = [{stable[name]: value for name, value in event.items() if name not in UNPINNED} for event in events]
    return rounds, {stable[name]: value for name, value in final.items() if name not in UNPINNED}


def engine_case(name: str, engine: str) -> Record:
    """Return the record of a named algorithm on an engine, or that the engine refuses it."""
    try:
        return run(make(name), model=MODELS.get(name, lenet), engine=ENGINES[engine])
    except ValueError:
        return {"refused": True}


def resumed() -> Record:
    """Return the record of three rounds, stopped after the first."""
    with TemporaryDirectory() as folder:
        options: dict[str, Any] = {"folder": Path(folder, "run"), "evaluate_every": 1, "checkpoint_seconds": 0}
        run(make("scaffold"), rounds=1, **options)
        return run(make("scaffold"), rounds=3, resume=True, **options)


def resumed_personal() -> Record:
    """Return the record of three rounds of clients with personal layers and momentum, stopped after the second."""
    with TemporaryDirectory() as folder:
        options: dict[str, Any] = {"folder": Path(folder, "run"), "evaluate_every": 1, "checkpoint_seconds": 0}
        run(make("fedper", momentum=0.9, persist_state=True), rounds=2, **options)
        return run(make("fedper", momentum=0.9, persist_state=True), rounds=3, resume=True, **options)


def repartitioned() -> Record:
    """Return the record of a store in CIFAR's format that is prepared, opened and repartitioned."""
    with TemporaryDirectory() as folder:
        cifar, raw, out = dataset("cifar10"), Path(folder, "raw"), Path(folder, "store")
        cifar.write_synthetic(me.SyntheticImages(users=20, size=32, images_per_user=8, coarse=4, fine=8), raw)
        write_store(cifar.read_manifest(raw, partition="dirichlet", users=6, alpha=0.5), out, None, processes=1)
        opened = open_population(out)
        return run(make("fedper"), lambda: repartition(opened, ClassPartitioner(8, 2), seed=3))


def two_ranks() -> Record:
    """Return the record of two processes of torchrun over Gloo."""
    with TemporaryDirectory() as folder:
        out = Path(folder, "record.json")
        torchrun = ("torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m", "tests.golden_cases")
        python(*torchrun, "--rank", str(out), cwd=ROOT)
        content: Record = json.loads(out.read_text())
        return content


def one_rank(out: Path) -> None:
    """Train in one process of `two_ranks`."""
    content = run(make("fedavgm", cohort_size=5))
    if dist_info().rank == 0:
        out.write_text(json.dumps(content))
    shutdown(0)


def command() -> Record:
    """Return the record of `manyeyes run`: the weights of its checkpoint and the metrics in its folder."""
    options = (
        "data.users=20 data.images_per_user=8 data.coarse=4 data.fine=8 model=lenet model.width=4 algorithm=fedavgm "
        "algorithm.cohort_size=3 algorithm.batch_size=8 algorithm.lr=0.05 rounds=2 evaluate_every=0 engine=reference "
        "engine.device=cpu engine.threads=1 folder=here"
    )
    with TemporaryDirectory() as folder:
        python("manyeyes", "run", *options.split(), cwd=Path(folder))
        run_folder = Path(folder, "here")
        weights = load_file(run_folder / "checkpoint.safetensors")["weights"]
        events = [json.loads(line) for line in (run_folder / "metrics.jsonl").read_text().splitlines()]
        return record(weights, *pinned(events, {}))


def python(*args: str, cwd: Path) -> None:
    """Run a module in a process of its own, with one thread."""
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path}
    command = [sys.executable, "-m", *args]
    process = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr


# ---------------------------------------------------------------------------- the cases

YOGI = AdaptiveServer("yogi", 0.03, schedule=Schedule("cosine", rounds=3, warmup=1))
ADAM = AdaptiveServer("adam", 0.01, bias_correction=True, schedule=Schedule("polynomial", rounds=4, power=2.0))
CENTRAL = CentralDP(epsilon=8.0, clipping_norm=0.3, reproducible_noise=True)
ADAPTIVE = CentralDP(
    epsilon=0.0,
    noise_multiplier=0.7,
    clipping_norm=0.1,
    target_quantile=0.5,
    noise_cohort_size=8,
    reproducible_noise=True,
)
LOCAL = LocalDP(noise_multiplier=0.1, clipping_norm=0.5, reproducible_noise=True)
ZOOM = me.Preprocess(crop=24, scale=(0.2, 0.9), flip_horizontal=True)
CROP = me.Preprocess(crop=28, pad=2, flip_horizontal=True, flip_vertical=True)
FULL = partial(make, "fedvc", virtual_client_size=16, cohort_size=2, lr=0.01)  # no batch of one image
SCHEDULED = {
    "momentum": 0.9,
    "weight_decay": 0.01,
    "max_grad_norm": 0.5,
    "schedule": Schedule("cosine", rounds=3, warmup=2),
}

ENGINE_CASES: dict[str, Callable[[], Record]] = {
    f"{name}-{engine}": partial(engine_case, name, engine) for name in ALGORITHMS for engine in ENGINES
}

FEDDYN_CASES: dict[str, Callable[[], Record]] = {
    f"feddyn-{engine}": partial(engine_case, "feddyn", engine) for engine in ENGINES
}

RUN_CASES: dict[str, Callable[[], Record]] = {
    "private-central": lambda: run(uniform(sampler=PoissonSampler(4), privacy=CENTRAL)),
    "private-adaptive-clip": lambda: run(uniform(privacy=ADAPTIVE), rounds=3),
    "private-local": lambda: run(uniform(privacy=LOCAL)),
    "private-ranks": lambda: run(uniform(sampler=PoissonSampler(4), privacy=CENTRAL), engine=ENGINES["ranks"]),
    "private-lanes": lambda: run(uniform(sampler=PoissonSampler(4), privacy=CENTRAL), engine=ENGINES["lanes"]),
    "personal-fedper": lambda: run(make("fedper", cohort_size=6), rounds=3, evaluate_every=1),
    "personal-ditto": lambda: run(make("ditto", cohort_size=6, momentum=0.9), rounds=3, evaluate_every=1),
    "personal-finetuned": lambda: run(make("finetuned", cohort_size=6, adapt_epochs=2), rounds=3, evaluate_every=1),
    "personal-strangers": lambda: run(make("fedper"), strangers),
    "personal-layers": lambda: run(replace(make("fedavg"), personal_layers=MatchingLayers(("fc3.*", "conv1.bias")))),
    "packed-bf16": lambda: run(replace(make("fedavg"), compressor=BF16())),
    "packed-int8": lambda: run(replace(make("fedavg"), compressor=Int8(block_size=256))),
    "packed-topk": lambda: run(replace(make("fedavg", cohort_size=8), compressor=TopK(0.05)), rounds=3),
    "robust-median": lambda: run(uniform(aggregator=Median())),
    "robust-trimmed": lambda: run(uniform(aggregator=TrimmedMean(0.25))),
    "robust-krum": lambda: run(uniform(aggregator=Krum(num_malicious=1))),
    "robust-multikrum": lambda: run(uniform(aggregator=Krum(num_malicious=1, num_selected=3))),
    "robust-median-ranks": lambda: run(uniform(aggregator=Median()), engine=ENGINES["ranks"]),
    "server-yogi-scheduled": lambda: run(replace(make("fedavg"), server_optimizer=YOGI), rounds=3),
    "server-adam-scheduled": lambda: run(replace(make("fedavg"), server_optimizer=ADAM), rounds=3),
    "server-sgd-scheduled": lambda: run(
        replace(make("fedavg"), server_optimizer=ServerSGD(0.7, 0.5, Schedule("polynomial", rounds=3))), rounds=3
    ),
    "local-adam": lambda: run(replace(make("fedavg"), client_optimizer=Adam(1e-3, weight_decay=0.01))),
    "local-adam-kept": lambda: run(
        replace(make("fedavg", cohort_size=8), client_optimizer=Adam(1e-3, persist_state=True)), rounds=3
    ),
    "local-sgd-scheduled": lambda: run(make("fedavg", **SCHEDULED), rounds=3),
    "local-limit": lambda: run(replace(make("fedavg"), batching=EpochBatching(2, 4, max_examples=5))),
    "fedir-target": lambda: run(make("fedir", target=(0.1, 0.2, 0.3, 0.4))),
    "linear": lambda: run(make("fedavg"), model=named("linear")),
    "everyone": lambda: run(replace(make("fedavg"), sampler=AllClients())),
    "dropout": lambda: run(make("fedavg"), model=partial(seeded, Dropping)),
    "live-batch-norm": lambda: run(make("fedavgm"), model=partial(seeded, Normed)),
    "multilabel-resnet18-group": lambda: run(
        make("fedavg", cohort_size=2, lr=0.001), tagged, named("resnet18"), rounds=1
    ),
    "multilabel-vector": lambda: run(make("fedavg"), tagged, engine=ENGINES["vector"]),
    "multilabel-strangers": lambda: run(make("fedavg"), lambda: strangers().task("coarse")),
    "mobilenet-v1-group": lambda: run(FULL(), model=named("mobilenet_v1"), rounds=1),
    "mobilenet-v2-group": lambda: run(FULL(), model=named("mobilenet_v2", bottleneck=16), rounds=1),
    "mobilenet-v2-frozen": lambda: run(FULL(), model=named("mobilenet_v2", norm="frozen"), rounds=1),
    "mobilenet-v2-live": lambda: run(
        FULL(virtual_client_size=8, lr=1e-4), large, named("mobilenet_v2", norm="live"), rounds=1
    ),
    "resnet18-last-layers": lambda: run(FULL(), model=named("resnet18", trainable="last:2"), rounds=1),
    "augment-crop-flip": lambda: run(make("fedavg"), model=partial(lenet, size=28), preprocess=CROP),
    "augment-resized": lambda: run(make("fedavg"), model=partial(lenet, size=24), preprocess=ZOOM),
    "augment-resized-lanes": lambda: run(
        make("fedavg"), model=partial(lenet, size=24), preprocess=ZOOM, engine=ENGINES["lanes"]
    ),
    "best-model": lambda: run(make("fedavg", lr=0.3), strangers, rounds=4, evaluate_every=1, select_best_on="val"),
    "budget-of-batches": lambda: run(make("fedavg"), rounds=9, max_local_batches=4),
    "uninterrupted": lambda: run(make("scaffold"), rounds=3, evaluate_every=1),
    "resumed": resumed,
    "uninterrupted-personal": lambda: run(make("fedper", momentum=0.9, persist_state=True), rounds=3, evaluate_every=1),
    "resumed-personal": resumed_personal,
    "dealt-store": repartitioned,
    "two-ranks": two_ranks,
    "command": command,
}

PLANS: dict[str, tuple[Algorithm, int]] = {  # and the random numbers per example for augmentation
    "uniform": (make("fedavg"), 0),
    "poisson": (replace(make("fedavg"), sampler=PoissonSampler(6)), 0),
    "by-size": (make("fedvc", cohort_size=4), 0),
    "by-size-nearly-all": (make("fedvc", cohort_size=29), 0),
    "everyone": (make("local_only"), 0),
    "pooled": (make("centralised"), 0),
    "fixed-size": (replace(make("fedavg"), batching=make("fedvc").batching), 0),
    "limit": (replace(make("fedavg", cohort_size=8), batching=EpochBatching(2, 4, max_examples=5)), 0),
    "two-epochs": (make("fedavg", epochs=2), 0),
    "phases": (make("fedrep", epochs=2, cohort_size=6), 0),
    "walk": (make("fednova", cohort_size=6, epochs=2), 0),
    "importance": (make("fedir", cohort_size=6), 0),
    "importance-target": (make("fedir", cohort_size=6, target=(0.1, 0.1, 0.2, 0.2, 0.4)), 0),
    "whole-gradients": (replace(make("mimelite", cohort_size=6), example_weighting=make("fedir").example_weighting), 0),
    "control-variates": (make("scaffold"), 0),
    "crop": (make("fedavg"), CROP.num_uniforms),
    "zoom": (make("fedavg"), ZOOM.num_uniforms),
}


def plan_hash(name: str) -> str:
    """Return the hash of everything random in three rounds."""
    algorithm, num_uniforms = PLANS[name]
    population = numbered().pooled() if name == "pooled" else numbered()
    digest = hashlib.sha256()
    for round in range(3):
        plan = plan_round(algorithm, population, 11, round, num_uniforms)
        for client in plan.clients:
            for stable, current in PLAN_FIELDS.items():
                digest.update(f"{round} {stable} ".encode() + as_bytes(getattr(client, current)))
    return digest.hexdigest()


def as_bytes(value: Any) -> bytes:
    """Return an array or a number as bytes, the same on every machine."""
    if value is None:
        return b"none"
    array = np.asarray(value)
    kind = {"i": "<i8", "f": "<f4" if array.dtype == np.float32 else "<f8"}[array.dtype.kind]
    return f"{kind} {array.shape} ".encode() + array.astype(kind).tobytes()


def dealing_hash() -> str:
    """Return the hash of the examples of each user after a repartition."""
    population = repartition(numbered(), ClassPartitioner(12, 2), seed=5)
    split = np.unique(np.asarray(population.columns["split"]), return_inverse=True)[1]
    return hashlib.sha256(b"".join(map(as_bytes, (population.offsets, population.image_indices, split)))).hexdigest()


def partition_hash() -> str:
    """Return the hash of a Dirichlet partition, and of the split of users into train, val and test."""
    owners = dirichlet(numbered().labels.nonzero()[1], 20, 0.3, seed=5)
    split = np.unique(by_users(owners, seed=5), return_inverse=True)[1]
    return hashlib.sha256(as_bytes(owners) + as_bytes(split)).hexdigest()


PLAN_CASES: dict[str, Callable[[], str]] = {
    **{name: partial(plan_hash, name) for name in PLANS},
    "dealing": dealing_hash,
    "partition": partition_hash,
}

FILES: dict[str, tuple[dict[str, Callable[[], Any]], bool]] = {  # and whether they are the same on every machine
    "engines": (ENGINE_CASES, False),
    "runs": (RUN_CASES, False),
    "plans": (PLAN_CASES, True),
    "feddyn": (FEDDYN_CASES, False),
}


def write(names: list[str]) -> None:
    """Write golden files, by default all of them."""
    for name in names or FILES:
        cases, portable = FILES[name]
        records = {case: make() for case, make in cases.items()}
        refused = [case for case, content in records.items() if "refused" in content]
        print(f"{name}: {len(records)} cases, refused: {', '.join(refused) or 'none'}")
        save(name, records, portable)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["--write", *names]:
            write(names)
        case ["--rank", out]:
            one_rank(Path(out))
        case _:
            print("\n".join(f"{name}: {case}" for name, (cases, _) in FILES.items() for case in cases))
            sys.exit("Nothing is written. Overwrite the golden files with: python -m tests.golden_cases --write")
