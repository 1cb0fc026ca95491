"""A case: one workload on one runner, timed in its own process; and its result."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import nn


@dataclass(frozen=True)
class BenchCase:
    """What is timed, and with which settings."""

    workload: str
    runner: str
    device: str  # cpu or cuda
    rounds: int
    warmup: int  # rounds before those that count
    users: int = 0  # 0: the workload's number
    cohort: int = 0
    engine: str = ""  # of manyeyes
    precision: str = ""  # "": the runner's default
    compile: bool | None = None
    workers: int | None = None
    threads: int = 0  # 0: PyTorch's default
    processes: int = 1
    private: bool = False  # clipped, with noise on the sum

    @property
    def label(self) -> str:
        """The name of the runner in a table."""
        details = [self.engine, self.precision, "private" if self.private else ""]
        if self.processes > 1:
            details.append(f"{self.processes} processes")
        elif self.threads:
            details.append(f"{self.threads} thread{'s' * (self.threads > 1)}")
        details += [f"{self.workers} workers"] if self.workers is not None else []
        details += {None: [], True: ["compiled"], False: ["not compiled"]}[self.compile]
        name = "manyeyes" if self.runner == "ours" else self.runner
        return " ".join([name, ", ".join(filter(None, details))]).strip()


@dataclass(frozen=True, eq=False)
class RunnerResult:
    """Seconds and examples of every round, warm-up included, and the final model."""

    seconds: list[float]
    images: list[int]
    model: nn.Module


@dataclass(frozen=True)
class BenchResult:
    """A row of the table; `failure` says in a few words why it has no numbers, and `reason` in a sentence."""

    case: BenchCase
    seconds: tuple[float, ...] = ()  # of the rounds that count
    images: tuple[int, ...] = ()
    failure: str = ""
    reason: str = ""
    host_bytes: int = 0
    gpu_bytes: int = 0
    versions: dict[str, str] = field(default_factory=dict)


def prepare(case: BenchCase) -> torch.device:
    """Configure PyTorch as an expert would: TF32 and tuned convolutions on a GPU, threads on a CPU."""
    if case.threads:
        torch.set_num_threads(case.threads)
    torch.backends.cuda.matmul.allow_tf32 = True
    torch.backends.cudnn.allow_tf32 = True
    torch.backends.cudnn.benchmark = True
    return torch.device(case.device)


def time_rounds(case: BenchCase, model: nn.Module, run_round: Callable[[], int]) -> RunnerResult:
    """Time every round of a runner; `run_round` returns the number of examples that were trained on."""
    seconds, images = [], []
    for _ in range(case.warmup + case.rounds):
        start = time.perf_counter()
        images.append(run_round())
        synchronize(case.device)
        seconds.append(time.perf_counter() - start)
    return RunnerResult(seconds, images, model)


def synchronize(device: str) -> None:
    """Wait until the device has finished its work."""
    if device == "cuda":
        torch.cuda.synchronize()
