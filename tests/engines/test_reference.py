"""The reference engine: images stay with their labels, chance with its user, and statistics out of the optimiser."""

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
from manyeyes.core.algorithm import Algorithm
from manyeyes.core.plan import plan_round
from manyeyes.core.population import MultiLabels, Population, SingleLabels
from manyeyes.core.round import run_round
from manyeyes.core.state import RoundMetrics, ServerState, init_state
from manyeyes.data.preprocess import Preprocess
from manyeyes.engines.client_step import fetch, losses, weighted_mean
from manyeyes.engines.reference import ReferenceEngine
from manyeyes.models.flat import FlatModel

CPU = torch.device("cpu")
CLASSES = ("a", "b", "c", "d")
AUGMENT = Preprocess(crop=3, flip_horizontal=True, flip_vertical=True)


class Witness(nn.Module):
    """Reads the labels off the color of each image and answers with them, sure of itself; remembers what it saw."""

    def __init__(self, multi: bool) -> None:
        super().__init__()
        self.unused = nn.Parameter(torch.zeros(1))
        self.multi = multi
        self.seen: list[Tensor] = []

    def forward(self, images: Tensor) -> Tensor:
        colors = ((images * 0.25 + 0.5) * 255).round().long()
        assert (colors == colors[:, :, :1, :1]).all(), "an image of one color is still of one color"
        row, label, owner = colors[:, :, 0, 0].unbind(1)
        self.seen.append(torch.stack([row, owner], 1))
        if self.multi:
            hot = (label[:, None] >> torch.arange(4)) & 1
            return 100.0 * (2 * hot - 1) + 0 * self.unused
        return 100.0 * nn.functional.one_hot(label, 4) + 0 * self.unused


def colored(seed: int, count: int, multi: bool) -> Population:
    """Photos of one color (row, label or bits of labels, owner), in no order, some kept out by views."""
    rng = np.random.default_rng(seed)
    owners, split = rng.integers(0, 5, count), rng.choice(["train", "test"], count)
    split[0] = "train"
    codes = rng.integers(0, 16 if multi else 4, count)
    images = np.empty((count, 5, 4, 3), np.uint8)
    images[:] = np.stack([np.arange(count), codes, owners], 1)[:, None, None, :]
    tags = [[bit for bit in range(4) if code >> bit & 1] for code in codes]
    labels = MultiLabels.from_lists(tags, CLASSES) if multi else SingleLabels(codes, CLASSES)
    train = Population.from_arrays(images, labels, owners, split=split).split("train")
    keep = rng.random(len(train)) < 0.8
    return train.filter(keep) if keep.any() else train


DRAWS = [
    fedavg(epochs=2, batch_size=3),
    fedvc(virtual_client_size=4, batch_size=3),
    fedir((0.4, 0.3, 0.2, 0.1), batch_size=2),
]


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 9999), st.integers(1, 60), st.booleans(), st.sampled_from(DRAWS))
def test_pairs_every_image_with_its_own_label_through_the_whole_data_path(
    seed: int, count: int, multi: bool, algorithm: Algorithm
) -> None:
    population = colored(seed, count, multi)
    algorithm = replace(
        algorithm, sampler=AllClients(), example_weighting=None if multi else algorithm.example_weighting
    )
    witness = Witness(multi)
    model = FlatModel(witness)
    engine = ReferenceEngine(model, population, AUGMENT, CPU)
    state = init_state(algorithm, model.read(), model.num_trainable)
    _, report = run_round(algorithm, state, population, engine, {}, seed)
    assert report.loss < 1e-6  # one wrong pair would cost 25 or more
    batches = iter(witness.seen)
    for client in plan_round(algorithm, population, seed, 0, AUGMENT.num_uniforms).clients:
        for row in client.example_indices_SB:
            saw, owner = next(batches).unbind(1)
            assert saw.tolist() == population.image_indices[row[row >= 0]].tolist()
            assert set(owner.tolist()) == {int(population.user_name(client.user))}


@settings(deadline=None, max_examples=20)
@given(st.integers(0, 9999), st.integers(1, 60), st.booleans())
def test_fetch_brings_each_image_with_its_own_targets(seed: int, count: int, multi: bool) -> None:
    population = colored(seed, count, multi)
    examples = np.random.default_rng(seed).integers(0, len(population), 7)
    images, targets = fetch(population, examples, CPU)
    codes = (targets.long() << torch.arange(4)).sum(1) if multi else targets
    assert images[:, 0, 0, 1].tolist() == codes.tolist()


def test_a_loss_weighs_its_examples_and_padding_weighs_nothing() -> None:
    found = weighted_mean(torch.tensor([1.0, 2.0, 50.0]), torch.tensor([1.0, 3.0, 0.0]))
    assert float(found) == pytest.approx(7 / 4)
    assert float(weighted_mean(torch.tensor([1.0]), torch.zeros(1))) == 0


def test_losses_by_hand() -> None:
    single = losses(torch.tensor([[0.0, 1.0, 2.0]]), torch.tensor([1]))
    assert single.tolist() == pytest.approx([np.log(np.exp([0, 1, 2]).sum()) - 1])
    several = losses(torch.tensor([[0.0, 1.0]]), torch.tensor([[1.0, 0.0]]))
    assert several.tolist() == pytest.approx([(np.log(2) + np.log(1 + np.e)) / 2])


IMAGES = np.random.default_rng(0).integers(0, 256, (10, 2, 2, 3), dtype=np.uint8)
POPULATION = Population.from_arrays(IMAGES, SingleLabels(np.arange(10) % 4, CLASSES), [0, 0, 0, 0, 0, 0, 1, 1, 1, 1])


def game(
    module: nn.Module, algorithm: Algorithm, rounds: int, population: Population = POPULATION
) -> tuple[ServerState, RoundMetrics]:
    model = FlatModel(module)
    engine = ReferenceEngine(model, population, Preprocess(), CPU)
    state = init_state(algorithm, model.read(), model.num_trainable)
    for _ in range(rounds):
        state, report = run_round(algorithm, state, population, engine, {}, seed=0)
    return state, report


def test_in_bf16_the_model_computes_in_it_and_the_step_is_float32() -> None:
    """One step of one client, by hand: the gradient of a copy in bf16 moves the weights themselves."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Flatten(), nn.Linear(12, 4))
    model, one = FlatModel(module), POPULATION.filter(np.arange(10) >= 6)
    algorithm = replace(fedavg(batch_size=4, lr=0.1), sampler=AllClients())
    engine = ReferenceEngine(model, one, Preprocess(), CPU, "bf16")
    state, _ = run_round(algorithm, init_state(algorithm, model.read(), model.num_trainable), one, engine, {}, seed=0)
    images = Preprocess().evaluate(torch.from_numpy(IMAGES[6:])).bfloat16().flatten(1)
    weight, bias = (p.detach().bfloat16().requires_grad_() for p in module.parameters())
    nn.functional.cross_entropy((images @ weight.t() + bias).float(), torch.arange(6, 10) % 4).backward()
    expected = [p - 0.1 * q.grad.float() for p, q in zip(module.parameters(), (weight, bias), strict=True)]
    found = state.weights.split([48, 4])
    for one_found, one_wanted in zip(found, expected, strict=True):
        assert one_found.dtype == torch.float32
        torch.testing.assert_close(one_found.view_as(one_wanted), one_wanted, rtol=0, atol=4e-4)  # of gradients near 1


def normed(momentum: float | None = 0.1) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.BatchNorm2d(3, momentum=momentum), nn.Flatten(), nn.Linear(12, 4))


SERVERS = [ServerSGD(lr=1.0), ServerSGD(lr=0.3, momentum=0.9), AdaptiveServer(lr=0.05)]


@pytest.mark.parametrize("server", SERVERS)
def test_statistics_are_averaged_over_clients_whatever_the_server_does(server: ServerSGD | AdaptiveServer) -> None:
    """One batch each: 0.9 * old + 0.1 * the client's own mean and variance, averaged by size."""
    algorithm = replace(fedavg(batch_size=10, lr=0.1), sampler=AllClients(), server_optimizer=server)
    module = normed()
    state, _ = game(module, algorithm, rounds=2)
    pixels = (IMAGES / 255 - 0.5) / 0.25
    mean, variance = np.zeros(3), np.ones(3)
    for _ in range(2):
        each = [(pixels[:6], 0.6), (pixels[6:], 0.4)]
        mean = sum(p * (0.9 * mean + 0.1 * x.mean((0, 1, 2))) for x, p in each)
        variance = sum(p * (0.9 * variance + 0.1 * x.var((0, 1, 2), ddof=1)) for x, p in each)
    np.testing.assert_allclose(state.weights[-6:].numpy(), [*mean, *variance], atol=1e-6)
    assert module[0].running_mean.tolist() == [0, 0, 0]
    assert module[0].running_var.tolist() == [1, 1, 1]


def test_a_round_leaves_every_buffer_of_the_module_alone() -> None:
    module = normed()
    game(module, replace(fedavg(batch_size=10), sampler=AllClients()), rounds=1)
    assert int(module[0].num_batches_tracked) == 0


def test_refuses_statistics_that_depend_on_rounds_played_before() -> None:
    with pytest.raises(ValueError, match="momentum=None"):
        game(normed(momentum=None), replace(fedavg(batch_size=10), sampler=AllClients()), rounds=1)


def test_frozen_parameters_stay_in_the_module() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Flatten(), nn.Linear(12, 5), nn.ReLU(), nn.Linear(5, 4))
    module[1].requires_grad_(False)
    frozen = module[1].weight.clone()
    state, _ = game(module, fedavgm(cohort_size=2, batch_size=2), rounds=2)
    assert len(state.weights) == 24
    assert torch.equal(module[1].weight, frozen)


def test_training_changes_neither_the_module_nor_the_weights_it_was_given() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Flatten(), nn.Linear(12, 4))
    model = FlatModel(module)
    begin = model.read()
    state = init_state(fedavg(cohort_size=2, batch_size=2), begin, model.num_trainable)
    run_round(
        fedavg(cohort_size=2, batch_size=2),
        state,
        POPULATION,
        ReferenceEngine(model, POPULATION, Preprocess(), CPU),
        {},
        seed=0,
    )
    assert torch.equal(model.read(), begin)
    assert torch.equal(state.weights, model.read())


def dropping() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(12, 4))


def test_dropout_is_the_same_whatever_was_drawn_before() -> None:
    algorithm = replace(fedavg(batch_size=2), sampler=AllClients())
    first, _ = game(dropping(), algorithm, rounds=2)
    module = dropping()
    torch.manual_seed(99)
    torch.rand(7)
    again, _ = game(module, algorithm, rounds=2)
    assert torch.equal(first.weights, again.weights)


def test_dropout_of_a_user_does_not_depend_on_the_others() -> None:
    """User 1 alone ends where it would in a cohort that leaves the other's update without weight."""
    alone, _ = game(dropping(), fedavg(cohort_size=1, batch_size=2), 1, POPULATION.filter(np.arange(10) >= 6))
    begin = FlatModel(dropping()).read()
    both, _ = game(dropping(), replace(fedavg(batch_size=2), sampler=AllClients()), 1)
    other, _ = game(dropping(), fedavg(cohort_size=1, batch_size=2), 1, POPULATION.filter(np.arange(10) < 6))
    expected = 0.6 * (other.weights - begin) + 0.4 * (alone.weights - begin)
    torch.testing.assert_close(both.weights - begin, expected, rtol=0, atol=1e-7)


def test_dropout_differs_between_rounds_and_users() -> None:
    module, masks = dropping(), []
    module[1].register_forward_hook(lambda _, __, output: masks.append(tuple((output == 0).flatten().tolist())))
    population = Population.from_arrays(
        np.repeat(IMAGES[:1], 4, 0), SingleLabels(np.zeros(4, np.int64), CLASSES), [0, 0, 1, 1]
    )
    game(module, replace(fedavg(batch_size=2), sampler=AllClients()), 2, population)
    assert len(set(masks)) == len(masks) == 4


def test_a_round_leaves_the_global_generators_alone() -> None:
    module = dropping()
    torch.manual_seed(5)
    before, numpys = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    game(module, fedavg(cohort_size=2, batch_size=2), rounds=1)
    assert torch.equal(torch.get_rng_state(), before)
    np.testing.assert_array_equal(np.random.get_state()[1], numpys)  # noqa: NPY002
