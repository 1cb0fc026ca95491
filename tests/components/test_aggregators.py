"""Robust aggregation: equal to other libraries and hand computations, and resistant to attackers."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from scipy.stats import trim_mean
from torch import Tensor

from manyeyes.algorithms import fedavg, fedvc, mimelite, scaffold
from manyeyes.components import (
    AllClients,
    CenteredClipping,
    Centralized,
    GeometricMedian,
    Krum,
    Median,
    TrimmedMean,
    UniformSampler,
    WeightUniformly,
    aggregators,
)
from manyeyes.core.algorithm import Aggregator, Algorithm
from manyeyes.core.plan import RoundPlan, plan_round
from manyeyes.core.population import Population, SingleLabels
from manyeyes.core.round import run_round
from manyeyes.core.state import ClientStates, CohortResult, RoundContext, init_state
from manyeyes.data.preprocess import Preprocess
from manyeyes.engines.base import EngineSetup
from manyeyes.engines.reference import ReferenceEngine
from manyeyes.models import build_model
from manyeyes.models.flat import FlatModel
from manyeyes.privacy.mechanisms import CentralDP

CPU = torch.device("cpu")


def make_updates(num_clients: int, size: int = 23) -> Tensor:
    rng = np.random.default_rng(num_clients)
    return torch.from_numpy(rng.standard_normal((num_clients, size)).astype(np.float32))


def aggregated(aggregator: Aggregator, updates_KW: Tensor, weights: list[float] | None = None) -> Tensor:
    """Return the aggregate of the updates in the first round."""
    server_weights, weights_K = torch.zeros(updates_KW.shape[1]), torch.tensor(weights or [1.0] * len(updates_KW))
    return aggregator.aggregate(updates_KW, weights_K, server_weights, aggregator.init(server_weights))[0]


@pytest.fixture(autouse=True, params=[2**22, 20])
def blocks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Process all coordinates at once, and a few at a time."""
    monkeypatch.setattr(aggregators, "MAX_SORTED_ELEMENTS", request.param)


@pytest.mark.parametrize("num_clients", [1, 2, 5, 8])
def test_the_median_is_numpys(num_clients: int) -> None:
    actual = aggregated(Median(), make_updates(num_clients))
    np.testing.assert_allclose(actual, np.median(make_updates(num_clients).numpy(), 0), rtol=1e-6)


@pytest.mark.parametrize("trim_fraction", [0.0, 0.1, 0.2, 0.49])
@pytest.mark.parametrize("num_clients", [1, 5, 10])
def test_the_trimmed_mean_is_scipys(num_clients: int, trim_fraction: float) -> None:
    actual = aggregated(TrimmedMean(trim_fraction), make_updates(num_clients))
    np.testing.assert_allclose(
        actual, trim_mean(make_updates(num_clients).numpy(), trim_fraction, 0), rtol=1e-5, atol=1e-7
    )


def test_krum_by_hand() -> None:
    """Points 0, 1, 3, 4, 100 on a line, one of them malicious: each is scored by its two nearest neighbors.

    0: 1 + 9, 1: 1 + 4, 3: 4 + 1, 4: 1 + 9, 100: 96^2 + 97^2. 1 and 3 have the same score: the first is taken.
    """
    line = torch.tensor([[0.0], [1.0], [3.0], [4.0], [100.0]])
    assert Krum(1).scores(line).tolist() == [10, 5, 5, 10, 96**2 + 97**2]
    assert aggregated(Krum(1), line).tolist() == [1.0]
    assert aggregated(Krum(1, num_selected=2), line).tolist() == [2.0]
    assert aggregated(Krum(1, num_selected=4), line).tolist() == [2.0]


def test_krum_equals_its_definition() -> None:
    num_clients, num_malicious = 9, 2
    points = make_updates(num_clients).double().numpy()
    square = {frozenset(pair): ((points[pair[0]] - points[pair[1]]) ** 2).sum() for pair in combinations(range(9), 2)}
    scores = [
        sum(sorted(square[frozenset((i, j))] for j in range(num_clients) if j != i)[: num_clients - num_malicious - 2])
        for i in range(num_clients)
    ]
    np.testing.assert_allclose(Krum(num_malicious).scores(make_updates(num_clients)), scores, rtol=1e-5)
    best = np.argsort(scores)[:3]
    np.testing.assert_allclose(
        aggregated(Krum(num_malicious, 3), make_updates(num_clients)), points[best].mean(0), rtol=1e-5
    )


def test_options_out_of_bounds_are_refused() -> None:
    with pytest.raises(
        ValueError, match=r"aggregator\.trim_fraction is 0\.5: set it to a number of at least 0 and below 0\.5"
    ):
        TrimmedMean(0.5)
    with pytest.raises(ValueError, match=r"aggregator\.num_malicious is -1"):
        Krum(-1)


FEDAVG = replace(fedavg(lr=0.1, batch_size=6), sampler=AllClients(), client_weighting=WeightUniformly())


@pytest.mark.parametrize("aggregator", [Median(), TrimmedMean(), Krum(1)])
@pytest.mark.parametrize(
    ("algorithm", "reason"),
    [
        (replace(FEDAVG, client_weighting=fedavg().client_weighting), "counts every client the same"),
        (
            replace(scaffold(), sampler=AllClients()),
            "correction=ScaffoldCorrection sums what clients upload beyond updates",
        ),
        (
            replace(mimelite(), sampler=AllClients()),
            "correction=MimeLiteMomentum sums what clients upload beyond updates",
        ),
        (replace(FEDAVG, privacy=CentralDP(noise_multiplier=1.0)), "privacy adds noise to a sum"),
        (replace(FEDAVG, sampler=Centralized()), "sampler=centralized has one"),
    ],
)
def test_incompatible_components_are_refused(
    population: Population, aggregator: Aggregator, algorithm: Algorithm, reason: str
) -> None:
    with pytest.raises(ValueError, match=reason):
        replace(algorithm, aggregator=aggregator).validate(population)


def test_krum_needs_enough_clients(population: Population) -> None:
    with pytest.raises(
        ValueError, match="num_malicious=2 and num_selected=1 needs 7 clients per round, and the cohort has 6"
    ):
        replace(FEDAVG, sampler=UniformSampler(6), aggregator=Krum(2)).validate(population)
    replace(fedvc(cohort_size=7), aggregator=Krum(2)).validate(population)


class AttackedEngine(ReferenceEngine):
    """The reference engine with attackers, who send -10 times their update."""

    attackers: frozenset[int] = frozenset()

    def train(
        self, weights: Tensor, plan: RoundPlan, context: RoundContext, client_states: ClientStates
    ) -> CohortResult:
        actual = super().train(weights, plan, replace(context, keep_client_updates=True), client_states)
        assert actual.updates_KW is not None, "the context asks for each client's update"
        factor = torch.tensor([-10.0 if client.user in self.attackers else 1.0 for client in plan.clients])
        updates_KW = actual.updates_KW * factor[:, None]
        weight = torch.tensor([client.weight for client in plan.clients])
        return replace(actual, update_W=(weight[:, None] * updates_KW).sum(0), updates_KW=updates_KW)


RNG = np.random.default_rng(1)
LABELS = RNG.integers(3, size=200)
PIXELS = RNG.integers(0, 120, (200, 8, 8, 3))
PIXELS[np.arange(200), :, :, LABELS] += 100
TEN_USERS = Population.from_arrays(
    PIXELS.astype(np.uint8), SingleLabels(LABELS, tuple("abc")), np.repeat(np.arange(10), 20)
)


def loss_after(algorithm: Algorithm, attackers: set[int], rounds: int = 8) -> float:
    model = FlatModel(build_model("linear", 3, size=8, seed=0))
    engine = AttackedEngine(EngineSetup(model, TEN_USERS, Preprocess(), CPU))
    engine.attackers = frozenset(attackers)
    state = init_state(algorithm, model.read(), model.num_trainable)
    for _ in range(rounds):
        state, _ = run_round(algorithm, state, TEN_USERS, engine, {}, seed=0)
    honest = ReferenceEngine(EngineSetup(model, TEN_USERS, Preprocess(), CPU))
    context = RoundContext(algorithm.client_optimizer, 0.0, None, None, None)
    return float(honest.train(state.weights, plan_round(algorithm, TEN_USERS, 0, 0), context, {}).loss_K.mean())


@pytest.mark.slow
def test_two_attackers_of_ten_break_the_mean_and_no_robust_aggregator() -> None:
    """The mean then goes uphill: (8 - 20) / 10 of an honest step."""
    honest = replace(FEDAVG, client_optimizer=replace(FEDAVG.client_optimizer, lr=0.01))  # type: ignore[type-var]
    first, good = loss_after(honest, set(), rounds=0), loss_after(honest, set())
    assert good < 0.7 * first
    assert loss_after(honest, {2, 7}) > 1.5 * first
    for aggregator in (
        Median(),
        TrimmedMean(0.2),
        Krum(2),
        Krum(2, num_selected=5),
        CenteredClipping(0.05),
        GeometricMedian(),
    ):
        assert loss_after(replace(honest, aggregator=aggregator), {2, 7}) < 0.75 * first, aggregator


def test_an_untrimmed_mean_is_the_uniform_mean() -> None:
    model = FlatModel(build_model("linear", 3, size=8, seed=0))
    engine = ReferenceEngine(EngineSetup(model, TEN_USERS, Preprocess(), CPU))
    state = init_state(FEDAVG, model.read(), model.num_trainable)
    plain, _ = run_round(FEDAVG, state, TEN_USERS, engine, {}, seed=0)
    untrimmed, _ = run_round(replace(FEDAVG, aggregator=TrimmedMean(0.0)), state, TEN_USERS, engine, {}, seed=0)
    torch.testing.assert_close(untrimmed.weights, plain.weights, rtol=1e-5, atol=1e-7)


def test_centered_clipping_by_hand() -> None:
    """Updates (3, 4) and (0, 1) with radius 1: the first is scaled to (0.6, 0.8), the mean is (0.3, 0.9).

    In the second round the differences from there are (2.7, 3.1), of norm 4.111, and (-0.3, 0.1), of norm 0.316.
    """
    aggregator, updates_KW = CenteredClipping(radius=1.0), torch.tensor([[3.0, 4.0], [0.0, 1.0]])
    state = aggregator.init(torch.zeros(2))
    first, state = aggregator.aggregate(updates_KW, torch.ones(2), torch.zeros(2), state)
    torch.testing.assert_close(first, torch.tensor([0.3, 0.9]))
    second, _ = aggregator.aggregate(updates_KW, torch.ones(2), torch.zeros(2), state)
    norm = (2.7**2 + 3.1**2) ** 0.5
    torch.testing.assert_close(second, torch.tensor([0.3 + (2.7 / norm - 0.3) / 2, 0.9 + (3.1 / norm + 0.1) / 2]))


def test_the_geometric_median_minimizes_the_weighted_sum_of_distances() -> None:
    updates_KW, weights = make_updates(7, 3), [1.0, 2.0, 1.0, 3.0, 1.0, 1.0, 2.0]

    def distances(point: np.ndarray) -> float:
        return float(np.array(weights) @ np.linalg.norm(updates_KW.numpy().astype(np.float64) - point, axis=1))

    actual = aggregated(GeometricMedian(iterations=200), updates_KW, weights).numpy().astype(np.float64)
    best = minimize(distances, np.zeros(3), method="Nelder-Mead", options={"xatol": 1e-9, "fatol": 1e-12}).x
    np.testing.assert_allclose(actual, best, atol=1e-5)


def test_the_state_of_an_aggregator_is_carried_from_round_to_round() -> None:
    algorithm = replace(FEDAVG, aggregator=CenteredClipping(radius=0.01))
    model = FlatModel(build_model("linear", 3, size=8, seed=0))
    engine = ReferenceEngine(EngineSetup(model, TEN_USERS, Preprocess(), CPU))
    state = init_state(algorithm, model.read(), model.num_trainable)
    norms = []
    for _ in range(3):
        state, _ = run_round(algorithm, state, TEN_USERS, engine, {}, seed=0)
        norms.append(float(state.aggregator_state["center"].norm()))
    assert 0 < norms[0] <= 0.0101 < norms[1] < norms[2]  # each round moves the center by at most the radius
