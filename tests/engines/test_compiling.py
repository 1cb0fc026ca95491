"""Compiled steps: the gradients of plain ones, or not used."""

from __future__ import annotations

import copy
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from manyeyes.engines.compiling import compiled, first_bad_gradient
from torch import Tensor, nn

from manyeyes.algorithms import fedavg
from manyeyes.engines.gpu import engine as lanes
from manyeyes.engines.gpu import step as stepping
from manyeyes.models.flat import FlatModel
from tests.engines.gpu_runs import PEOPLE, far, game


def test_a_compiled_step_equals_a_plain_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    called = []

    def watched(function: Any) -> Any:
        fast = compiled(function)
        return lambda *arguments: called.append(function.__name__) or fast(*arguments)

    people = replace(PEOPLE, offsets=np.array([0, 32, 64]), users=np.arange(2), names=None)
    module = nn.Sequential(nn.Flatten(), nn.Linear(432, 8), nn.ReLU(), nn.Linear(8, 5))
    wanted, _, _ = game("vmap", fedavg(batch_size=16, lr=0.05), module, people)
    monkeypatch.setattr(stepping, "compiled", watched)
    found, _, _ = game("vmap", fedavg(batch_size=16, lr=0.05), module, people, compile=True)
    assert far(found, wanted) < 1e-5
    assert called.count("loss") > 2  # when it was tried, and in every step
    assert capsys.readouterr().err == ""


def test_a_gradient_is_compiled_with_the_same_settings_in_another_thread(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As that of a GPU is: kernels chosen by timing would not repeat bit for bit."""
    from torch._inductor import config, graph

    seen = []

    class Watched(graph.GraphLowering):
        def run(self, *arguments: Any) -> Any:
            seen.append((config.deterministic, config.reorder_for_peak_memory))
            return super().run(*arguments)

    monkeypatch.setattr("torch._inductor.compile_fx.GraphLowering", Watched)
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    numbers = torch.randn(7, requires_grad=True)
    loss = compiled(lambda numbers: numbers.sin().square().sum())(numbers)
    thread = threading.Thread(target=loss.backward)
    thread.start()
    thread.join()
    assert seen == [(True, False)] * 2
    torch.testing.assert_close(numbers.grad, (2 * numbers).detach().sin())


def test_of_exact_batches_only_full_ones_are_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = set()

    def watched(function: Any) -> Any:
        def called(*arguments: Any) -> Any:
            sizes.add(arguments[2].shape[1] if function.__name__ == "loss" else 16)
            return function(*arguments)

        return called

    module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(400, 5))
    wanted, _, _ = game("cuda_graphs", fedavg(batch_size=16, lr=0.05), module)
    monkeypatch.setattr(stepping, "compiled", watched)
    found, _, _ = game("cuda_graphs", fedavg(batch_size=16, lr=0.05), module, compile=True)
    assert torch.equal(found, wanted)
    assert sizes == {16}


def test_a_compiler_that_loses_a_gradient_is_not_trusted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def lossy(function: Any) -> Any:
        """As Inductor once did: right values, and no gradient of one layer."""

        def loss(pieces: tuple[Tensor], *rest: Any) -> Tensor:
            (theta,) = pieces
            return function((torch.cat([theta[:, :300].detach(), theta[:, 300:]], 1),), *rest)

        return loss if function.__name__ == "loss" else function

    wanted, _, _ = game("cuda_graphs", fedavg(batch_size=16, lr=0.05))
    monkeypatch.setattr(stepping, "compiled", lossy)
    found, _, _ = game("cuda_graphs", fedavg(batch_size=16, lr=0.05), compile=True)
    assert torch.equal(found, wanted)
    assert "the compiled gradient of conv1.weight is" in capsys.readouterr().err


def test_layers_that_compute_something_else_are_not_trusted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Double(nn.Sequential):
        def forward(self, x: Tensor) -> Tensor:
            return 2 * super().forward(x)

    module = nn.Sequential(nn.Flatten(), nn.Linear(432, 8), nn.Tanh(), nn.Linear(8, 5))
    wanted, _, _ = game("cuda_graphs", fedavg(batch_size=16, lr=0.05), module)
    monkeypatch.setattr(stepping, "compiled", lambda plain: plain)
    monkeypatch.setattr(
        lanes, "Steps", lambda model, *rest: stepping.Steps(FlatModel(Double(*copy.deepcopy(model.module))), *rest)
    )
    found, _, _ = game("cuda_graphs", fedavg(batch_size=16, lr=0.05), module, compile=True)
    assert torch.equal(found, wanted)
    assert "these run uncompiled" in capsys.readouterr().err  # whichever parameter is worst


def test_a_step_is_compared_with_a_model_that_trains_whatever_was_done_with_the_one_given(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(stepping, "compiled", lambda plain: plain)
    module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(400, 5))
    game("cuda_graphs", fedavg(batch_size=16, lr=0.05), module.eval(), compile=True)
    assert capsys.readouterr().err == ""


def test_a_compiler_that_fails_is_done_without(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(function: Any) -> Any:
        def fail(*arguments: Any) -> Any:
            raise RuntimeError("no compiler here\nand more")

        return fail if function.__name__ in ("loss", "look") else function

    monkeypatch.setattr(stepping, "compiled", broken)
    game("cuda_graphs", fedavg(batch_size=16, lr=0.05), compile=True)
    assert "cannot be compiled and runs uncompiled: no compiler here\n" in capsys.readouterr().err


def test_a_gradient_that_is_wrong_in_one_parameter_is_found() -> None:
    exact = torch.randn(1, 100)
    plain = exact + 1e-3 * torch.randn(1, 100)
    names = {"a": 90, "b": 10}
    assert first_bad_gradient(names, plain, plain, exact) is None
    lost = plain.clone()
    lost[:, 90:] = 0
    wrong = first_bad_gradient(names, lost, plain, exact)
    assert wrong is not None
    assert wrong[0] == "b"
    lost[:, 0] = torch.nan
    assert first_bad_gradient(names, lost, plain, exact) is not None
