"""The reference engine: images keep their labels, users their random numbers, and statistics skip the optimizer."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from manyeyes.algorithms import fedavg, fedavgm, fedir, fedvc
from manyeyes.components import AdaptiveServer, AllClients, ServerSGD
from manyeyes.components.losses import default_loss, weighted_mean
from manyeyes.core.algorithm import Algorithm
from manyeyes.core.plan import plan_round
from manyeyes.core.population import MultiLabels, Population, SingleLabels, fetch
from manyeyes.core.round import run_round
from manyeyes.core.state import ServerState
from manyeyes.data.preprocess import Preprocess
from manyeyes.engines.reference import ReferenceEngine
from manyeyes.models.flat import FlatModel
from tests.engines.engine_runs import CPU, initial_state, make_setup, run_rounds

CLASSES = ("a", "b", "c", "d")
AUGMENT = Preprocess(crop=3, flip_horizontal=True, flip_vertical=True)


class ColorReader(nn.Module):
    """Reads each image's labels from its color and predicts them with certainty; records the images of each batch."""

    def __init__(self, multi: bool) -> None:
        super().__init__()
        self.unused = nn.Parameter(torch.zeros(1))
        self.multi = multi
        self.batches: list[Tensor] = []  # row and owner of each image

    def forward(self, images: Tensor) -> Tensor:
        colors = ((images * 0.25 + 0.5) * 255).round().long()
        assert (colors == colors[:, :, :1, :1]).all(), "augmentation changed the color of a uniform image"
        row, label, owner = colors[:, :, 0, 0].unbind(1)
        self.batches.append(torch.stack([row, owner], 1))
        if self.multi:
            hot = (label[:, None] >> torch.arange(4)) & 1
            return 100.0 * (2 * hot - 1) + 0 * self.unused
        return 100.0 * nn.functional.one_hot(label, 4) + 0 * self.unused


def make_colored_images(seed: int, count: int, multi: bool) -> Population:
    """Return a view of images of one color each: (row, label or bits of labels, owner)."""
    rng = np.random.default_rng(seed)
    owners, split = rng.integers(0, 5, count), rng.choice(["train", "test"], count)
    split[0] = "train"
    codes = rng.integers(0, 16 if multi else 4, count)
    images = np.empty((count, 5, 4, 3), np.uint8)
    images[:] = np.stack([np.arange(count), codes, owners], 1)[:, None, None, :]
    tags = [[bit for bit in range(4) if code >> bit & 1] for code in codes]
    labels = MultiLabels.from_lists(tags, CLASSES) if multi else SingleLabels(codes, CLASSES)
    train = Population.from_arrays(images, labels, owners, split=split).split("train")
    mask = rng.random(len(train)) < 0.8
    return train.filter(mask) if mask.any() else train


ALGORITHMS = [
    fedavg(epochs=2, batch_size=3),
    fedvc(virtual_client_size=4, batch_size=3),
    fedir((0.4, 0.3, 0.2, 0.1), batch_size=2),
]


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 9999), st.integers(1, 60), st.booleans(), st.sampled_from(ALGORITHMS))
def test_pairs_every_image_with_its_own_label_through_the_whole_data_path(
    seed: int, count: int, multi: bool, algorithm: Algorithm
) -> None:
    population = make_colored_images(seed, count, multi)
    algorithm = replace(
        algorithm, sampler=AllClients(), example_weighting=None if multi else algorithm.example_weighting
    )
    module = ColorReader(multi)
    engine = ReferenceEngine(make_setup(module, population, AUGMENT))
    _, _, metrics = run_rounds(algorithm, engine, population, initial_state(algorithm, module), 1, seed)
    assert metrics.train_loss < 1e-6  # one wrong pair would cost 25 or more
    batches = iter(module.batches)
    for client in plan_round(algorithm, population, seed, 0, AUGMENT.num_uniforms).clients:
        for indices_B in client.example_indices_SB:
            rows, owners = next(batches).unbind(1)
            assert rows.tolist() == population.image_indices[indices_B[indices_B >= 0]].tolist()
            assert set(owners.tolist()) == {int(population.user_name(client.user))}


@settings(deadline=None, max_examples=20)
@given(st.integers(0, 9999), st.integers(1, 60), st.booleans())
def test_fetch_brings_each_image_with_its_own_targets(seed: int, count: int, multi: bool) -> None:
    population = make_colored_images(seed, count, multi)
    examples = np.random.default_rng(seed).integers(0, len(population), 7)
    images, targets = fetch(population, examples, CPU)
    codes = (targets.long() << torch.arange(4)).sum(1) if multi else targets
    assert images[:, 0, 0, 1].tolist() == codes.tolist()


def test_the_weighted_mean_ignores_examples_of_weight_zero() -> None:
    mean = weighted_mean(torch.tensor([1.0, 2.0, 50.0]), torch.tensor([1.0, 3.0, 0.0]))
    assert float(mean) == pytest.approx(7 / 4)
    assert float(weighted_mean(torch.tensor([1.0]), torch.zeros(1))) == 0


def test_the_default_losses_by_hand() -> None:
    single = default_loss(multi=False)(torch.tensor([[0.0, 1.0, 2.0]]), torch.tensor([1]))
    assert single.tolist() == pytest.approx([np.log(np.exp([0, 1, 2]).sum()) - 1])
    multi = default_loss(multi=True)(torch.tensor([[0.0, 1.0]]), torch.tensor([[1.0, 0.0]]))
    assert multi.tolist() == pytest.approx([(np.log(2) + np.log(1 + np.e)) / 2])


IMAGES = np.random.default_rng(0).integers(0, 256, (10, 2, 2, 3), dtype=np.uint8)
POPULATION = Population.from_arrays(IMAGES, SingleLabels(np.arange(10) % 4, CLASSES), [0, 0, 0, 0, 0, 0, 1, 1, 1, 1])


def train_rounds(
    module: nn.Module, algorithm: Algorithm, num_rounds: int, population: Population = POPULATION
) -> ServerState:
    engine = ReferenceEngine(make_setup(module, population))
    return run_rounds(algorithm, engine, population, initial_state(algorithm, module), num_rounds)[0]


def test_in_bf16_the_model_computes_in_it_and_the_step_is_float32() -> None:
    """One step of one client: the gradient of a copy in bf16 moves the float32 weights."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Flatten(), nn.Linear(12, 4))
    population = POPULATION.filter(np.arange(10) >= 6)
    algorithm = replace(fedavg(batch_size=4, lr=0.1), sampler=AllClients())
    engine = ReferenceEngine(make_setup(module, population, precision="bf16"))
    state, _, _ = run_rounds(algorithm, engine, population, initial_state(algorithm, module), 1)
    images = Preprocess().evaluate(torch.from_numpy(IMAGES[6:])).bfloat16().flatten(1)
    weight, bias = (p.detach().bfloat16().requires_grad_() for p in module.parameters())
    nn.functional.cross_entropy((images @ weight.t() + bias).float(), torch.arange(6, 10) % 4).backward()
    actual = dict(zip(("weight", "bias"), state.weights.split([48, 4]), strict=True))
    for name, parameter, in_bf16 in zip(actual, module.parameters(), (weight, bias), strict=True):
        assert in_bf16.grad is not None
        expected = parameter - 0.1 * in_bf16.grad.float()
        assert actual[name].dtype == torch.float32
        torch.testing.assert_close(actual[name].view_as(expected), expected, rtol=0, atol=4e-4)  # of gradients near 1


def batch_norm_model(momentum: float | None = 0.1) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.BatchNorm2d(3, momentum=momentum), nn.Flatten(), nn.Linear(12, 4))


SERVER_OPTIMIZERS = [ServerSGD(lr=1.0), ServerSGD(lr=0.3, momentum=0.9), AdaptiveServer(lr=0.05)]


@pytest.mark.parametrize("server_optimizer", SERVER_OPTIMIZERS)
def test_statistics_are_averaged_over_clients_with_every_server_optimizer(
    server_optimizer: ServerSGD | AdaptiveServer,
) -> None:
    """One batch per client: 0.9 * old + 0.1 * the client's mean and variance, averaged by size."""
    algorithm = replace(fedavg(batch_size=10, lr=0.1), sampler=AllClients(), server_optimizer=server_optimizer)
    module = batch_norm_model()
    state = train_rounds(module, algorithm, 2)
    pixels = (IMAGES / 255 - 0.5) / 0.25
    mean, variance = np.zeros(3), np.ones(3)
    clients = [(pixels[:6], 0.6), (pixels[6:], 0.4)]  # images, weight
    for _ in range(2):
        mean = sum(w * (0.9 * mean + 0.1 * x.mean((0, 1, 2))) for x, w in clients)
        variance = sum(w * (0.9 * variance + 0.1 * x.var((0, 1, 2), ddof=1)) for x, w in clients)
    np.testing.assert_allclose(state.weights[-6:].numpy(), [*mean, *variance], atol=1e-6)
    assert module.get_buffer("0.running_mean").tolist() == [0, 0, 0]
    assert module.get_buffer("0.running_var").tolist() == [1, 1, 1]


def test_a_round_changes_no_buffer_of_the_module() -> None:
    module = batch_norm_model()
    train_rounds(module, replace(fedavg(batch_size=10), sampler=AllClients()), 1)
    assert int(module.get_buffer("0.num_batches_tracked")) == 0


def test_statistics_that_depend_on_the_number_of_earlier_steps_are_refused() -> None:
    with pytest.raises(ValueError, match="momentum=None"):
        train_rounds(batch_norm_model(momentum=None), replace(fedavg(batch_size=10), sampler=AllClients()), 1)


def test_frozen_parameters_stay_in_the_module() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Flatten(), nn.Linear(12, 5), nn.ReLU(), nn.Linear(5, 4))
    module.get_submodule("1").requires_grad_(False)
    frozen = module.get_parameter("1.weight").clone()
    state = train_rounds(module, fedavgm(cohort_size=2, batch_size=2), 2)
    assert len(state.weights) == 24
    assert torch.equal(module.get_parameter("1.weight"), frozen)


def test_training_changes_neither_the_module_nor_the_initial_weights() -> None:
    torch.manual_seed(0)
    model = FlatModel(nn.Sequential(nn.Flatten(), nn.Linear(12, 4)))
    first, algorithm = model.read(), fedavg(cohort_size=2, batch_size=2)
    state = initial_state(algorithm, model)
    run_round(algorithm, state, POPULATION, ReferenceEngine(make_setup(model, POPULATION)), {}, seed=0)
    assert torch.equal(model.read(), first)
    assert torch.equal(state.weights, first)


def dropout_model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(12, 4))


def test_dropout_does_not_depend_on_the_global_generator() -> None:
    algorithm = replace(fedavg(batch_size=2), sampler=AllClients())
    expected = train_rounds(dropout_model(), algorithm, 2)
    module = dropout_model()
    torch.manual_seed(99)
    torch.rand(7)
    assert torch.equal(train_rounds(module, algorithm, 2).weights, expected.weights)


def test_dropout_of_a_user_does_not_depend_on_the_others() -> None:
    """The update of two users is the weighted mean of their updates when each trains alone."""
    first = FlatModel(dropout_model()).read()
    both = train_rounds(dropout_model(), replace(fedavg(batch_size=2), sampler=AllClients()), 1)
    user_0, user_1 = (
        train_rounds(dropout_model(), fedavg(cohort_size=1, batch_size=2), 1, POPULATION.filter(mask))
        for mask in (np.arange(10) < 6, np.arange(10) >= 6)
    )
    expected = 0.6 * (user_0.weights - first) + 0.4 * (user_1.weights - first)
    torch.testing.assert_close(both.weights - first, expected, rtol=0, atol=1e-7)


def test_dropout_differs_between_rounds_and_users() -> None:
    module = dropout_model()
    masks: list[tuple[bool, ...]] = []
    module[1].register_forward_hook(lambda _, __, output: masks.append(tuple((output == 0).flatten().tolist())))
    population = Population.from_arrays(
        np.repeat(IMAGES[:1], 4, 0), SingleLabels(np.zeros(4, np.int64), CLASSES), [0, 0, 1, 1]
    )
    train_rounds(module, replace(fedavg(batch_size=2), sampler=AllClients()), 2, population)
    assert len(set(masks)) == len(masks) == 4


def test_a_round_leaves_the_global_generators_unchanged() -> None:
    module = dropout_model()
    torch.manual_seed(5)
    torch_state, numpy_state = torch.get_rng_state(), np.random.get_state(legacy=False)["state"]["key"].copy()  # noqa: NPY002
    train_rounds(module, fedavg(cohort_size=2, batch_size=2), 1)
    assert torch.equal(torch.get_rng_state(), torch_state)
    np.testing.assert_array_equal(np.random.get_state(legacy=False)["state"]["key"], numpy_state)  # noqa: NPY002
