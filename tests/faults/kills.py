"""Training that is killed at random moments, in real processes, over all engines of a CPU and kinds of state."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch

from manyeyes.training import checkpoint
from tests.faults.campaign import SAME, Tally
from tests.faults.workloads import files_below

TINY = (
    *("data.users=30", "data.images_per_user=12", "data.split=per_user", "data.coarse=4", "model=linear"),
    *("algorithm.batch_size=6", "engine.threads=1", "evaluate_every=3", "checkpoint_seconds=0"),
)
COHORT = "algorithm.cohort_size=4"
PRIVACY = (
    "privacy=central",
    "privacy.target_quantile=0.5",
    "privacy.epsilon=0",
    "privacy.noise_multiplier=0.5",
    "client_weighting=uniform",
)
CASES: dict[str, tuple[str, ...]] = {
    "reference, plain": (COHORT, "algorithm=fedadam", "engine=reference"),
    "reference, client state on disk": (COHORT, "algorithm=scaffold", "engine=reference", "client_state_cache_mib=0"),
    "reference, centralized": ("algorithm=centralized", "engine=reference", "preprocess.flip_horizontal=true"),
    "reference, adaptive privacy": (COHORT, "engine=reference", *PRIVACY, "privacy.reproducible_noise=true"),
    "reference, best model": (COHORT, "engine=reference", "data.split=users", "select_best_on=val"),
    "reference, early stopping": (
        COHORT,
        "engine=reference",
        "callbacks=[early_stopping]",
        "callbacks.early_stopping.patience=900",
    ),
    "multiprocess, plain": (COHORT, "algorithm=fedavgm", "engine=multiprocess", "engine.workers=2"),
    "multiprocess, personal layers": (
        COHORT,
        "algorithm=fedper",
        "algorithm.head_layers=1",
        "engine=multiprocess",
        "engine.workers=2",
    ),
    "vmap, client state": (COHORT, "algorithm=feddyn", "engine=vmap"),
    "multiprocess, error feedback": (COHORT, "compressor=topk", "compressor.fraction=0.1", "engine=multiprocess"),
    "auto, Ditto": (COHORT, "algorithm=ditto", "client_state_cache_mib=0"),
    "torchrun, client state": (COHORT, "algorithm=scaffold", "engine=reference"),
}
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
ENDLESS, MORE_ROUNDS = 1_000_000, 5
START_SECONDS = 3.0  # in which a process starts and sets up its run
MAX_SECONDS = 180.0


@dataclass(frozen=True)
class Case:
    """A run in a folder, which is started, killed and resumed."""

    name: str
    folder: Path

    def command(self, *args: str) -> list[str]:
        launcher = TORCHRUN if self.name.startswith("torchrun") else ()
        return [sys.executable, *launcher, "-m", "manyeyes", "run", *args]

    def start(self, rounds: int) -> list[str]:
        return self.command(*TINY, *CASES[self.name], f"rounds={rounds}", f"folder={self.folder}")

    def next_command(self) -> list[str]:
        if (self.folder / "checkpoint.safetensors").exists():
            return self.command(f"resume={self.folder}")
        return self.start(ENDLESS)

    def num_lines(self) -> int:
        metrics = self.folder / "metrics.jsonl"
        return metrics.read_bytes().count(b"\n") if metrics.exists() else 0

    @property
    def saved_round(self) -> int:
        path = self.folder / "checkpoint.safetensors"
        return checkpoint.load(path, torch.device("cpu")).state.round if path.exists() else 0


def kill_and_compare(name: str, root: Path, num_kills: int, seed: int = 0) -> Tally:
    """Kill a run at random moments, resume it to its end, and compare it with a run that was never stopped."""
    tally, rng = Tally(), random.Random(f"{name} {seed}")
    killed, uninterrupted = Case(name, root / "killed"), Case(name, root / "uninterrupted")
    for number in range(num_kills):
        if problem := kill(killed, rng):
            tally.add(f"{name}, kill {number}", problem)
            return tally
    rounds = killed.saved_round + MORE_ROUNDS
    has_checkpoint = (killed.folder / "checkpoint.safetensors").exists()
    last = killed.command(f"resume={killed.folder}", f"rounds={rounds}") if has_checkpoint else killed.start(rounds)
    for command in (last, uninterrupted.start(rounds)):
        process = subprocess.run(command, capture_output=True, text=True, timeout=MAX_SECONDS, env=_env())
        if process.returncode:
            tally.add(name, f"failed: {process.stderr}")
            return tally
    differing = [file for file in _results(killed.folder) if not _is_equal(file, killed.folder, uninterrupted.folder)]
    for _ in range(num_kills):
        tally.add(name, f"differs in {differing}" if differing else SAME)
    shutil.rmtree(killed.folder)
    shutil.rmtree(uninterrupted.folder)
    return tally


def kill(case: Case, rng: random.Random) -> str:
    """Start or continue a run and kill it, at any moment of its start or after some rounds; return what went wrong."""
    num_lines, log = case.num_lines(), case.folder.with_suffix(".log")
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as file:
        process = subprocess.Popen(
            case.next_command(), stderr=file, stdout=subprocess.DEVNULL, env=_env(), start_new_session=True
        )
    try:
        if rng.random() < 0.2:
            time.sleep(rng.uniform(0, START_SECONDS))
        else:
            deadline, target = time.monotonic() + MAX_SECONDS, num_lines + rng.randint(1, 12)
            while case.num_lines() < target and process.poll() is None:
                if time.monotonic() > deadline:
                    return "hangs"
                time.sleep(0.002)
            time.sleep(rng.uniform(0, 0.03))  # anywhere in a round, or while the checkpoint is written
        if process.poll() is not None:
            return f"ended before it was killed: {log.read_text()}"
    finally:
        for pid in _descendants(process.pid):  # those of torchrun are in sessions of their own
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait()
    return ""


def _descendants(pid: int) -> list[int]:
    """Return a process and all that it started."""
    parents = {}
    for status in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            parents[int(status.parent.name)] = int(status.read_text().rpartition(")")[2].split()[1])
    family = [pid]
    for member in family:
        family += [child for child, parent in parents.items() if parent == member]
    return family


def _results(folder: Path) -> list[str]:
    """Return the files of a finished run that must not differ."""
    return [name for name in files_below(folder) if name.endswith((".csv", ".jsonl", "model.safetensors"))]


def _is_equal(name: str, first: Path, second: Path) -> bool:
    if not (second / name).exists():
        return False
    if name.endswith(".jsonl"):
        return _events(first / name) == _events(second / name)
    return (first / name).read_bytes() == (second / name).read_bytes()


def _events(path: Path) -> list[dict[str, object]]:
    events = map(json.loads, path.read_text().splitlines())
    return [{name: value for name, value in event.items() if name != "seconds"} for event in events]


def _env() -> dict[str, str]:
    return os.environ | {"OMP_NUM_THREADS": "1"}
