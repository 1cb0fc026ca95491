"""Robust aggregation: equal to other libraries and to hand computation, and attackers do not spoil it."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
import torch
from scipy.stats import trim_mean
from torch import Tensor

from manyeyes.algorithm import Algorithm, Combine
from manyeyes.algorithms import fedavg, fedvc, mimelite, scaffold
from manyeyes.data.augment import Augment
from manyeyes.engine.reference import Reference
from manyeyes.models import build
from manyeyes.models.flat import FlatModel
from manyeyes.parts import Equally, Everyone, Krum, Median, Pooled, TrimmedMean, Uniform, aggregation
from manyeyes.parts.privacy import CentralDP
from manyeyes.population import Population, SingleLabels
from manyeyes.round import plan_round, play_round, start
from manyeyes.work import Aggregate, Clients, Personal, Plan, Work

CPU = torch.device("cpu")


def updates(clients: int, numbers: int = 23) -> Tensor:
    return torch.from_numpy(np.random.default_rng(clients).standard_normal((clients, numbers)).astype(np.float32))


@pytest.fixture(autouse=True, params=[2**22, 20])
def pieces(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """All coordinates at once, and a few at a time."""
    monkeypatch.setattr(aggregation, "PIECE", request.param)


@pytest.mark.parametrize("clients", [1, 2, 5, 8])
def test_the_median_is_numpys(clients: int) -> None:
    found = Median().combine(updates(clients))
    np.testing.assert_allclose(found, np.median(updates(clients).numpy(), 0), rtol=1e-6)


@pytest.mark.parametrize("share", [0.0, 0.1, 0.2, 0.49])
@pytest.mark.parametrize("clients", [1, 5, 10])
def test_the_trimmed_mean_is_scipys(clients: int, share: float) -> None:
    found = TrimmedMean(share).combine(updates(clients))
    np.testing.assert_allclose(found, trim_mean(updates(clients).numpy(), share, 0), rtol=1e-5, atol=1e-7)


def test_krum_by_hand() -> None:
    """Points 0, 1, 3, 4, 100 on a line, one of them wrong: each is scored by its two nearest neighbours.

    0: 1 + 9, 1: 1 + 4, 3: 4 + 1, 4: 1 + 9, 100: 96^2 + 97^2. Of 1 and 3, which are alike, the first.
    """
    line = torch.tensor([[0.0], [1.0], [3.0], [4.0], [100.0]])
    assert Krum(1).scores(line).tolist() == [10, 5, 5, 10, 96**2 + 97**2]
    assert Krum(1).combine(line).tolist() == [1.0]
    assert Krum(1, chosen=2).combine(line).tolist() == [2.0]
    assert Krum(1, chosen=4).combine(line).tolist() == [2.0]


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
    np.testing.assert_allclose(Krum(wrong, 3).combine(updates(clients)), points[best].mean(0), rtol=1e-5)


def test_wrong_numbers_are_refused() -> None:
    with pytest.raises(ValueError, match=r"the trimmed share is 0\.5: it is cut off at both ends"):
        TrimmedMean(0.5)
    with pytest.raises(ValueError, match="Krum's wrong clients is -1"):
        Krum(-1)


FEDAVG = replace(fedavg(lr=0.1, batch=6), cohort=Everyone(), weigh=Equally())


@pytest.mark.parametrize("part", [Median(), TrimmedMean(), Krum(1)])
@pytest.mark.parametrize(
    ("algorithm", "reason"),
    [
        (replace(FEDAVG, weigh=fedavg().weigh), "counts every client alike"),
        (replace(scaffold(), cohort=Everyone()), "ControlVariates sums what clients report beside updates"),
        (replace(mimelite(), cohort=Everyone()), "ServerMomentum sums what clients report beside updates"),
        (replace(FEDAVG, privacy=CentralDP(noise=1.0)), "the noise of privacy is made for a sum"),
        (replace(FEDAVG, cohort=Pooled()), "centralised training has none"),
    ],
)
def test_what_has_no_meaning_is_refused(people: Population, part: Combine, algorithm: Algorithm, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        replace(algorithm, aggregate=part).check(people)


def test_krum_needs_enough_clients(people: Population) -> None:
    with pytest.raises(
        ValueError, match="withstands 2 wrong clients and chooses 1 needs 7 a round, and the cohort is 6"
    ):
        replace(FEDAVG, cohort=Uniform(6), aggregate=Krum(2)).check(people)
    replace(fedvc(cohort=7), aggregate=Krum(2)).check(people)


class Attacked:
    """The reference, with clients whose updates are sent tenfold and the wrong way round."""

    def __init__(self, inner: Reference, attackers: set[int]) -> None:
        self.inner, self.attackers = inner, attackers
        self.trained, self.dice = inner.trained, inner.dice

    def personal(self, personal: Personal) -> Tensor:
        return self.inner.personal(personal)

    def train(self, weights: Tensor, plan: Plan, work: Work, clients: Clients) -> Aggregate:
        found = self.inner.train(weights, plan, replace(work, apart=True), clients)
        assert found.updates_KW is not None
        factor = torch.tensor([-10.0 if client.user in self.attackers else 1.0 for client in plan.clients])
        each_KW = found.updates_KW * factor[:, None]
        weight = torch.tensor([client.weight for client in plan.clients])
        return replace(found, update_W=(weight[:, None] * each_KW).sum(0), updates_KW=each_KW)


RNG = np.random.default_rng(1)
LABELS = RNG.integers(3, size=200)
PIXELS = RNG.integers(0, 120, (200, 8, 8, 3))
PIXELS[np.arange(200), :, :, LABELS] += 100
TEN = Population.of(PIXELS.astype(np.uint8), SingleLabels(LABELS, tuple("abc")), np.repeat(np.arange(10), 20))


def loss_after(algorithm: Algorithm, attackers: set[int], rounds: int = 8) -> float:
    model = FlatModel(build("linear", 3, size=8, seed=0))
    engine = Attacked(Reference(model, TEN, Augment(), CPU), attackers)
    state = start(algorithm, model.read(), model.trained)
    for _ in range(rounds):
        state, _ = play_round(algorithm, state, TEN, engine, {}, seed=0)
    honest, work = Reference(model, TEN, Augment(), CPU), Work(algorithm.local, 0.0, None, None, None)
    return float(honest.train(state.weights, plan_round(algorithm, TEN, 0, 0), work, {}).loss_K.mean())


def test_two_attackers_of_ten_spoil_the_mean_and_nothing_else() -> None:
    """The mean then climbs: (8 - 20) / 10 of an honest step."""
    honest = replace(FEDAVG, local=replace(FEDAVG.local, lr=0.01))  # type: ignore[type-var]
    first, good = loss_after(honest, set(), rounds=0), loss_after(honest, set())
    assert good < 0.7 * first
    assert loss_after(honest, {2, 7}) > 1.5 * first
    for part in (Median(), TrimmedMean(0.2), Krum(2), Krum(2, chosen=5)):
        assert loss_after(replace(honest, aggregate=part), {2, 7}) < 0.75 * first, part


def test_without_attackers_an_untrimmed_mean_is_the_sum_by_equal_weights() -> None:
    model = FlatModel(build("linear", 3, size=8, seed=0))
    engine = Reference(model, TEN, Augment(), CPU)
    state = start(FEDAVG, model.read(), model.trained)
    plain, _ = play_round(FEDAVG, state, TEN, engine, {}, seed=0)
    apart, _ = play_round(replace(FEDAVG, aggregate=TrimmedMean(0.0)), state, TEN, engine, {}, seed=0)
    torch.testing.assert_close(apart.weights, plain.weights, rtol=1e-5, atol=1e-7)
