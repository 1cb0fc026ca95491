"""Run inputs in forked processes with a limit on time and memory, and classify what happens."""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import resource
import select
import shutil
import signal
import tempfile
import time
import traceback
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from manyeyes.cli import one_line
from tests.fuzz.mutations import mutate
from tests.fuzz.targets import Target

HANG_SECONDS = 60.0  # of one input, before it counts as a hang
MAX_SENTENCE = 1500  # characters
MARGIN_BYTES = 64 * 2**20


@dataclass(frozen=True)
class Failure:
    """What went wrong with an input."""

    target: str
    index: int
    reason: str  # in one line; failures with the same reason are of the same kind
    detail: str = ""


@dataclass(frozen=True)
class Progress:
    """The outcome of some inputs of a target."""

    target: str
    inputs: int
    refused: int  # ended in a sentence
    slowest_seconds: float
    failures: tuple[Failure, ...]


@dataclass(frozen=True)
class Case:
    """A target with its valid files."""

    target: Target
    files: dict[str, bytes]  # by path

    @staticmethod
    def create(target: Target) -> Case:
        with tempfile.TemporaryDirectory(prefix="fuzz-") as temp, quiet():
            folder = Path(temp, "base")
            folder.mkdir()
            target.write(folder)
            paths = sorted(path for path in folder.rglob("*") if path.is_file())
            return Case(target, {str(path.relative_to(folder)): path.read_bytes() for path in paths})

    @property
    def name(self) -> str:
        return self.target.name

    @property
    def memory_bytes(self) -> int:
        return self.target.memory_bytes

    def check(self, seed: int, index: int, folder: Path) -> tuple[str, str]:
        """Read an input: return "", "refused", or why it is a failure, and a traceback."""
        return outcome(self, self.input(seed, index), folder / "input")

    def mutated_names(self) -> list[str]:
        return sorted(name for name in self.files if Path(name).match(self.target.files) or self.target.files == "**/*")

    def input(self, seed: int, index: int) -> dict[str, bytes]:
        """Return the files of one input: the valid ones, of which one or two are mutated."""
        rng = random.Random(f"{seed}/{self.target.name}/{index}")
        names = self.mutated_names()
        changed = {
            name: mutate(name, self.files[name], rng)
            for name in rng.sample(names, min(len(names), rng.choice((1, 1, 1, 2))))
        }
        if rng.random() < 0.02:
            changed = {}  # the file is missing
            return {name: data for name, data in self.files.items() if name != rng.choice(names)}
        return self.files | changed


def outcome(case: Case, files: dict[str, bytes], folder: Path) -> tuple[str, str]:
    """Read the files of an input: return "", "refused", or why it is a failure, and a traceback."""
    shutil.rmtree(folder, ignore_errors=True)
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    try:
        with quiet():
            case.target.read(folder)
    except case.target.allowed:
        return "refused", ""
    except (ValueError, OSError) as error:
        reason = sentence_problem(error, case, folder)
        return (reason, traceback.format_exc()) if reason else ("refused", "")
    except BaseException as error:
        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "manyeyes" in frame.filename] or [
            traceback.extract_tb(error.__traceback__)[-1]
        ]
        place = f"{Path(frames[-1].filename).name}:{frames[-1].name}"
        return f"{type(error).__name__} in {place}", traceback.format_exc()
    return "", ""


def sentence_problem(error: Exception, case: Case, folder: Path) -> str:
    """Return what is wrong with the sentence that a user reads, or an empty string."""
    sentence = one_line(str(error))  # as the command prints it
    if isinstance(error, OSError) and error.strerror:
        sentence = one_line(f"{error.filename or 'a file'}: {error.strerror}")
    kind = type(error).__name__
    if type(error) is not ValueError and not isinstance(error, OSError):
        return f"{kind}: {sentence[:200]}"  # such as UnicodeDecodeError: not one of ours
    if len(sentence) > MAX_SENTENCE:
        return f"{kind} of {len(sentence)} characters: {sentence[:120]!r}"
    names = {Path(name).name for name in case.files} | set(case.target.words) | {str(folder)}
    if not any(name in sentence for name in names):
        return f"{kind} without a name: {sentence[:200]}"
    return ""


class Checked(Protocol):
    """What can be run in a worker: a reader with its files, or settings."""

    @property
    def name(self) -> str: ...

    @property
    def memory_bytes(self) -> int: ...

    def check(self, seed: int, index: int, folder: Path) -> tuple[str, str]: ...


def fuzz(case: Checked, seed: int, start: int, count: int, seconds: float = float("inf")) -> Progress:
    """Run a number of inputs, or as many as there is time for, in processes that are replaced where they die."""
    failures: list[Failure] = []
    done = refused = 0
    slowest = 0.0
    deadline = time.monotonic() + seconds
    index = start
    while index < start + count and time.monotonic() < deadline:
        for line in _run_worker(case, seed, index, start + count, deadline):
            done, index, slowest = done + 1, line["index"] + 1, max(slowest, line["seconds"])
            refused += line["reason"] == "refused"
            if line["reason"] not in ("", "refused"):
                failures.append(Failure(case.name, line["index"], line["reason"], line["detail"]))
    return Progress(case.name, done, refused, slowest, tuple(failures))


def _run_worker(case: Checked, seed: int, index: int, end: int, deadline: float) -> Iterator[dict[str, Any]]:
    """Fork a process and yield the outcome of each of its inputs; the last one may have killed it."""
    read, write = os.pipe()
    folder = Path(tempfile.mkdtemp(prefix="fuzz-"))
    pid = os.fork()
    if not pid:
        os.close(read)
        _work(case, seed, index, end, deadline, write, folder)
    os.close(write)
    buffer = b""
    started = time.monotonic()
    try:
        while True:
            ready, _, _ = select.select([read], [], [], HANG_SECONDS)
            chunk = os.read(read, 2**20) if ready else b""
            if not chunk:
                os.kill(pid, signal.SIGKILL)
                status = os.waitpid(pid, 0)[1]
                pid = 0
                if ready and os.WIFEXITED(status) and os.WEXITSTATUS(status) == 0:
                    return
                reason = f"killed by signal {os.WTERMSIG(status)}" if ready else f"hang of {HANG_SECONDS:g} s"
                if ready and os.WIFEXITED(status):
                    reason = f"the process ended with code {os.WEXITSTATUS(status)}"
                yield {"index": index, "reason": reason, "detail": "", "seconds": time.monotonic() - started}
                return
            *lines, buffer = (buffer + chunk).split(b"\n")
            for line in lines:
                record = json.loads(line)
                index, started = record["index"] + 1, time.monotonic()
                yield record
    finally:
        if pid:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        os.close(read)
        shutil.rmtree(folder, ignore_errors=True)


def _work(case: Checked, seed: int, index: int, end: int, deadline: float, pipe: int, folder: Path) -> None:
    """Run inputs in this process and end it."""
    code = 1
    try:
        import torch

        torch.set_num_threads(1)
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        limit_memory(case.memory_bytes)
        os.chdir(folder)
        while index < end and time.monotonic() < deadline:
            start = time.monotonic()
            reason, detail = case.check(seed, index, folder)
            record = {"index": index, "reason": reason, "detail": detail[-3000:], "seconds": time.monotonic() - start}
            os.write(pipe, json.dumps(record).encode() + b"\n")
            index += 1
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def limit_memory(num_bytes: int) -> None:
    """Let this process allocate this much more memory than it has."""
    with open("/proc/self/status") as file:
        data = next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmData"))
    limit = data + num_bytes + MARGIN_BYTES
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Suppress warnings and what is printed."""
    with (
        warnings.catch_warnings(),
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()),
    ):
        warnings.simplefilter("ignore")
        yield


def save(case: Case, failure: Failure, seed: int, corpus: Path) -> None:
    """Keep the files of a failing input that differ from the valid ones, in a folder named after the failure."""
    kind = "".join(c if c.isalnum() else "_" for c in failure.reason.split(":")[0])[:60].strip("_")
    folder = corpus / case.target.name / f"{kind}-{seed}-{failure.index}"
    for name, data in case.input(seed, failure.index).items():
        if data != case.files[name]:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(data)
