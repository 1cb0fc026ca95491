"""FedPer compared with FedAvg and with FedAvg plus fine-tuning, by client accuracy, on CIFAR-10 or FLICKR-AES.

    python benchmarks/personal.py STORE [--models mobilenet_v1,resnet34] [--classes 4,8,10] [--size 64] [--rounds 20]
        [--processes 2] [--out runs/personal] [--record FILE] [settings of manyeyes run, for every run]

STORE is made by `manyeyes data prepare cifar10`, or `flickr_aes` (then --classes 0; images have the size in which they
were prepared). The runs are those of the recipes `fedper.figure2`, 7 and 8, with another image size and fewer rounds.
FedAvg's clients fine-tune for the epochs of one round and are evaluated again, so that one run has both results. A
finished run is not repeated, and one with fewer rounds is continued. Ctrl-C or SIGTERM ends all runs after their
current rounds, and saves them.
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
from manyeyes.training.description import environment
from manyeyes.training.processes import Train, run_parallel
from manyeyes.training.run_folder import read_events

PRINTED_NAMES = {name: printed for printed, name in MODELS.items()}
EPOCHS = 4  # of a round, and of fine-tuning
SCORES = {"FedPer": "user_mean", "FedAvg": "user_mean", "FedAvg, fine-tuned": "personalized_user_mean"}


@dataclass(frozen=True)
class PersonalRun:
    model: str
    classes: int  # per client; 0: FLICKR-AES
    is_fedper: bool
    size: int
    rounds: int

    def folder(self, out: Path) -> Path:
        data = f"{self.size}px-{self.classes}_classes" if self.classes else "flickr"
        return out / f"{self.model}-{data}-{'fedper' if self.is_fedper else 'fedavg'}"

    def overrides(self, store: Path, out: Path) -> list[str]:
        """Return the settings of a new run; later ones replace those of the recipe."""
        name, head_layers = PRINTED_NAMES[self.model], 2 if self.is_fedper else 0
        recipe = cifar_run(name, self.classes, head_layers) if self.classes else flickr_run(name, head_layers)
        settings = dict(override.split("=", 1) for override in recipe.settings)
        if not self.is_fedper:
            settings |= {"algorithm": "finetuned", "algorithm.adapt_epochs": str(EPOCHS)}
        settings |= {"data.path": str(store), "seed": "0", "folder": str(self.folder(out))}
        settings |= {"preprocess.crop": str(self.size)} if self.classes else {}
        settings |= dict(override.split("=", 1) for override in self.rounds_overrides)
        return [f"{key}={value}" for key, value in settings.items()]

    @property
    def rounds_overrides(self) -> list[str]:
        return [f"rounds={self.rounds}", f"evaluate_every={max(1, self.rounds // 2)}"]

    def remaining(self, store: Path, out: Path, extra: list[str]) -> list[str]:
        """Return the arguments of `manyeyes run` that start or continue the run; empty if it is finished."""
        folder = self.folder(out)
        if not (folder / "checkpoint.safetensors").exists():
            return [*self.overrides(store, out), *extra]
        rounds_done = int(read_events(folder / "metrics.jsonl")[-1]["round"])
        if rounds_done > self.rounds:
            raise ValueError(f"{folder} has {rounds_done} rounds, more than {self.rounds}: set another --out.")
        if rounds_done == self.rounds and (folder / "model.safetensors").exists():
            return []
        allowed = [override for override in extra if override.partition("=")[0].partition(".")[0] in RESUME_OVERRIDES]
        return [f"resume={folder}", *self.rounds_overrides, *allowed]


def run_and_report(run: PersonalRun, store: Path, out: Path, extra: list[str], train: Train) -> list[dict[str, object]]:
    """Finish a run, and return the result of each of its methods."""
    folder = run.folder(out)
    try:
        args = run.remaining(store, out, extra)
        message = train(args) if args else ""
    except ValueError as error:
        message = str(error)
    if message:  # the other runs continue
        print(f"{folder}: {message}", file=sys.stderr)
        return []
    events = read_events(folder / "metrics.jsonl")
    seconds = statistics.median(event["seconds"] for event in events[1:])
    rows = []
    for method in ("FedPer",) if run.is_fedper else ("FedAvg", "FedAvg, fine-tuned"):
        curve = {event["round"]: event[SCORES[method]] for event in events if SCORES[method] in event}
        rows.append({**vars(run), "method": method, "seconds": seconds, "user_mean": curve})
        data = f"{run.size} px, n={run.classes}" if run.classes else "FLICKR-AES"
        print(f"{run.model}, {data}, {method}: {curve}, {seconds:.2f} s per round", flush=True)
    return rows


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store", type=Path)
    parser.add_argument("--models", default=",".join(MODELS.values()))
    parser.add_argument("--classes", default="4,8,10")
    parser.add_argument("--methods", default="fedper,fedavg")
    parser.add_argument("--size", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("runs/personal"))
    parser.add_argument("--record", type=Path)
    args, extra = parser.parse_known_args(argv)
    runs = [
        PersonalRun(model, int(classes), method == "fedper", args.size, args.rounds)
        for classes in args.classes.split(",")
        for model in args.models.split(",")
        for method in args.methods.split(",")
    ]
    tasks = [partial(run_and_report, run, args.store, args.out, extra) for run in runs]
    rows = [row for run_rows in run_parallel(tasks, args.processes) for row in run_rows]
    if args.record:
        args.record.write_text(json.dumps({**environment(), "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
