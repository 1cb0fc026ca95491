"""Freed memory stays with the process while it trains, and is returned to the system afterwards."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

STEPS = """
import resource
import torch
from pathlib import Path
from manyeyes.engines.base import retained_memory

def pages():
    return int(Path("/proc/self/statm").read_text().split()[1])

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        tensors = [torch.ones(2**24), torch.ones(2**23)]  # 96 MiB, all of it written
        del tensors
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

pages_before, faults_outside = pages(), faults()
with retained_memory(torch.device("cpu")):
    faults()  # the process requests the memory
    faults_inside, pages_inside = faults(), pages()
print(faults_outside, faults_inside, pages_before, pages_inside, pages())
"""


@pytest.mark.slow  # starts a Python process
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads Linux's counts")
def test_memory_is_requested_once_and_returned_at_the_end() -> None:
    done = subprocess.run([sys.executable, "-c", STEPS], capture_output=True, text=True, check=True)
    faults_outside, faults_inside, pages_before, pages_inside, pages_after = map(int, done.stdout.split())
    if faults_outside < 100:
        pytest.skip("a C library other than glibc, which retains freed memory by default")
    assert faults_inside < faults_outside / 10
    assert pages_inside - pages_before > 20_000  # 96 MiB are 24,576 pages
    assert pages_after - pages_before < 5_000
