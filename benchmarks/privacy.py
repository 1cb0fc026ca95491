"""FLAIR's private study in small, on the world: average precision against the cohort whose noise is simulated.

    python benchmarks/privacy.py [--seeds 1] [--processes 2] [--out runs/privacy]

Epsilon is 2 and delta users^-1.1; 50 users train a round, with the noise of 50 to 5,000 (`noise_cohort`). A LeNet is
trained from scratch, or begins with what it learned from other people (world of seed 1) about another question (which
of ten things is in the middle), with a new classifier. Every run is kept in its folder and is not repeated if it is
there; the noise comes from the seed, so that the table repeats. Writes benchmarks/records/privacy.json and
docs/images/privacy.png.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file

import manyeyes as me
from manyeyes.algorithm import Algorithm
from manyeyes.parts import SGD, Epochs, Equally, Poisson, ServerAdaptive
from manyeyes.parts.privacy import AdaptiveClip, CentralDP
from manyeyes.report.figures import COLOURS, logarithmic, rendered, start
from manyeyes.run.events import read

WORLD = me.World(users=6400, size=32, coarse=10, fine=50, photos=6)
OTHERS = replace(WORLD, users=1600, seed=1)
RUNS = {  # where a run begins, and how it trains: the cohort whose noise private training carries, or without noise
    "pretrained": ("50", "200", "1000", "5000", "clipped", "open", "centralised"),
    "scratch": ("5000", "open", "centralised"),
}
LABELS = {"clipped": "clipped, no noise", "open": "FedAdam", "centralised": "centralised"}
ROUNDS, EPOCHS = 80, 6  # of federated and of centralised training
FEDADAM = Algorithm(
    Poisson(50), Epochs(1, 16), SGD(0.1), Equally(), ServerAdaptive("adam", 0.2, 0.9, 0.99, 0.01)
)  # as FLAIR's, in small


@dataclass(frozen=True)
class Job:
    """One run of the table."""

    begin: str  # pretrained or scratch
    kind: str
    seed: int
    out: Path

    @property
    def folder(self) -> Path:
        return self.out / f"{self.begin}_{self.kind}_{self.seed}"

    @property
    def algorithm(self) -> Algorithm:
        if self.kind == "centralised":
            return me.centralised(lr=0.02, batch=64)
        if self.kind == "open":
            return FEDADAM
        privacy = CentralDP(0.0, noise=0.01, clip=AdaptiveClip(0.1, 0.1), reproducible_noise=True)
        if self.kind != "clipped":
            privacy = replace(privacy, epsilon=2.0, noise=0.0, noise_cohort=int(self.kind))
        return replace(FEDADAM, privacy=privacy)


def pretrained(out: Path) -> Path:
    """The weights of a LeNet that other people's photos have trained, centrally, to name what is in the middle."""
    weights = out / "others" / "model.safetensors"
    if not weights.exists():
        people = me.make_world(OTHERS, processes=1).task("single")
        model = me.build_model("lenet", len(people.classes), width=16, seed=1)
        me.train(people, model, me.centralised(lr=0.02, batch=64), rounds=8, folder=weights.parent, engine="reference")
    return weights


def play(job: Job) -> float:
    """The average precision (macro, over classes) of one run: trained now, or read from its folder."""
    torch.set_num_threads(1)
    if not (job.folder / "model.safetensors").exists():
        people = me.make_world(WORLD, processes=1).task("coarse")
        model = me.build_model("lenet", len(people.classes), width=16, seed=job.seed)
        if job.begin == "pretrained":
            known = load_file(pretrained(job.out))
            model.load_state_dict({n: t for n, t in known.items() if not n.startswith("fc3.")}, strict=False)
        me.train(
            people,
            model,
            job.algorithm,
            seed=job.seed,
            rounds=EPOCHS if job.kind == "centralised" else ROUNDS,
            evaluate_every=0,
            folder=job.folder,
            resume=(job.folder / "checkpoint.safetensors").exists(),
            engine="reference",
            progress=False,
        )
    return float(read(job.folder / "metrics.jsonl")[-1]["macro_ap"])


def draw(results: dict[str, dict[str, list[float]]], path: Path) -> None:
    """Average precision over simulated cohorts, among what other training reaches."""
    figure, axes = start("Private training, epsilon 2, on the world", "simulated users a round", "macro AP, %")
    for colour, (begin, found) in zip(COLOURS, results.items(), strict=False):
        private = {int(kind): 100 * np.array(values) for kind, values in found.items() if kind.isdigit()}
        levels = {kind: 100 * float(np.mean(values)) for kind, values in found.items() if not kind.isdigit()}
        for kind, level in levels.items():
            axes.axhline(level, color=colour, linestyle="--", linewidth=0.8, alpha=0.7)
            below = kind == "open" and begin == "pretrained"
            place = {"va": "top" if below else "bottom", "xytext": (0, -1 if below else 1)}
            words = f"{LABELS[kind]}, {begin}"
            axes.annotate(
                words, (5000, level), ha="right", color=colour, fontsize=8, textcoords="offset points", **place
            )
        means = [values.mean() for values in private.values()]
        axes.plot(list(private), means, "o-", markersize=4, color=colour, label=f"private, {begin}")
    axes.legend(frameon=False, loc="center right", fontsize=9)
    logarithmic(axes, "x")
    path.write_bytes(rendered(figure, "png"))


def table(results: dict[str, dict[str, list[float]]]) -> str:
    kinds = list(results["pretrained"])
    named = [f"private, {int(kind):,}" if kind.isdigit() else LABELS[kind] for kind in kinds]
    lines = [f"| macro AP, % | {' | '.join(named)} |", f"|---|{'---:|' * len(kinds)}"]
    for begin, found in results.items():
        cells = [f"{100 * np.mean(found[kind]):.1f}" if kind in found else "" for kind in kinds]
        lines.append(f"| {begin} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("--seeds", type=int, default=1)
    words.add_argument("--processes", type=int, default=2)
    words.add_argument("--out", type=Path, default=Path("runs/privacy"))
    given = words.parse_args()
    pretrained(given.out)
    jobs = [Job(b, k, s, given.out) for s in range(given.seeds) for b, kinds in RUNS.items() for k in kinds]
    with ProcessPoolExecutor(given.processes, multiprocessing.get_context("spawn")) as pool:
        scores = dict(zip(jobs, pool.map(play, jobs), strict=True))
    results = {
        begin: {kind: [scores[job] for job in jobs if (job.begin, job.kind) == (begin, kind)] for kind in kinds}
        for begin, kinds in RUNS.items()
    }
    here = Path(__file__).parent
    (here / "records" / "privacy.json").write_text(json.dumps(results, indent=1) + "\n")
    draw(results, here.parent / "docs" / "images" / "privacy.png")
    print(table(results))


if __name__ == "__main__":
    main()
