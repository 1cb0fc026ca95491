"""Whether Triton kernels can run is checked once; without them PyTorch's layers are used."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest
import torch

from manyeyes.models.fast import kernels


@pytest.fixture(autouse=True)
def empty_cache() -> Iterator[None]:
    kernels.triton_works.cache_clear()
    yield
    kernels.triton_works.cache_clear()


def test_images_on_a_cpu_need_no_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "find_spec", lambda name: pytest.fail("Triton is not needed on a CPU"))
    assert not kernels.can_run_on(torch.zeros(1, 3, 2, 2))


def test_without_triton_there_are_no_kernels(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(kernels, "find_spec", lambda name: None)
    assert not kernels.triton_works()
    assert capsys.readouterr().err == ""


def test_a_broken_triton_is_reported_once(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(kernels, "find_spec", lambda name: object())
    monkeypatch.setitem(sys.modules, "manyeyes.models.fast.kernels.group_norm", None)  # cannot be imported
    assert not kernels.triton_works()
    assert not kernels.triton_works()
    (warning,) = capsys.readouterr().err.splitlines()
    assert warning.startswith("Triton does not work here, so some layers are slower: import of ")
