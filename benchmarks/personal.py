"""FedPer against FedAvg and FedAvg with fine-tuning, every client's own accuracy: CIFAR-10 by classes, or FLICKR-AES.

    python benchmarks/personal.py STORE [--models mobilenet_v1,resnet34] [--classes 4,8,10] [--size 64] [--rounds 20]
        [--processes 2] [--out runs/personal] [--record FILE] [words of manyeyes run, for every run]

STORE is made by `manyeyes data prepare cifar10`, or `flickr_aes` (then --classes 0; images stay as large as they were
prepared). The runs are those of the recipes `fedper.figure2`, 7 and 8, at another size of the images and for fewer
rounds; FedAvg's clients fine-tune for one round's epochs before they are evaluated once more, so that one run has both
results. Every run is kept in its folder and is not repeated if it is there.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from manyeyes.papers.fedper import MODELS, cifar_run, flickr_run
from manyeyes.run.events import read
from manyeyes.run.folder import environment

NAMES = {word: name for name, word in MODELS.items()}
EPOCHS = 4  # of a round, and of fine-tuning
SCORES = {"FedPer": "user_mean", "FedAvg": "user_mean", "FedAvg, fine-tuned": "adapted_user_mean"}


@dataclass(frozen=True)
class Job:
    model: str
    classes: int  # of a client; 0: FLICKR-AES
    fedper: bool
    size: int
    rounds: int

    def folder(self, out: Path) -> Path:
        data = f"{self.size}px-{self.classes}_classes" if self.classes else "flickr"
        return out / f"{self.model}-{data}-{'fedper' if self.fedper else 'fedavg'}"

    def words(self, store: Path, out: Path) -> list[str]:
        name, head = NAMES[self.model], 2 if self.fedper else 0
        recipe = (cifar_run(name, self.classes, head) if self.classes else flickr_run(name, head)).settings
        tuned = [] if self.fedper else [f"algorithm.adapt_epochs={EPOCHS}"]
        half = max(1, self.rounds // 2)
        mine = [f"data.path={store}", f"rounds={self.rounds}", f"evaluate_every={half}"]
        mine += [f"augment.crop={self.size}"] if self.classes else []
        return ["algorithm=finetuned" if word == "algorithm=fedavg" else word for word in recipe] + [
            *tuned,
            *mine,
            "seed=0",
            f"folder={self.folder(out)}",
        ]


def play(job: Job, store: Path, out: Path, extra: list[str]) -> list[dict[str, object]]:
    """Train, unless that is done, and say how each method went."""
    folder = job.folder(out)
    if not (folder / "model.safetensors").exists():
        begun = (folder / "checkpoint.safetensors").exists()
        words = [f"resume={folder}"] if begun else [*job.words(store, out), *extra]
        done = subprocess.run([sys.executable, "-m", "manyeyes", "run", *words], stdout=subprocess.DEVNULL, check=False)
        if done.returncode:  # it has said why, and the others go on
            return []
    events = read(folder / "metrics.jsonl")
    seconds = statistics.median(event["seconds"] for event in events[1:])
    rows = []
    for method in ("FedPer",) if job.fedper else ("FedAvg", "FedAvg, fine-tuned"):
        curve = {event["round"]: event[SCORES[method]] for event in events if SCORES[method] in event}
        rows.append({**vars(job), "method": method, "seconds": seconds, "user_mean": curve})
        data = f"{job.size} px, n={job.classes}" if job.classes else "FLICKR-AES"
        print(f"{job.model}, {data}, {method}: {curve}, {seconds:.2f} s a round", flush=True)
    return rows


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("store", type=Path)
    words.add_argument("--models", default=",".join(MODELS.values()))
    words.add_argument("--classes", default="4,8,10")
    words.add_argument("--methods", default="fedper,fedavg")
    words.add_argument("--size", type=int, default=64)
    words.add_argument("--rounds", type=int, default=20)
    words.add_argument("--processes", type=int, default=2)
    words.add_argument("--out", type=Path, default=Path("runs/personal"))
    words.add_argument("--record", type=Path)
    given, extra = words.parse_known_args()
    jobs = [
        Job(model, int(classes), method == "fedper", given.size, given.rounds)
        for classes in given.classes.split(",")
        for model in given.models.split(",")
        for method in given.methods.split(",")
    ]
    with ThreadPoolExecutor(given.processes) as pool:
        rows = [row for some in pool.map(lambda job: play(job, given.store, given.out, extra), jobs) for row in some]
    if given.record:
        given.record.write_text(json.dumps({**environment(), "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
