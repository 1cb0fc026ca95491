"""A case: one work on one runner, measured in a process of its own; and what that process saw."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import nn


@dataclass(frozen=True)
class Case:
    """What is measured, and how."""

    work: str
    runner: str
    device: str  # cpu or cuda
    rounds: int
    warmup: int  # rounds before those that count
    users: int = 0  # 0: as many as the work says
    cohort: int = 0
    engine: str = ""  # of ours
    precision: str = ""  # "": the runner's default
    compile: bool | None = None
    workers: int | None = None
    threads: int = 0  # 0: PyTorch's choice
    processes: int = 1
    private: bool = False  # clipped, with noise on the sum

    @property
    def label(self) -> str:
        """The runner as a table calls it."""
        words = [self.engine, self.precision, "private" if self.private else ""]
        if self.processes > 1:
            words.append(f"{self.processes} processes")
        elif self.threads:
            words.append(f"{self.threads} thread{'s' * (self.threads > 1)}")
        words += [f"{self.workers} workers"] if self.workers is not None else []
        words += {None: [], True: ["compiled"], False: ["not compiled"]}[self.compile]
        name = "manyeyes" if self.runner == "ours" else self.runner
        return " ".join([name, ", ".join(filter(None, words))]).strip()


@dataclass(frozen=True, eq=False)
class Played:
    """What a runner saw: seconds and examples of every round, warm-up too, and the model at the end."""

    seconds: list[float]
    images: list[int]
    model: nn.Module


@dataclass(frozen=True)
class Measured:
    """A row of the table; `failure` says why there are no numbers, in a word or two, and `reason` in a sentence."""

    case: Case
    seconds: tuple[float, ...] = ()  # of the rounds that count
    images: tuple[int, ...] = ()
    failure: str = ""
    reason: str = ""
    host_bytes: int = 0
    gpu_bytes: int = 0
    versions: dict[str, str] = field(default_factory=dict)


def prepare(case: Case) -> torch.device:
    """PyTorch as somebody who knows it would set it: TF32 and tuned convolutions on a GPU, threads on a CPU."""
    if case.threads:
        torch.set_num_threads(case.threads)
    torch.backends.cuda.matmul.allow_tf32 = True
    torch.backends.cudnn.allow_tf32 = True
    torch.backends.cudnn.benchmark = True
    return torch.device(case.device)


def play_rounds(case: Case, model: nn.Module, play: Callable[[], int]) -> Played:
    """Time every round of a runner whose `play` does one and returns how many examples were trained on."""
    seconds, images = [], []
    for _ in range(case.warmup + case.rounds):
        began = time.perf_counter()
        images.append(play())
        wait(case.device)
        seconds.append(time.perf_counter() - began)
    return Played(seconds, images, model)


def wait(device: str) -> None:
    """Until the device has done what it was given."""
    if device == "cuda":
        torch.cuda.synchronize()
