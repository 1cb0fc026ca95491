"""Robust aggregation: equal to other libraries and to hand computation, and attackers do not spoil it."""

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
)
from manyeyes.components import aggregators as aggregation
from manyeyes.core.algorithm import Aggregator, Algorithm, PersonalLayers
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


def updates(clients: int, numbers: int = 23) -> Tensor:
    return torch.from_numpy(np.random.default_rng(clients).standard_normal((clients, numbers)).astype(np.float32))


def aggregated(aggregator: Aggregator, updates_KW: Tensor, weights: list[float] | None = None) -> Tensor:
    """Return what an aggregator makes of the updates in the first round."""
    server_weights, weights_K = torch.zeros(updates_KW.shape[1]), torch.tensor(weights or [1.0] * len(updates_KW))
    return aggregator.aggregate(updates_KW, weights_K, server_weights, aggregator.init(server_weights))[0]


@pytest.fixture(autouse=True, params=[2**22, 20])
def blocks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """All coordinates at once, and a few at a time."""
    monkeypatch.setattr(aggregation, "MAX_SORTED_ELEMENTS", request.param)


@pytest.mark.parametrize("clients", [1, 2, 5, 8])
def test_the_median_is_numpys(clients: int) -> None:
    actual = aggregated(Median(), updates(clients))
    np.testing.assert_allclose(actual, np.median(updates(clients).numpy(), 0), rtol=1e-6)


@pytest.mark.parametrize("share", [0.0, 0.1, 0.2, 0.49])
@pytest.mark.parametrize("clients", [1, 5, 10])
def test_the_trimmed_mean_is_scipys(clients: int, share: float) -> None:
    actual = aggregated(TrimmedMean(share), updates(clients))
    np.testing.assert_allclose(actual, trim_mean(updates(clients).numpy(), share, 0), rtol=1e-5, atol=1e-7)


def test_krum_by_hand() -> None:
    """Points 0, 1, 3, 4, 100 on a line, one of them wrong: each is scored by its two nearest neighbours.

    0: 1 + 9, 1: 1 + 4, 3: 4 + 1, 4: 1 + 9, 100: 96^2 + 97^2. Of 1 and 3, which are alike, the first.
    """
    line = torch.tensor([[0.0], [1.0], [3.0], [4.0], [100.0]])
    assert Krum(1).scores(line).tolist() == [10, 5, 5, 10, 96**2 + 97**2]
    assert aggregated(Krum(1), line).tolist() == [1.0]
    assert aggregated(Krum(1, num_selected=2), line).tolist() == [2.0]
    assert aggregated(Krum(1, num_selected=4), line).tolist() == [2.0]


def test_krum_against_its_definition() -> None:
    clients, wrong = 9, 2
    points = updates(clients).double().numpy()
    square = {frozenset(pair): ((points[pair[0]] - points[pair[1]]) ** 2).sum() for pair in combinations(range(9), 2)}
    scores = [
        sum(sorted(square[frozenset((i, j))] for j in range(clients) if j != i)[: clients - wrong - 2])
        for i in range(clients)
    ]
    np.testing.assert_allclose(Krum(wrong).scores(updates(clients)), scores, rtol=1e-5)
    best = np.argsort(scores)[:3]
    np.testing.assert_allclose(aggregated(Krum(wrong, 3), updates(clients)), points[best].mean(0), rtol=1e-5)


def test_wrong_numbers_are_refused() -> None:
    with pytest.raises(ValueError, match=r"aggregator\.trim_fraction=0\.5 is cut off at both ends"):
        TrimmedMean(0.5)
    with pytest.raises(ValueError, match=r"aggregator\.num_malicious is -1"):
        Krum(-1)


FEDAVG = replace(fedavg(lr=0.1, batch_size=6), sampler=AllClients(), client_weighting=WeightUniformly())


@pytest.mark.parametrize("part", [Median(), TrimmedMean(), Krum(1)])
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
def test_what_has_no_meaning_is_refused(
    population: Population, part: Aggregator, algorithm: Algorithm, reason: str
) -> None:
    with pytest.raises(ValueError, match=reason):
        replace(algorithm, aggregator=part).validate(population)


def test_krum_needs_enough_clients(population: Population) -> None:
    with pytest.raises(
        ValueError, match="num_malicious=2 and num_selected=1 needs 7 clients per round, and the cohort has 6"
    ):
        replace(FEDAVG, sampler=UniformSampler(6), aggregator=Krum(2)).validate(population)
    replace(fedvc(cohort_size=7), aggregator=Krum(2)).validate(population)


class Attacked:
    """The reference, with clients whose updates are sent tenfold and the wrong way round."""

    def __init__(self, inner: ReferenceEngine, attackers: set[int]) -> None:
        self.inner, self.attackers = inner, attackers
        self.num_trainable, self.num_augment_uniforms = inner.num_trainable, inner.num_augment_uniforms

    def personal_mask(self, personal_layers: PersonalLayers) -> Tensor:
        return self.inner.personal_mask(personal_layers)

    def train(
        self, weights: Tensor, plan: RoundPlan, context: RoundContext, client_states: ClientStates
    ) -> CohortResult:
        actual = self.inner.train(weights, plan, replace(context, keep_client_updates=True), client_states)
        assert actual.updates_KW is not None
        factor = torch.tensor([-10.0 if client.user in self.attackers else 1.0 for client in plan.clients])
        each_KW = actual.updates_KW * factor[:, None]
        weight = torch.tensor([client.weight for client in plan.clients])
        return replace(actual, update_W=(weight[:, None] * each_KW).sum(0), updates_KW=each_KW)


RNG = np.random.default_rng(1)
LABELS = RNG.integers(3, size=200)
PIXELS = RNG.integers(0, 120, (200, 8, 8, 3))
PIXELS[np.arange(200), :, :, LABELS] += 100
TEN = Population.from_arrays(PIXELS.astype(np.uint8), SingleLabels(LABELS, tuple("abc")), np.repeat(np.arange(10), 20))


def loss_after(algorithm: Algorithm, attackers: set[int], rounds: int = 8) -> float:
    model = FlatModel(build_model("linear", 3, size=8, seed=0))
    engine = Attacked(ReferenceEngine(EngineSetup(model, TEN, Preprocess(), CPU)), attackers)
    state = init_state(algorithm, model.read(), model.num_trainable)
    for _ in range(rounds):
        state, _ = run_round(algorithm, state, TEN, engine, {}, seed=0)
    honest, work = (
        ReferenceEngine(EngineSetup(model, TEN, Preprocess(), CPU)),
        RoundContext(algorithm.client_optimizer, 0.0, None, None, None),
    )
    return float(honest.train(state.weights, plan_round(algorithm, TEN, 0, 0), work, {}).loss_K.mean())


def test_two_attackers_of_ten_spoil_the_mean_and_nothing_else() -> None:
    """The mean then climbs: (8 - 20) / 10 of an honest step."""
    honest = replace(FEDAVG, client_optimizer=replace(FEDAVG.client_optimizer, lr=0.01))  # type: ignore[type-var]
    first, good = loss_after(honest, set(), rounds=0), loss_after(honest, set())
    assert good < 0.7 * first
    assert loss_after(honest, {2, 7}) > 1.5 * first
    for part in (
        Median(),
        TrimmedMean(0.2),
        Krum(2),
        Krum(2, num_selected=5),
        CenteredClipping(0.05),
        GeometricMedian(),
    ):
        assert loss_after(replace(honest, aggregator=part), {2, 7}) < 0.75 * first, part


def test_without_attackers_an_untrimmed_mean_is_the_sum_by_equal_weights() -> None:
    model = FlatModel(build_model("linear", 3, size=8, seed=0))
    engine = ReferenceEngine(EngineSetup(model, TEN, Preprocess(), CPU))
    state = init_state(FEDAVG, model.read(), model.num_trainable)
    plain, _ = run_round(FEDAVG, state, TEN, engine, {}, seed=0)
    apart, _ = run_round(replace(FEDAVG, aggregator=TrimmedMean(0.0)), state, TEN, engine, {}, seed=0)
    torch.testing.assert_close(apart.weights, plain.weights, rtol=1e-5, atol=1e-7)


def test_centered_clipping_by_hand() -> None:
    """Updates (3, 4) and (0, 1) with radius 1: the first is scaled to (0.6, 0.8), the mean is (0.3, 0.9).

    In the second round the differences from there are (2.7, 3.1), of norm 4.111, and (-0.3, 0.1), of norm 0.316.
    """
    rule, updates_KW = CenteredClipping(radius=1.0), torch.tensor([[3.0, 4.0], [0.0, 1.0]])
    state = rule.init(torch.zeros(2))
    first, state = rule.aggregate(updates_KW, torch.ones(2), torch.zeros(2), state)
    torch.testing.assert_close(first, torch.tensor([0.3, 0.9]))
    second, _ = rule.aggregate(updates_KW, torch.ones(2), torch.zeros(2), state)
    norm = (2.7**2 + 3.1**2) ** 0.5
    torch.testing.assert_close(second, torch.tensor([0.3 + (2.7 / norm - 0.3) / 2, 0.9 + (3.1 / norm + 0.1) / 2]))


def test_the_geometric_median_minimizes_the_weighted_sum_of_distances() -> None:
    updates_KW, weights = updates(7, 3), [1.0, 2.0, 1.0, 3.0, 1.0, 1.0, 2.0]

    def distances(point: np.ndarray) -> float:
        return float(np.array(weights) @ np.linalg.norm(updates_KW.numpy().astype(np.float64) - point, axis=1))

    actual = aggregated(GeometricMedian(iterations=200), updates_KW, weights).numpy().astype(np.float64)
    best = minimize(distances, np.zeros(3), method="Nelder-Mead", options={"xatol": 1e-9, "fatol": 1e-12}).x
    np.testing.assert_allclose(actual, best, atol=1e-5)


def test_a_new_aggregator_keeps_its_state_from_round_to_round() -> None:
    algorithm = replace(FEDAVG, aggregator=CenteredClipping(radius=0.01))
    model = FlatModel(build_model("linear", 3, size=8, seed=0))
    engine = ReferenceEngine(EngineSetup(model, TEN, Preprocess(), CPU))
    state = init_state(algorithm, model.read(), model.num_trainable)
    norms = []
    for _ in range(3):
        state, _ = run_round(algorithm, state, TEN, engine, {}, seed=0)
        norms.append(float(state.aggregator_state["center"].norm()))
    assert 0 < norms[0] <= 0.0101 < norms[1] < norms[2]  # each round moves the center by at most the radius
