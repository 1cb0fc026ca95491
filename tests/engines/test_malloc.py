"""Memory that is freed stays with the process while it trains, and goes back to the system after that."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

STEPS = """
import resource
import torch
from pathlib import Path
from manyeyes.engines.malloc import kept_memory

def pages():
    return int(Path("/proc/self/statm").read_text().split()[1])

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        big = [torch.ones(2**24), torch.ones(2**23)]  # 96 MiB, all of it written
        del big
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

before, outside = pages(), faults()
with kept_memory(torch.device("cpu")):
    faults()  # which takes it
    within, held = faults(), pages()
print(outside, within, before, held, pages())
"""


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads Linux's counts")
def test_freed_memory_is_taken_once_and_given_back_at_the_end() -> None:
    done = subprocess.run([sys.executable, "-c", STEPS], capture_output=True, text=True, check=True)
    outside, within, before, held, after = map(int, done.stdout.split())
    if outside < 100:
        pytest.skip("another C library than glibc, which keeps freed memory by itself")
    assert within < outside / 10
    assert held - before > 20_000  # pages: 96 MiB have 24,576
    assert after - before < 5_000
