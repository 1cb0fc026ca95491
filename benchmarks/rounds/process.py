"""Times a case in its own process, and measures the process's peak memory from outside."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from dataclasses import asdict
from pathlib import Path

import torch

from benchmarks.rounds.case import BenchCase, BenchResult

POLL_SECONDS = 0.2  # between two measurements of the memory
ROOT = Path(__file__).parents[2]  # of the repository, for an interpreter without manyeyes


def time_case(case: BenchCase, python: str = sys.executable, limit: float = 900.0) -> BenchResult:
    """Run a case; if it fails, the result says why."""
    command = [python, "-m", "benchmarks.rounds.subprocess_main", json.dumps(asdict(case)), "watched"]
    if case.processes > 1:
        command[1:2] = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={case.processes}", "-m"]
    paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    env = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
    if case.device == "cpu":
        env["CUDA_VISIBLE_DEVICES"] = ""
    idle, host, gpu = _gpu_used(case.device), 0, 0
    deadline = time.monotonic() + limit
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as log:
        signals: list[int] = []
        # after SIGTERM, too, the process must not outlive this one
        old_handler = signal.signal(signal.SIGTERM, lambda number, _: signals.append(number))
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=out, stderr=log, text=True, env=env, start_new_session=True
        )
        try:
            while process.poll() is None and time.monotonic() < deadline and not signals:
                host, gpu = max(host, host_bytes(process.pid)), max(gpu, _gpu_used(case.device) - idle)
                time.sleep(POLL_SECONDS)
            timed_out = process.poll() is None
        finally:
            with contextlib.suppress(ProcessLookupError):  # with its children
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            signal.signal(signal.SIGTERM, old_handler)
        if signals:
            sys.exit(143)
        out.seek(0)
        log.seek(0)
        answers = [line for line in out.read().splitlines() if line.startswith("{")]
        last_line = (log.read().strip().splitlines() or [""])[-1]
    if timed_out:
        return BenchResult(
            case, failure="too slow", reason=f"stopped after {limit:.0f} s", host_bytes=host, gpu_bytes=gpu
        )
    if not answers:
        return BenchResult(case, failure="failed", reason=f"ended with code {process.returncode}: {last_line}")
    answer = json.loads(answers[-1])
    if "failure" in answer:
        return BenchResult(case, **answer)
    seconds, images = tuple(answer["seconds"]), tuple(answer["images"])
    return BenchResult(case, seconds, images, "", "", host, gpu, answer["versions"])


def process_tree(root: int) -> list[int]:
    """Return the ids of a process and its descendants (on Linux)."""
    children = defaultdict(list)
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has just ended
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            children[parent].append(int(entry.name))
    tree = [root]
    for pid in tree:
        tree += children[pid]
    return tree


def host_bytes(root: int) -> int:
    """Return the memory of a process and its descendants: private pages of each, and the largest shared part."""
    private, max_shared = 0, 0
    for pid in process_tree(root):
        with contextlib.suppress(OSError):
            resident, shared = map(int, Path(f"/proc/{pid}/statm").read_text().split()[1:3])
            private, max_shared = private + resident - shared, max(max_shared, shared)
    return os.sysconf("SC_PAGE_SIZE") * (private + max_shared)


def _gpu_used(device: str) -> int:
    if device != "cuda":
        return 0
    free, total = torch.cuda.mem_get_info()
    return total - free
