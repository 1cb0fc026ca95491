"""Compiled steps have the gradients of plain ones, or are not used."""

from __future__ import annotations

import copy
import gc
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from manyeyes.algorithms import fedavg
from manyeyes.engines.gpu import step, trainer
from manyeyes.engines.gpu.compiling import capture_graph, compiled, first_bad_gradient
from manyeyes.models.flat import FlatModel
from tests.engines.engine_runs import relative_error
from tests.engines.gpu_runs import POPULATION, train_on

Function = Callable[..., Any]
ALGORITHM = fedavg(batch_size=16, lr=0.05)


def perceptron() -> nn.Sequential:
    return nn.Sequential(nn.Flatten(), nn.Linear(432, 8), nn.ReLU(), nn.Linear(8, 5))


def batch_norm_model() -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(400, 5))


def replace_compiler(monkeypatch: pytest.MonkeyPatch, compiler: Callable[[Function], Function]) -> None:
    """Compile the gradients of steps by another compiler, and nothing else at all."""
    monkeypatch.setattr(step, "compiled", compiler)
    monkeypatch.setattr(trainer, "compiled", lambda function: function)


@pytest.mark.slow
def test_a_compiled_step_equals_a_plain_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    called: list[str] = []

    def record_calls(function: Function) -> Function:
        fast = compiled(function)

        def call(*args: Any) -> Any:
            called.append(function.__name__)
            return fast(*args)

        return call

    population = replace(POPULATION, offsets=np.array([0, 32, 64]), user_ids=np.arange(2), user_names=None)
    module = perceptron()
    expected, _, _ = train_on("vmap", ALGORITHM, module, population)
    monkeypatch.setattr(step, "compiled", record_calls)
    actual, _, _ = train_on("vmap", ALGORITHM, module, population, compile=True)
    assert relative_error(actual, expected) < 1e-5
    assert called.count("loss") > 2  # when it is checked, and in every step
    assert capsys.readouterr().err == ""


@pytest.mark.slow
def test_a_gradient_is_compiled_with_the_same_settings_in_another_thread(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """On a GPU it is, and kernels chosen by timing would not repeat bit for bit."""
    from torch._inductor import config, graph

    settings: list[tuple[bool, bool]] = []
    run = graph.GraphLowering.run

    def record_settings(*args: Any, **options: Any) -> Any:
        settings.append((config.deterministic, config.reorder_for_peak_memory))
        return run(*args, **options)

    monkeypatch.setattr(graph.GraphLowering, "run", record_settings)
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    values = torch.randn(7, requires_grad=True)
    loss = compiled(lambda values: values.sin().square().sum())(values)
    thread = threading.Thread(target=loss.backward)
    thread.start()
    thread.join()
    assert settings == [(True, False)] * 2
    torch.testing.assert_close(values.grad, (2 * values).detach().sin())


def test_of_exact_batches_only_full_ones_are_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    batch_sizes: set[int] = set()

    def record_sizes(function: Function) -> Function:
        def call(*args: Any) -> Any:
            if function.__name__ == "loss":
                batch_sizes.add(args[2].shape[1])
            return function(*args)

        return call

    module = batch_norm_model()
    expected, _, _ = train_on("cuda_graphs", ALGORITHM, module)
    replace_compiler(monkeypatch, record_sizes)
    actual, _, _ = train_on("cuda_graphs", ALGORITHM, module, compile=True)
    assert torch.equal(actual, expected)
    assert batch_sizes == {16}


def test_a_compiler_that_loses_a_gradient_is_not_trusted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def without_gradient(function: Function) -> Function:
        """Give the right values and no gradient of one layer, as Inductor once did."""

        def loss(pieces: tuple[Tensor], *rest: Any) -> Tensor:
            (theta,) = pieces
            return function((torch.cat([theta[:, :300].detach(), theta[:, 300:]], 1),), *rest)

        return loss if function.__name__ == "loss" else function

    expected, _, _ = train_on("cuda_graphs", ALGORITHM)
    replace_compiler(monkeypatch, without_gradient)
    actual, _, _ = train_on("cuda_graphs", ALGORITHM, compile=True)
    assert torch.equal(actual, expected)
    assert "the compiled gradient of conv1.weight has" in capsys.readouterr().err


class Doubling(nn.Sequential):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


def test_fast_layers_that_compute_something_else_are_not_trusted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    module = perceptron()
    make = step.StepCompiler.make

    def make_with_wrong_layers(self: step.StepCompiler, *args: Any) -> step.StepFunctions:
        self.engine.model = FlatModel(Doubling(*copy.deepcopy(module)))
        return make(self, *args)

    expected, _, _ = train_on("cuda_graphs", ALGORITHM, module)
    replace_compiler(monkeypatch, lambda function: function)
    monkeypatch.setattr(step.StepCompiler, "make", make_with_wrong_layers)
    actual, _, _ = train_on("cuda_graphs", ALGORITHM, module, compile=True)
    assert torch.equal(actual, expected)
    assert "these run uncompiled" in capsys.readouterr().err  # whichever parameter is worst


def test_a_step_is_checked_in_training_mode_even_if_the_model_was_in_evaluation_mode(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    replace_compiler(monkeypatch, lambda function: function)
    train_on("cuda_graphs", ALGORITHM, batch_norm_model().eval(), compile=True)
    assert capsys.readouterr().err == ""


def test_training_goes_on_without_a_compiler_that_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(function: Function) -> Function:
        def fail(*args: Any) -> Any:
            raise RuntimeError("no compiler on this machine\nand more")

        return fail if function.__name__ in ("loss", "preprocess") else function

    replace_compiler(monkeypatch, broken)
    train_on("cuda_graphs", ALGORITHM, compile=True)
    assert "cannot be compiled and runs uncompiled: no compiler on this machine\n" in capsys.readouterr().err


def test_a_wrong_gradient_of_one_parameter_is_detected() -> None:
    torch.manual_seed(0)
    exact = torch.randn(1, 100)
    plain = exact + 1e-3 * torch.randn(1, 100)
    sizes = {"a": 90, "b": 10}
    assert first_bad_gradient(sizes, plain, plain, exact) is None
    lost = plain.clone()
    lost[:, 90:] = 0
    bad = first_bad_gradient(sizes, lost, plain, exact)
    assert bad is not None
    assert bad[0] == "b"
    lost[:, 0] = torch.nan
    assert first_bad_gradient(sizes, lost, plain, exact) is not None


def test_no_garbage_is_collected_while_a_graph_is_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Garbage may be the graphs of an earlier run, which cannot end during a capture."""
    monkeypatch.setattr(torch, "cuda", MagicMock())
    is_collecting: list[bool] = []
    capture_graph(lambda: is_collecting.append(gc.isenabled()), MagicMock())
    assert is_collecting == [True, False]
    assert gc.isenabled()
