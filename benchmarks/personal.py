"""FedPer against FedAvg and FedAvg with fine-tuning, every client's own accuracy: CIFAR-10 by classes, or FLICKR-AES.

    python benchmarks/personal.py STORE [--models mobilenet_v1,resnet34] [--classes 4,8,10] [--size 64] [--rounds 20]
        [--processes 2] [--out runs/personal] [--record FILE] [words of manyeyes run, for every run]

STORE is made by `manyeyes data prepare cifar10`, or `flickr_aes` (then --classes 0; images stay as large as they were
prepared). The runs are those of the recipes `fedper.figure2`, 7 and 8, at another size of the images and for fewer
rounds; FedAvg's clients fine-tune for one round's epochs before they are evaluated once more, so that one run has both
results. Every run is kept in its folder: what is there is not played again, and one of fewer rounds goes on to as many
as are asked for. Ctrl-C or SIGTERM ends all of them after their rounds under way, which are saved.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from manyeyes.config.run import RESUME_OVERRIDES
from manyeyes.papers.fedper import MODELS, cifar_run, flickr_run
from manyeyes.training.environment import environment
from manyeyes.training.processes import Train, run_parallel
from manyeyes.training.run_folder import read_events

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
        mine = [f"data.path={store}", *self.length]
        mine += [f"augment.crop={self.size}"] if self.classes else []
        return ["algorithm=finetuned" if word == "algorithm=fedavg" else word for word in recipe] + [
            *tuned,
            *mine,
            "seed=0",
            f"folder={self.folder(out)}",
        ]

    @property
    def length(self) -> list[str]:
        return [f"rounds={self.rounds}", f"evaluate_every={max(1, self.rounds // 2)}"]

    def left(self, store: Path, out: Path, extra: list[str]) -> list[str]:
        """What `manyeyes run` has to be told so that it is done; nothing if it is."""
        folder = self.folder(out)
        if not (folder / "checkpoint.safetensors").exists():
            return [*self.words(store, out), *extra]
        played = int(read_events(folder / "metrics.jsonl")[-1]["round"])
        if played > self.rounds:
            raise ValueError(f"{folder} has {played} rounds, more than {self.rounds}: choose another --out")
        if played == self.rounds and (folder / "model.safetensors").exists():
            return []
        engine = [word for word in extra if word.partition("=")[0].partition(".")[0] in RESUME_OVERRIDES]
        return [f"resume={folder}", *self.length, *engine]


def play(job: Job, store: Path, out: Path, extra: list[str], train: Train) -> list[dict[str, object]]:
    """Train, unless that is done, and say how each method went."""
    folder = job.folder(out)
    try:
        words = job.left(store, out, extra)
        wrong = train(words) if words else ""
    except ValueError as error:
        wrong = str(error)
    if wrong:  # the others go on
        print(f"{folder}: {wrong}", file=sys.stderr)
        return []
    events = read_events(folder / "metrics.jsonl")
    seconds = statistics.median(event["seconds"] for event in events[1:])
    rows = []
    for method in ("FedPer",) if job.fedper else ("FedAvg", "FedAvg, fine-tuned"):
        curve = {event["round"]: event[SCORES[method]] for event in events if SCORES[method] in event}
        rows.append({**vars(job), "method": method, "seconds": seconds, "user_mean": curve})
        data = f"{job.size} px, n={job.classes}" if job.classes else "FLICKR-AES"
        print(f"{job.model}, {data}, {method}: {curve}, {seconds:.2f} s a round", flush=True)
    return rows


def main(given_words: list[str] | None = None) -> None:
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
    given, extra = words.parse_known_args(given_words)
    jobs = [
        Job(model, int(classes), method == "fedper", given.size, given.rounds)
        for classes in given.classes.split(",")
        for model in given.models.split(",")
        for method in given.methods.split(",")
    ]
    works = [partial(play, job, given.store, given.out, extra) for job in jobs]
    rows = [row for some in run_parallel(works, given.processes) for row in some]
    if given.record:
        given.record.write_text(json.dumps({**environment(), "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
