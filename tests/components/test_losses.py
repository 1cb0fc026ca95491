"""The losses, against torch, the formulas of the papers and every way in which an engine runs them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from manyeyes.algorithms import fedavg
from manyeyes.components import AllClients
from manyeyes.components.losses import BinaryCrossEntropy, CrossEntropy, Focal, LabelSmoothing, default_loss
from manyeyes.core.algorithm import Loss
from manyeyes.core.population import Labels, MultiLabels, Population, SingleLabels
from manyeyes.core.registry import build, describe, names

IDS = torch.tensor([0, 2, 1, 2])
HOT = torch.tensor([[1.0, 0, 1], [0, 0, 0], [1, 1, 1], [0, 1, 0]])
SINGLE = [CrossEntropy(), LabelSmoothing(0.2), Focal(0.5), Focal(2.0)]
MULTI = [BinaryCrossEntropy(), LabelSmoothing(0.2), Focal(0.5), Focal(2.0)]
CASES = [(loss, IDS) for loss in SINGLE] + [(loss, HOT) for loss in MULTI]


def some_outputs(seed: int = 0) -> Tensor:
    return 3 * torch.randn(4, 3, generator=torch.Generator().manual_seed(seed))


def population(labels: Labels) -> Population:
    return Population.from_arrays(np.zeros((2, 1, 1, 3), np.uint8), labels, [0, 1])


def single_labels() -> SingleLabels:
    return SingleLabels(np.array([0, 1]), ("cat", "dog"))


def multi_labels() -> MultiLabels:
    return MultiLabels.from_lists([[0], [0, 1]], ("cat", "dog"))


def test_there_are_four_losses() -> None:
    assert set(names("loss")) >= {"cross_entropy", "binary_cross_entropy", "label_smoothing", "focal"}


@pytest.mark.parametrize("loss", [CrossEntropy(), BinaryCrossEntropy(), LabelSmoothing(0.3), Focal(1.5)])
def test_a_loss_is_built_again_from_its_description(loss: Loss) -> None:
    assert build("loss", describe("loss", loss)) == loss


def test_the_default_loss_depends_on_the_kind_of_labels() -> None:
    assert default_loss(multi=False) == CrossEntropy()
    assert default_loss(multi=True) == BinaryCrossEntropy()


def test_the_default_losses_are_those_of_torch_to_the_last_bit() -> None:
    outputs = some_outputs()
    assert torch.equal(CrossEntropy()(outputs, IDS), F.cross_entropy(outputs, IDS, reduction="none"))
    expected = F.binary_cross_entropy_with_logits(outputs, HOT, reduction="none").mean(1)
    assert torch.equal(BinaryCrossEntropy()(outputs, HOT), expected)


def test_label_smoothing_of_one_label_spreads_the_target_over_all_classes() -> None:
    outputs = some_outputs()
    targets = 0.7 * F.one_hot(IDS, 3) + 0.3 / 3
    expected = -(targets * outputs.log_softmax(1)).sum(1)
    torch.testing.assert_close(LabelSmoothing(0.3)(outputs, IDS), expected)


def test_label_smoothing_of_several_labels_moves_each_target_toward_a_half() -> None:
    outputs = some_outputs()
    probabilities = outputs.sigmoid()
    targets = torch.where(HOT == 1, 0.85, 0.15)  # smoothing 0.3
    expected = -(targets * probabilities.log() + (1 - targets) * (1 - probabilities).log()).mean(1)
    torch.testing.assert_close(LabelSmoothing(0.3)(outputs, HOT), expected)


def test_focal_loss_of_one_label_has_the_factor_of_the_paper() -> None:
    outputs = torch.tensor([[0.0, 0.0], [3.0, 0.0]]).log_softmax(1)
    p = torch.tensor([0.0, 3.0]).sigmoid()
    torch.testing.assert_close(Focal(2.0)(outputs, torch.tensor([0, 0])), -((1 - p) ** 2) * p.log())


def test_focal_loss_of_several_labels_has_a_factor_for_each_class() -> None:
    outputs = some_outputs()
    p = torch.where(HOT == 1, outputs.sigmoid(), 1 - outputs.sigmoid())
    torch.testing.assert_close(Focal(2.0)(outputs, HOT), (-((1 - p) ** 2) * p.log()).mean(1))


@pytest.mark.parametrize(("targets", "plain"), [(IDS, CrossEntropy()), (HOT, BinaryCrossEntropy())])
@pytest.mark.parametrize("loss", [Focal(0.0), LabelSmoothing(0.0)])
def test_without_focus_or_smoothing_the_loss_is_the_plain_one(loss: Loss, targets: Tensor, plain: Loss) -> None:
    outputs = some_outputs()
    torch.testing.assert_close(loss(outputs, targets), plain(outputs, targets), rtol=1e-6, atol=0)


@pytest.mark.parametrize("gamma", [0.0, 0.5, 1.0, 2.0])
def test_focal_loss_has_a_finite_gradient_where_the_model_is_certain(gamma: float) -> None:
    outputs = torch.tensor([[200.0, 0.0], [-200.0, 0.0]], requires_grad=True)
    Focal(gamma)(outputs, torch.tensor([0, 0])).sum().backward()
    assert outputs.grad is not None and outputs.grad.isfinite().all()


@pytest.mark.parametrize(("loss", "targets"), CASES)
def test_a_loss_gives_one_value_for_each_example(loss: Loss, targets: Tensor) -> None:
    outputs = some_outputs()
    values = loss(outputs, targets)
    assert values.shape == (4,)
    torch.testing.assert_close(values, torch.cat([loss(outputs[i : i + 1], targets[i : i + 1]) for i in range(4)]))


@pytest.mark.parametrize(("loss", "targets"), CASES)
def test_vmap_gives_each_client_its_own_gradient(loss: Loss, targets: Tensor) -> None:
    outputs = torch.stack([some_outputs(1), some_outputs(2)])
    gradient = torch.func.grad(lambda out, target: loss(out, target).sum())
    together = torch.func.vmap(gradient, in_dims=(0, None))(outputs, targets)
    torch.testing.assert_close(together, torch.stack([gradient(out, targets) for out in outputs]))


@pytest.mark.slow
@pytest.mark.parametrize(("loss", "targets"), CASES)
def test_a_compiled_loss_is_one_graph_with_the_same_values(loss: Loss, targets: Tensor) -> None:
    compiled = torch.compile(loss.__call__, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(some_outputs(), targets), loss(some_outputs(), targets))


@pytest.mark.gpu
@pytest.mark.parametrize(("loss", "targets"), CASES)
def test_a_captured_loss_replays_on_new_outputs(loss: Loss, targets: Tensor) -> None:
    outputs, targets = some_outputs(1).cuda(), targets.cuda()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        loss(outputs, targets)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        values = loss(outputs, targets)
    outputs.copy_(some_outputs(2))
    graph.replay()
    torch.testing.assert_close(values, loss(outputs, targets))


def test_an_option_out_of_bounds_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"loss\.smoothing is 1"):
        LabelSmoothing(1.0)
    with pytest.raises(ValueError, match=r"loss\.gamma is -1"):
        Focal(-1.0)


@pytest.mark.parametrize(("loss", "labels", "advice"), [
    (CrossEntropy(), multi_labels(), "loss=binary_cross_entropy"),
    (BinaryCrossEntropy(), single_labels(), "loss=cross_entropy"),
])  # fmt: skip
def test_a_loss_for_the_other_kind_of_labels_is_refused(loss: Loss, labels: Labels, advice: str) -> None:
    with pytest.raises(ValueError, match=f"use {advice}"):
        replace(fedavg(), sampler=AllClients(), loss=loss).validate(population(labels))


@pytest.mark.parametrize("loss", [LabelSmoothing(), Focal()])
@pytest.mark.parametrize("labels", [single_labels(), multi_labels()])
def test_smoothing_and_focus_take_both_kinds_of_labels(loss: Loss, labels: Labels) -> None:
    replace(fedavg(), sampler=AllClients(), loss=loss).validate(population(labels))
