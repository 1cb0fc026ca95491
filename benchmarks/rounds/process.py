"""A case in a process of its own, watched from outside: its numbers, and the most memory that it held."""

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

from benchmarks.rounds.case import Case, Measured

LOOK = 0.2  # seconds between two looks at the memory
ROOT = Path(__file__).parents[2]  # where manyeyes is, for an interpreter that has not installed it


def measure(case: Case, python: str = sys.executable, limit: float = 900.0) -> Measured:
    """Run a case; whatever goes wrong there is a row that says so."""
    command = [python, "-m", "benchmarks.rounds.one", json.dumps(asdict(case)), "watched"]
    if case.processes > 1:
        command[1:2] = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={case.processes}", "-m"]
    paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    env = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
    if case.device == "cpu":
        env["CUDA_VISIBLE_DEVICES"] = ""
    idle, host, gpu = _gpu_used(case.device), 0, 0
    ends = time.monotonic() + limit
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as log:
        asked: list[int] = []
        before = signal.signal(signal.SIGTERM, lambda number, _: asked.append(number))  # so that it does not outlive us
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=out, stderr=log, text=True, env=env, start_new_session=True
        )
        try:
            while process.poll() is None and time.monotonic() < ends and not asked:
                host, gpu = max(host, host_bytes(process.pid)), max(gpu, _gpu_used(case.device) - idle)
                time.sleep(LOOK)
            late = process.poll() is None
        finally:
            with contextlib.suppress(ProcessLookupError):  # also what it may have left behind
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            signal.signal(signal.SIGTERM, before)
        if asked:
            sys.exit(143)
        out.seek(0)
        log.seek(0)
        said = [line for line in out.read().splitlines() if line.startswith("{")]
        last = (log.read().strip().splitlines() or [""])[-1]
    if late:
        return Measured(case, failure="too slow", reason=f"stopped after {limit:.0f} s", host_bytes=host, gpu_bytes=gpu)
    if not said:
        return Measured(case, failure="failed", reason=f"ended with code {process.returncode}: {last}")
    seen = json.loads(said[-1])
    if "failure" in seen:
        return Measured(case, **seen)
    return Measured(case, tuple(seen["seconds"]), tuple(seen["images"]), "", "", host, gpu, seen["versions"])


def family(root: int) -> list[int]:
    """A process and its descendants, as Linux lists them."""
    children = defaultdict(list)
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has just ended
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            children[parent].append(int(entry.name))
    found = [root]
    for process in found:
        found += children[process]
    return found


def host_bytes(root: int) -> int:
    """What a process and its descendants hold: private pages of each, and the largest part that one of them shares."""
    private, most = 0, 0
    for process in family(root):
        with contextlib.suppress(OSError):
            resident, shared = map(int, Path(f"/proc/{process}/statm").read_text().split()[1:3])
            private, most = private + resident - shared, max(most, shared)
    return os.sysconf("SC_PAGE_SIZE") * (private + most)


def _gpu_used(device: str) -> int:
    if device != "cuda":
        return 0
    free, total = torch.cuda.mem_get_info()
    return total - free
