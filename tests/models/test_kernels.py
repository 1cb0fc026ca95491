"""Whether kernels can run is found out once, and where they cannot the work goes on."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest
import torch

from manyeyes.models.fast import kernels


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    kernels._work.cache_clear()
    yield
    kernels._work.cache_clear()


def test_images_on_a_cpu_need_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "find_spec", lambda name: pytest.fail("nobody should ask"))
    assert not kernels.usable(torch.zeros(1, 3, 2, 2))


def test_without_triton_there_are_none(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(kernels, "find_spec", lambda name: None)
    assert not kernels._work()
    assert capsys.readouterr().err == ""


def test_a_triton_that_does_not_work_is_named_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(kernels, "find_spec", lambda name: object())
    monkeypatch.setitem(sys.modules, "manyeyes.models.fast.kernels.group_norm", None)  # which cannot be imported
    assert not kernels._work()
    assert not kernels._work()
    (said,) = capsys.readouterr().err.splitlines()
    assert said.startswith("Triton does not work here, so some layers are slower: import of ")
