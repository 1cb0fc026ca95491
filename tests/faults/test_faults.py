"""A fault at a sample of the operations of a workload; `python -m tests.faults --every` tries every operation."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.campaign import SAID, SAME, Campaign, run_faults, run_power_losses

WORKLOADS = [
    "download",
    pytest.param("prepare", marks=pytest.mark.slow),
    pytest.param("train", marks=pytest.mark.slow),
    pytest.param("resume", marks=pytest.mark.slow),
]
STRIDES = {"download": 9, "prepare": 20, "train": 60, "resume": 40}  # the operations of a test that takes seconds


@pytest.mark.parametrize("name", WORKLOADS)
def test_after_any_fault_the_next_start_continues_to_the_same_bytes_or_says_what_is_lost(
    tmp_path: Path, name: str
) -> None:
    campaign = Campaign(name, tmp_path / "root")
    tallies = run_faults(campaign, STRIDES[name], first=3)
    assert [failure for tally in tallies.values() for failure in tally.failures] == []
    assert all(tally.counts[SAME] + tally.counts[SAID] > 0 for tally in tallies.values())


@pytest.mark.parametrize("name", WORKLOADS)
def test_after_any_power_loss_the_next_start_continues_to_the_same_bytes_or_says_what_is_lost(
    tmp_path: Path, name: str
) -> None:
    campaign = Campaign(name, tmp_path / "root")
    tallies = run_power_losses(campaign, STRIDES[name] // 2, first=3, seeds=2)
    assert [failure for tally in tallies.values() for failure in tally.failures] == []
    assert all(tally.counts[SAME] + tally.counts[SAID] > 0 for tally in tallies.values())
