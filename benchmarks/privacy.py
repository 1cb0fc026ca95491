"""FLAIR's private study in small, on the world: average precision against the cohort whose noise is simulated.

    python benchmarks/privacy.py [--seeds 3] [--processes 2] [--out runs/privacy]

Epsilon is 2 and delta users^-1.1; 50 users train a round, with the noise of 50 to 5,000 (`noise_cohort`). A LeNet is
trained from scratch, or begins with what it learned from other people (world of seed 1) about another question (which
of ten things is in the middle), with a new classifier. Every way to train gets the rate that is best for it: the rate
(of the server, or of centralised SGD) is doubled or halved for as long as that raises the average precision on the val
split, with the first seed. What is told is of the test split, over seeds. Every run is kept in its folder and is not
repeated if it is there; the noise comes from the seed, so that the table repeats. Writes
benchmarks/records/privacy.json and docs/images/privacy.png.
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
from manyeyes.report.chart import Axis, Chart, Mark, Series
from manyeyes.report.export import write_chart

WORLD = me.SyntheticImages(users=6400, size=32, coarse=10, fine=50)  # with as many photos a user as FLAIR's
OTHERS = replace(WORLD, users=1600, images_per_user=6, seed=1)
RUNS = {  # where a run begins, and how it trains: the cohort whose noise private training carries, or without noise
    "pretrained": ("50", "200", "1000", "5000", "clipped", "open", "centralised"),
    "scratch": ("5000", "open", "centralised"),
}
LABELS = {"clipped": "clipped, no noise", "open": "FedAdam", "centralised": "centralised"}
ROUNDS, EPOCHS = 100, 4  # of federated and of centralised training
FIRST = {"centralised": 0.02}  # the rate that is tried first; of the others, 0.1


@dataclass(frozen=True)
class Way:
    """How one point of the picture is trained, but for its rate and its seed."""

    begin: str  # pretrained or scratch
    kind: str
    out: Path
    seeds: int

    def folder(self, rate: float, seed: int) -> Path:
        return self.out / f"{self.begin}_{self.kind}_{rate:g}_{seed}"

    def algorithm(self, rate: float) -> Algorithm:
        if self.kind == "centralised":
            return me.centralized(lr=rate, batch_size=64)
        server = AdaptiveServer("adam", rate, 0.9, 0.99, 0.01)
        fedadam = Algorithm(
            PoissonSampler(50), EpochBatching(2, 16, max_examples=64), SGD(0.1), WeightUniformly(), server
        )  # as FLAIR's, in small
        if self.kind == "open":
            return fedadam
        privacy = CentralDP(
            0.0, noise_multiplier=0.001, clipping_norm=0.1, target_quantile=0.1, reproducible_noise=True
        )
        if self.kind != "clipped":
            privacy = replace(privacy, epsilon=2.0, noise_multiplier=0.0, noise_cohort_size=int(self.kind))
        return replace(fedadam, privacy=privacy)


@cache
def population() -> me.Population:
    return me.make_synthetic(WORLD, processes=1).task("coarse")


def pretrained(out: Path) -> Path:
    """The weights of a LeNet that other people's photos have trained, centrally, to name what is in the middle."""
    weights = out / "others" / "model.safetensors"
    if not weights.exists():
        people = me.make_synthetic(OTHERS, processes=1).task("single")
        model = me.build_model("lenet", len(people.classes), width=16, seed=1)
        me.train(
            people, model, me.centralized(lr=0.02, batch_size=64), rounds=8, folder=weights.parent, engine="reference"
        )
    return weights


def play(way: Way, rate: float, seed: int) -> dict[str, float]:
    """The average precision (macro, over classes) of one run on val and test: trained now, or read from its folder."""
    folder = way.folder(rate, seed)
    known = folder / "ap.json"
    if not known.exists():
        people = population()
        model = me.build_model("lenet", len(people.classes), width=16, seed=seed)
        if way.begin == "pretrained":
            weights = load_file(pretrained(way.out))
            model.load_state_dict({n: t for n, t in weights.items() if not n.startswith("fc3.")}, strict=False)
        try:
            trained = me.train(
                people,
                model,
                way.algorithm(rate),
                seed=seed,
                rounds=EPOCHS if way.kind == "centralised" else ROUNDS,
                evaluate_every=0,
                eval_split="val",
                folder=folder,
                resume=(folder / "checkpoint.safetensors").exists(),
                engine="reference",
                progress=False,
            ).model
            scores = {split: precision(trained, people.split(split)) for split in ("val", "test")}
        except DivergenceError:
            scores = {"val": 0.0, "test": 0.0}
        known.write_text(json.dumps(scores))
        print(folder.name, scores, flush=True)
    return {split: float(score) for split, score in json.loads(known.read_text()).items()}


def precision(model: torch.nn.Module, people: me.Population) -> float:
    flat = FlatModel(model)
    return float(
        LocalEvaluator(flat, people, Preprocess(), torch.device("cpu"))
        .evaluate_global(flat.read())
        .compute()["macro_ap"]
    )


def tuned(way: Way) -> dict[str, Any]:
    """The best rate of a way to train, both of whose neighbours are worse on val, and what its seeds reach on test."""
    torch.set_num_threads(1)
    best = FIRST.get(way.kind, 0.1)
    val = {best: play(way, best, 0)["val"]}
    climbing = True
    while climbing:
        climbing = False
        for rate in (2 * best, best / 2):
            if rate not in val:
                val[rate] = play(way, rate, 0)["val"]
            if val[rate] > val[best]:
                best, climbing = rate, True
                break
    test = [play(way, best, seed)["test"] for seed in range(way.seeds)]
    return {"val": {f"{rate:g}": val[rate] for rate in sorted(val)}, "rate": best, "test": test}


def draw(results: dict[str, dict[str, dict[str, Any]]], path: Path) -> None:
    """Draw the average precision over simulated cohorts, and what other training reaches: means over seeds."""
    series, marks = [], []
    for color, (begin, rows) in enumerate(results.items()):
        scores = {kind: np.array(row["test"]) for kind, row in rows.items()}
        marks += [Mark(f"{LABELS[kind]}, {begin}", y=float(scores[kind].mean())) for kind in LABELS if kind in scores]
        private = {int(kind): values for kind, values in scores.items() if kind not in LABELS}
        means, spread = ([function(values) for values in private.values()] for function in (np.mean, deviation))
        low, high = ([mean + sign * s for mean, s in zip(means, spread, strict=True)] for sign in (-1, 1))
        series.append(Series(f"private, {begin}", list(private), means, low, high, color=color))
    x_axis, y_axis = Axis("simulated users per round", log=True), Axis("macro AP", percent=True)
    write_chart(
        Chart("privacy", "Private training, epsilon 2, on synthetic images", x_axis, y_axis, series, marks=marks), path
    )


def deviation(values: Any) -> float:
    return float(np.std(values, ddof=1)) if len(values) > 1 else 0.0


def table(results: dict[str, dict[str, dict[str, Any]]]) -> str:
    lines = [f"| macro AP, % | {' | '.join(results)} |", f"|---|{'---:|' * len(results)}"]
    for kind in results["pretrained"]:
        cells = []
        for found in results.values():
            values = 100 * np.array(found[kind]["test"] if kind in found else [])
            rate = f"(rate {found[kind]['rate']:g})" if kind in found else ""
            cells.append(f"{values.mean():.1f} ± {deviation(values):.1f} {rate}" if kind in found else "")
        name = LABELS.get(kind) or f"private, {int(kind):,}"
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("--seeds", type=int, default=3)
    words.add_argument("--processes", type=int, default=2)
    words.add_argument("--out", type=Path, default=Path("runs/privacy"))
    given = words.parse_args()
    pretrained(given.out)
    ways = [Way(begin, kind, given.out, given.seeds) for begin, kinds in RUNS.items() for kind in kinds]
    with ProcessPoolExecutor(given.processes, multiprocessing.get_context("spawn")) as pool:
        found = dict(zip(ways, pool.map(tuned, ways), strict=True))
    results = {begin: {way.kind: row for way, row in found.items() if way.begin == begin} for begin in RUNS}
    here = Path(__file__).parent
    (here / "records" / "privacy.json").write_text(json.dumps(results, indent=1) + "\n")
    draw(results, here.parent / "docs" / "images" / "privacy.png")
    print(table(results))


if __name__ == "__main__":
    main()
