"""FLAIR's study of private training at a small scale, on synthetic images: average precision over simulated cohorts.

    python benchmarks/privacy.py [--seeds 3] [--processes 2] [--out runs/privacy]

Epsilon is 2 and delta users^-1.1; 50 users train per round, with the noise of 50 to 5,000 (`noise_cohort_size`). A
LeNet is trained from scratch, or starts from pretrained weights: it was trained on images of other users (seed 1) for
another task (the class of the central object), and gets a new classifier. Each method gets its best learning rate (of
the server, or of centralized SGD): the rate is doubled or halved while that improves the average precision on the val
split, with the first seed. The results are those of the test split, over seeds. A run whose folder exists is not
repeated; the noise follows from the seed, so that the table is reproducible. Writes benchmarks/records/privacy.json
and docs/images/privacy.png.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file

import manyeyes as me
from manyeyes.components import SGD, AdaptiveServer, EpochBatching, PoissonSampler, WeightUniformly
from manyeyes.core.algorithm import Algorithm
from manyeyes.core.state import DivergenceError
from manyeyes.data.preprocess import Preprocess
from manyeyes.engines.evaluation import LocalEvaluator
from manyeyes.models.flat import FlatModel
from manyeyes.privacy.mechanisms import CentralDP
from manyeyes.report.chart import Axis, Chart, ReferenceLine, Series
from manyeyes.report.export import write_chart

IMAGES = me.SyntheticImages(users=6400, size=32, coarse=10, fine=50)  # with users of FLAIR's sizes
PRETRAINING_IMAGES = replace(IMAGES, users=1600, images_per_user=6, seed=1)
METHODS = {  # initial weights, and kinds of training: the simulated cohort of private training, or one without noise
    "pretrained": ("50", "200", "1000", "5000", "clipped", "fedadam", "centralized"),
    "scratch": ("5000", "fedadam", "centralized"),
}
LABELS = {"clipped": "clipped, no noise", "fedadam": "FedAdam", "centralized": "centralized"}
ROUNDS, EPOCHS = 100, 4  # of federated and of centralized training
FIRST_RATES = {"centralized": 0.02}  # that are tried first; 0.1 for the others


@dataclass(frozen=True)
class Method:
    """How one point of the chart is trained, without its learning rate and seed."""

    initial: str  # pretrained or scratch
    kind: str
    out: Path
    seeds: int

    def folder(self, rate: float, seed: int) -> Path:
        return self.out / f"{self.initial}_{self.kind}_{rate:g}_{seed}"

    def algorithm(self, rate: float) -> Algorithm:
        if self.kind == "centralized":
            return me.centralized(lr=rate, batch_size=64)
        server = AdaptiveServer("adam", rate, 0.9, 0.99, 0.01)
        fedadam = Algorithm(
            PoissonSampler(50), EpochBatching(2, 16, max_examples=64), SGD(0.1), WeightUniformly(), server
        )  # as FLAIR's, at a small scale
        if self.kind == "fedadam":
            return fedadam
        privacy = CentralDP(
            0.0, noise_multiplier=0.001, clipping_norm=0.1, target_quantile=0.1, reproducible_noise=True
        )
        if self.kind != "clipped":
            privacy = replace(privacy, epsilon=2.0, noise_multiplier=0.0, noise_cohort_size=int(self.kind))
        return replace(fedadam, privacy=privacy)


@cache
def make_population() -> me.Population:
    return me.make_synthetic(IMAGES, processes=1).task("coarse")


def pretrain(out: Path) -> Path:
    """Return the weights of a LeNet that is trained centrally on other users' images to name the central object."""
    weights = out / "others" / "model.safetensors"
    if not weights.exists():
        other_users = me.make_synthetic(PRETRAINING_IMAGES, processes=1).task("single")
        model = me.build_model("lenet", len(other_users.classes), width=16, seed=1)
        algorithm = me.centralized(lr=0.02, batch_size=64)
        me.train(other_users, model, algorithm, rounds=8, folder=weights.parent, engine="reference")
    return weights


def train(method: Method, rate: float, seed: int) -> dict[str, float]:
    """Return the macro average precision of a run on val and test: train it, or read it from its folder."""
    folder = method.folder(rate, seed)
    scores_path = folder / "ap.json"
    if not scores_path.exists():
        population = make_population()
        model = me.build_model("lenet", len(population.classes), width=16, seed=seed)
        if method.initial == "pretrained":
            weights = load_file(pretrain(method.out))
            model.load_state_dict({n: t for n, t in weights.items() if not n.startswith("fc3.")}, strict=False)
        try:
            model = me.train(
                population,
                model,
                method.algorithm(rate),
                seed=seed,
                rounds=EPOCHS if method.kind == "centralized" else ROUNDS,
                evaluate_every=0,
                eval_split="val",
                folder=folder,
                resume=(folder / "checkpoint.safetensors").exists(),
                engine="reference",
                progress=False,
            ).model
            scores = {split: average_precision(model, population.split(split)) for split in ("val", "test")}
        except DivergenceError:
            scores = {"val": 0.0, "test": 0.0}
        scores_path.write_text(json.dumps(scores))
        print(folder.name, scores, flush=True)
    return {split: float(score) for split, score in json.loads(scores_path.read_text()).items()}


def average_precision(model: torch.nn.Module, population: me.Population) -> float:
    flat = FlatModel(model)
    evaluator = LocalEvaluator(flat, population, Preprocess(), torch.device("cpu"))
    return float(evaluator.evaluate_global(flat.read()).compute()["macro_ap"])


def tune(method: Method) -> dict[str, Any]:
    """Return the best learning rate on val, which is better than half and twice of it, and the scores on test."""
    torch.set_num_threads(1)
    best = FIRST_RATES.get(method.kind, 0.1)
    val = {best: train(method, best, 0)["val"]}
    is_improving = True
    while is_improving:
        is_improving = False
        for rate in (2 * best, best / 2):
            if rate not in val:
                val[rate] = train(method, rate, 0)["val"]
            if val[rate] > val[best]:
                best, is_improving = rate, True
                break
    test = [train(method, best, seed)["test"] for seed in range(method.seeds)]
    return {"val": {f"{rate:g}": val[rate] for rate in sorted(val)}, "rate": best, "test": test}


def draw(results: dict[str, dict[str, dict[str, Any]]], path: Path) -> None:
    """Draw the average precision over simulated cohorts, and that of other training: means over seeds."""
    series, reference_lines = [], []
    for color, (initial, rows) in enumerate(results.items()):
        scores = {kind: np.array(row["test"]) for kind, row in rows.items()}
        reference_lines += [
            ReferenceLine(f"{LABELS[kind]}, {initial}", y=float(scores[kind].mean()))
            for kind in LABELS
            if kind in scores
        ]
        private = {int(kind): values for kind, values in scores.items() if kind not in LABELS}
        means, stds = ([function(values) for values in private.values()] for function in (np.mean, deviation))
        low, high = ([mean + sign * std for mean, std in zip(means, stds, strict=True)] for sign in (-1, 1))
        series.append(Series(f"private, {initial}", list(private), means, low, high, color=color))
    reference_lines.sort(key=lambda line: line.y or 0)  # labels of neighbors alternate between left and right
    x_axis, y_axis = Axis("simulated users per round", log=True), Axis("macro AP", percent=True)
    write_chart(
        Chart(
            "privacy",
            "Private training, epsilon 2, on synthetic images",
            x_axis,
            y_axis,
            series,
            reference_lines=reference_lines,
        ),
        path,
    )


def deviation(values: Any) -> float:
    return float(np.std(values, ddof=1)) if len(values) > 1 else 0.0


def table(results: dict[str, dict[str, dict[str, Any]]]) -> str:
    lines = [f"| macro AP, % | {' | '.join(results)} |", f"|---|{'---:|' * len(results)}"]
    for kind in results["pretrained"]:
        cells = []
        for rows in results.values():
            if kind not in rows:
                cells.append("")
                continue
            values = 100 * np.array(rows[kind]["test"])
            cells.append(f"{values.mean():.1f} ± {deviation(values):.1f} (rate {rows[kind]['rate']:g})")
        name = LABELS.get(kind) or f"private, {int(kind):,}"
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("runs/privacy"))
    args = parser.parse_args()
    pretrain(args.out)
    methods = [Method(initial, kind, args.out, args.seeds) for initial, kinds in METHODS.items() for kind in kinds]
    with ProcessPoolExecutor(args.processes, multiprocessing.get_context("spawn")) as pool:
        rows = dict(zip(methods, pool.map(tune, methods), strict=True))
    results = {
        initial: {method.kind: row for method, row in rows.items() if method.initial == initial} for initial in METHODS
    }
    folder = Path(__file__).parent
    (folder / "records" / "privacy.json").write_text(json.dumps(results, indent=1) + "\n")
    draw(results, folder.parent / "docs" / "images" / "privacy.png")
    print(table(results))


if __name__ == "__main__":
    main()
