"""Private sums: bounded, noisy by exactly as much as is accounted, and silent about any one client.

Noise comes from the operating system and is tested by chi-square bounds that a right program leaves once in a million.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import chi2, lognorm, norm
from torch import Tensor, nn

from manyeyes.algorithm import Aggregate, Algorithm, Client, Diverged, Engine, Plan, Work
from manyeyes.algorithms import fedavg, fedir, mimelite, scaffold
from manyeyes.chance import generator
from manyeyes.conf.build import build_privacy
from manyeyes.conf.presets import OPTIONS
from manyeyes.data.augment import Augment
from manyeyes.engine.batch import lengths
from manyeyes.engine.choice import Means, choose_engine
from manyeyes.engine.workers import available
from manyeyes.models.flat import FlatModel
from manyeyes.parts import (
    SGD,
    ByExamples,
    BySize,
    ByWalk,
    ControlVariates,
    Epochs,
    Equally,
    Everyone,
    ImportanceRatio,
    Layers,
    Poisson,
    Pooled,
    ServerSGD,
    Uniform,
)
from manyeyes.parts.noise import Normals
from manyeyes.parts.privacy import AdaptiveClip, CentralDP, Clip, LocalDP
from manyeyes.population import Population, SingleLabels
from manyeyes.round import plan_round, play_round, start

FALSE_ALARM = 1e-6
SIDE = 10  # pixels; every user owns one of them, so that what each has added can be read off a sum
USERS = SIDE * SIDE
PLAIN = Augment(mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0))  # black is 0, which has no gradient
NO_RANKS = pytest.mark.skipif(available() is not None, reason=f"no workers: {available()}")
ENGINES = ["reference", "vector", "lanes", pytest.param("ranks", marks=NO_RANKS)]
LINEAR = nn.Sequential(nn.Flatten(), nn.Linear(3 * USERS, 2, bias=False))
FEDAVG = Algorithm(Poisson(20), Epochs(1, 2), SGD(0.1), Equally(), ServerSGD(1.0))


def owners_of_pixels() -> Population:
    """Users of one to three photos, each with light in its own pixel alone."""
    rng = np.random.default_rng(0)
    owner = np.repeat(np.arange(USERS), rng.integers(1, 4, USERS))
    images = np.zeros((len(owner), USERS, 3), np.uint8)
    images[np.arange(len(owner)), owner] = rng.integers(1, 256, (len(owner), 3))
    labels = SingleLabels(rng.integers(0, 2, len(owner)), ("day", "night"))
    return Population.of(images.reshape(-1, SIDE, SIDE, 3), labels, owner)


PEOPLE = owners_of_pixels()


def shares(update_W: Tensor) -> Tensor:
    """The length of what each user has added to a sum [users]."""
    return torch.linalg.vector_norm(update_W.view(2, 3, USERS), dim=(0, 1))


@contextmanager
def ready(name: str) -> Iterator[Engine]:
    engine = choose_engine(name, FlatModel(LINEAR), PEOPLE, PLAIN, torch.device("cpu"), Means(compile=False, workers=2))
    with ExitStack() as stack:
        if name == "ranks":
            stack.enter_context(engine)  # type: ignore[arg-type]
        yield engine


def settled(privacy: Any, rounds: int = 10, **slots: Any) -> Algorithm:
    algorithm = replace(FEDAVG, **slots)
    return replace(algorithm, privacy=privacy.settled(algorithm, PEOPLE, rounds))


def result_of(update_W: Tensor, norms: Any = (), kept: Any = None) -> tuple[Aggregate, Plan, Work]:
    """What an engine might have returned for clients of these norms."""
    norm_K = np.asarray(norms, float)
    kept_K = np.ones(len(norm_K), bool) if kept is None else np.asarray(kept)
    one = Client(0, 0, 1, 1.0, np.zeros((1, 1), np.int64), np.ones((1, 1), np.float32), None, np.zeros(1), None, None)
    clients = tuple(replace(one, user=k, key=k) for k in range(len(norm_K)))
    work = Work(FEDAVG.local, 0.1, None, None, None)
    return Aggregate(update_W, None, kept_K, np.zeros(len(norm_K)), norm_K, {}), Plan(0, 0, clients), work


def protect(privacy: Any, norms: Any = (), secret: int = 0, size: int = 1, clip: float = 1.0, kept: Any = None) -> Any:
    found = result_of(torch.zeros(size), norms, kept)
    return privacy.protect(*found, {"clip": torch.tensor(clip, dtype=torch.float64), "times": torch.zeros(0)}, secret)


def assert_deviation(drawn: Any, std: float) -> None:
    """The numbers are normal around 0 with this deviation, as far as their sum and their squares tell."""
    drawn = np.asarray(drawn, float)
    low, high = chi2.ppf([FALSE_ALARM / 2, 1 - FALSE_ALARM / 2], drawn.size)
    assert low < (drawn**2).sum() / std**2 < high
    assert abs(drawn.sum()) < norm.ppf(1 - FALSE_ALARM / 2) * std * math.sqrt(drawn.size)


def os_secret() -> int:
    return int(np.random.SeedSequence().entropy)  # type: ignore[arg-type]


# Clips


@pytest.mark.parametrize("name", ENGINES)
def test_no_client_adds_more_than_the_bound(name: str) -> None:
    """10,000 updates over four engines, at random rates and bounds; the clipped ones are as long as the bound."""
    rng, clipped, seen = np.random.default_rng(1), 0, 0
    with ready(name) as engine:
        for round in range(25):
            lr, bound = 10 ** rng.uniform(-2, 2), float(10 ** rng.uniform(-3, 1))
            plan = plan_round(replace(FEDAVG, cohort=Everyone()), PEOPLE, 0, round)
            weights = torch.from_numpy(rng.normal(size=6 * USERS).astype(np.float32))
            found = engine.train(weights, plan, Work(FEDAVG.local, lr, None, None, None, bound), {})
            sent, whole = shares(found.update_W).numpy(), np.empty(USERS)
            whole[[client.user for client in plan.clients]] = found.norm_K
            assert (sent <= bound * (1 + 1e-6)).all()
            np.testing.assert_allclose(sent, np.minimum(whole, bound), rtol=1e-5, atol=1e-12)
            clipped, seen = clipped + int((whole > bound).sum()), seen + len(sent)
    assert seen == 2500
    assert 0.2 * seen < clipped < 0.9 * seen


@pytest.mark.parametrize("name", ENGINES)
def test_what_stays_with_the_client_is_neither_measured_nor_sent(name: str) -> None:
    local, mask = SGD(1.0), torch.zeros(6 * USERS, dtype=torch.bool)
    mask[: 3 * USERS] = True  # the weights of one class
    plan = plan_round(replace(FEDAVG, cohort=Everyone(), local=local), PEOPLE, 0, 0)
    with ready(name) as engine:
        free = engine.train(torch.zeros(6 * USERS), plan, Work(local, 1.0, None, None, mask), {})
        tight = engine.train(torch.zeros(6 * USERS), plan, Work(local, 1.0, None, None, mask, 0.05), {})
    assert not free.update_W[mask].any()
    assert not tight.update_W[mask].any()
    order = [client.user for client in plan.clients]
    np.testing.assert_allclose(free.norm_K, shares(free.update_W)[order], rtol=1e-5)
    torch.testing.assert_close(shares(tight.update_W), shares(free.update_W).clamp_max(0.05))


def test_a_long_vector_is_not_measured_short() -> None:
    """PyTorch's own norm of so many numbers is 4e-4 too small on a CPU, which a clip would let through."""
    vectors = torch.randn(2, 11_000_000)
    exact = np.linalg.norm(vectors.numpy().astype(np.float64), axis=1)
    np.testing.assert_allclose(lengths(vectors), exact, rtol=3e-6)


@pytest.mark.parametrize("name", ENGINES)
def test_a_client_that_is_not_finite_adds_nothing_and_counts_as_one_beyond(name: str) -> None:
    user = int(PEOPLE.owners([PEOPLE.pixels(np.arange(len(PEOPLE))).sum((1, 2, 3)).argmax()])[0])
    weights = torch.zeros(2, 3, USERS)
    weights[0, :, user], weights[1, :, user] = 3e38, -3e38  # overflow, where others see black
    local, plan = SGD(0.1), plan_round(replace(FEDAVG, cohort=Everyone()), PEOPLE, 0, 0)
    with ready(name) as engine:
        found = engine.train(weights.flatten(), plan, Work(local, 0.1, None, None, None, 1e-3), {})
    assert [c.user for c, kept in zip(plan.clients, found.kept_K, strict=True) if not kept] == [user]
    sent = shares(found.update_W)
    assert sent[user] == 0
    assert (sent > 0).sum() == USERS - 1


def test_a_private_round_without_a_finite_update_is_noise_and_goes_on() -> None:
    """To stop would tell that all who took part had such an update."""
    privacy = CentralDP(noise=1.0, clip=Clip(0.5), reproducible_noise=True)
    algorithm = settled(privacy, cohort=Everyone(), local=SGD(1e38))
    with ready("reference") as engine:
        begun = start(algorithm, torch.randn(6 * USERS) * 1e3, 6 * USERS)
        state, report = play_round(algorithm, begun, PEOPLE, engine, {}, 0)
    assert set(report.left_out) == {"(private)"}
    assert math.isnan(report.loss) == (len(report.left_out) > USERS - 2)
    assert torch.isfinite(state.weights).all()


# Noise


@pytest.mark.parametrize(("cohort", "many"), [(Poisson(20), 20), (Uniform(20), 20), (Everyone(), USERS)])
def test_the_sum_carries_z_clips_and_the_mean_that_over_the_expected_cohort(cohort: Any, many: int) -> None:
    privacy = settled(CentralDP(noise=1.7, clip=Clip(0.3)), cohort=cohort).privacy
    mean, kept = protect(privacy, np.ones(13), os_secret(), 50_000, clip=0.3)
    assert_deviation(mean, 1.7 * 0.3 / many)
    assert_deviation(mean * many, 1.7 * 0.3)
    assert float(kept["clip"]) == 0.3


def test_a_simulated_cohort_has_the_noise_of_the_large_ones_mean() -> None:
    privacy = settled(CentralDP(noise=1.7, clip=Clip(0.3), noise_cohort=80)).privacy
    mean, _ = protect(privacy, np.ones(20), os_secret(), 50_000, clip=0.3)
    assert_deviation(mean, 1.7 * 0.3 / 80)


def test_adaptive_clipping_gives_its_share_of_the_noise_to_the_count() -> None:
    """z = 2 with 2 sigma_b = 6 leaves (1/4 - 1/36)^(-1/2) = 2.1213 for the update."""
    clip = AdaptiveClip(0.3, 0.5, rate=0.2, count_std=3.0)
    privacy = settled(CentralDP(noise=2.0, clip=clip)).privacy
    mean, _ = protect(privacy, np.ones(20), os_secret(), 50_000, clip=0.3)
    assert_deviation(mean, 2.1213203 * 0.3 / 20)
    begin = os_secret()
    clips = [float(protect(privacy, np.zeros(20), begin + n)[1]["clip"]) for n in range(4000)]
    assert_deviation(-np.log(clips) / 0.2 - (1 - 0.5), 3.0 / 20)  # all 20 of the 20 expected are within


def test_a_simulated_cohort_scales_the_noise_of_the_count_too() -> None:
    clip = AdaptiveClip(1.0, 0.5, rate=0.2, count_std=8.0)
    privacy = settled(CentralDP(noise=2.0, clip=clip, noise_cohort=80)).privacy
    begin = os_secret()
    clips = [float(protect(privacy, np.zeros(20), begin + n)[1]["clip"]) for n in range(4000)]
    assert_deviation(-np.log(clips) / 0.2 - (1 - 0.5), 8.0 / 80)


@pytest.mark.parametrize(
    ("noise", "cohort", "update", "count"),
    [(18.67, 5000, 18.6830292, 250.0), (1.0, 200, 1.0012523, 10.0), (2.0, 10, 2.3094011, 2.0)],
)
def test_the_counts_noise_is_a_twentieth_of_the_cohort_and_never_below_z(
    noise: float, cohort: int, update: float, count: float
) -> None:
    """Andrew et al. 2021: (z^-2 - (2 sigma_b)^-2)^(-1/2), by hand."""
    assert AdaptiveClip().noises(noise, cohort) == pytest.approx((update, count), rel=1e-6)


def test_nothing_is_added_to_what_stays_with_the_clients() -> None:
    mask = torch.arange(1000) % 3 == 0
    result, plan, work = result_of(torch.zeros(1000), np.ones(5))
    for privacy in (settled(CentralDP(noise=1.0)).privacy, settled(LocalDP(1.0)).privacy):
        assert privacy is not None
        mean, _ = privacy.protect(result, plan, replace(work, personal=mask), privacy.start(), os_secret())
        assert not mean[mask].any()
        assert mean[~mask].all()


def test_a_played_round_moves_by_its_noise_and_by_no_noise_on_personal_layers() -> None:
    algorithm = settled(CentralDP(noise=3.0, clip=Clip(0.2)), local=SGD(1e-30), personal=Layers(("1.*",)))
    free = replace(algorithm, personal=None)
    with ready("reference") as engine:
        begun = start(algorithm, torch.zeros(6 * USERS), 6 * USERS)
        kept_back, _ = play_round(algorithm, begun, PEOPLE, engine, {}, 0)
        noisy, report = play_round(free, begun, PEOPLE, engine, {}, 0)
    assert not kept_back.weights.any()
    assert_deviation(noisy.weights, 3.0 * 0.2 / 20)
    assert report.clip == 0.2


def test_noise_takes_more_of_a_secret_than_pytorchs_cpu_generator_does() -> None:
    """PyTorch keeps 32 bits of a seed: whoever sees a sum could try all noises."""
    like = torch.zeros(8)
    assert torch.equal(Normals(5).like(like), Normals(5).like(like))
    for bit in (31, 32, 63, 64, 127):
        assert not torch.equal(Normals(5).like(like), Normals(5 + 2**bit).like(like))


# The count of those within, and the clip that follows


def test_counts_equal_a_hand_computation() -> None:
    """b = (within - n/2) / K + 1/2 plus noise, which is the same for the same secret and cancels in a ratio."""
    privacy = settled(CentralDP(noise=1.0, clip=AdaptiveClip(1.0, 0.5, rate=0.2, count_std=1.0))).privacy

    def clip_after(norms: Any, kept: Any = None) -> float:
        return float(protect(privacy, norms, 3, kept=kept)[1]["clip"])

    within_of_four = clip_after([0.5, 1.0, 0.9, 0.1])  # 1 is within 1
    assert clip_after([0.5, 1.1, 0.9, 7.0]) / within_of_four == pytest.approx(math.exp(0.2 * 2 / 20))
    # nobody: as many halves up as down, so a client that comes with a long update moves the share by -1/2 / K
    assert clip_after([]) / clip_after([9.0]) == pytest.approx(math.exp(-0.2 * 0.5 / 20))
    assert clip_after([0.1]) / clip_after([]) == pytest.approx(math.exp(-0.2 * 0.5 / 20))
    # a client that is left out counts as one that was beyond, whatever its norm is said to be
    left_out = clip_after([0.5, math.nan], [True, False])
    assert left_out == clip_after([0.5, 0.5], [True, False]) == clip_after([0.5, 9.0])


@pytest.mark.parametrize("quantile", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("first", [0.1, 10.0])
def test_the_clip_finds_the_quantile_of_known_lengths(quantile: float, first: float) -> None:
    """Lengths are log-normal, of median 2 and shape 0.8; at the end, C is between the quantiles 0.08 away."""
    law, rng = lognorm(0.8, scale=2.0), np.random.default_rng(4)
    algorithm = replace(FEDAVG, cohort=Everyone())
    privacy = CentralDP(noise=1.0, clip=AdaptiveClip(first, quantile, rate=0.2)).settled(algorithm, PEOPLE, 300)
    kept, tail = privacy.start(), []
    for round in range(300):
        result = result_of(torch.zeros(1), law.rvs(USERS, random_state=rng))
        _, kept = privacy.protect(*result, kept, 1000 + round)
        tail += [float(kept["clip"])] if round >= 200 else []
    found = math.exp(np.log(tail).mean())
    assert law.ppf(max(quantile - 0.08, 0.02)) < found < law.ppf(min(quantile + 0.08, 0.98))


@pytest.mark.parametrize("share", [-1e5, 1e5])
def test_a_clip_that_much_noise_leads_out_of_the_numbers_ends_the_run_in_a_sentence(share: float) -> None:
    with pytest.raises(Diverged, match="the clip has left the numbers of a float32"):
        AdaptiveClip().follow(1.0, share)


# Who takes part


def test_poisson_cohorts_vary_as_coins_do() -> None:
    """Mean and variance of their sizes, and how often each user and each pair of users come (false alarm 1e-6)."""
    rounds, q = 4000, 0.2
    chosen = [Poisson(20).select(PEOPLE, generator(0, "cohort", round)) for round in range(rounds)]
    sizes = np.array([len(users) for users in chosen])
    assert all(len(set(users.tolist())) == len(users) for users in chosen)
    spread = norm.ppf(1 - FALSE_ALARM / 2)
    assert abs(sizes.mean() - 20) < spread * math.sqrt(USERS * q * (1 - q) / rounds)
    assert abs(sizes.var() / (USERS * q * (1 - q)) - 1) < spread * math.sqrt(2 / rounds)
    came = np.zeros((rounds, USERS))
    for round, users in enumerate(chosen):
        came[round, users] = 1
    squares = ((came.sum(0) - rounds * q) ** 2 / (rounds * q * (1 - q))).sum()
    assert chi2.ppf(FALSE_ALARM / 2, USERS) < squares < chi2.ppf(1 - FALSE_ALARM / 2, USERS)
    together = (came.T @ came)[np.triu_indices(USERS, 1)].mean()
    assert together == pytest.approx(rounds * q**2, rel=0.02)


@pytest.mark.parametrize("name", ENGINES)
def test_a_round_in_which_nobody_takes_part_is_noise(name: str) -> None:
    privacy = CentralDP(noise=1.0, clip=AdaptiveClip(0.3, 0.5))
    algorithm = settled(privacy, cohort=Poisson(1))
    with ready(name) as engine:
        state, reports = start(algorithm, torch.zeros(6 * USERS), 6 * USERS), []
        for _ in range(8):
            before, (state, report) = state, play_round(algorithm, state, PEOPLE, engine, {}, 0)
            reports.append(report)
            assert not torch.equal(before.weights, state.weights)
    sizes = [report.clients for report in reports]
    assert 0 in sizes
    assert [report.epsilon for report in reports] == sorted({report.epsilon for report in reports})
    empty = reports[sizes.index(0)]
    assert (empty.images, empty.batches, empty.left_out) == (0, 0, ())


@pytest.mark.parametrize("weigh", [Equally(), ByExamples(), ByWalk()])
@pytest.mark.parametrize("correct", [None, ControlVariates()])
def test_an_open_round_in_which_nobody_takes_part_changes_nothing(weigh: Any, correct: Any) -> None:
    algorithm = replace(FEDAVG, weigh=weigh, correct=correct)
    with ready("reference") as engine:
        begun = start(algorithm, torch.ones(6 * USERS), 6 * USERS)
        state, report = play_round(algorithm, begun, PEOPLE, engine, {}, 0, plan=Plan(0, 0, ()))
    assert torch.equal(state.weights, begun.weights)
    assert (report.clients, report.batches) == (0, 0)


def test_no_statistic_is_that_of_one_client() -> None:
    """A cohort of one is told without loss and length; `batches` is that of the mean client, not of the largest."""
    algorithm = settled(CentralDP(noise=1.0), cohort=Uniform(1))
    crowd = settled(CentralDP(noise=1.0), cohort=Everyone(), draw=Epochs(1, 1))
    with ready("reference") as engine:
        _, alone = play_round(algorithm, start(algorithm, torch.zeros(600), 600), PEOPLE, engine, {}, 0)
        _, many = play_round(crowd, start(crowd, torch.zeros(600), 600), PEOPLE, engine, {}, 0)
        _, open_ = play_round(replace(crowd, privacy=None), start(FEDAVG, torch.zeros(600), 600), PEOPLE, engine, {}, 0)
    assert math.isnan(alone.loss)
    assert math.isnan(alone.norm)
    assert math.isfinite(many.loss)
    assert (many.batches, open_.batches) == (math.ceil(len(PEOPLE) / USERS), 3)
    assert (open_.epsilon, open_.clip) == (None, None)


# What is refused

WANTED: dict[str, tuple[Callable[[], Algorithm], str]] = {
    "weights": (lambda: fedavg(cohort=5), "private sums count every client alike: set weigh to equally"),
    "by size": (lambda: replace(FEDAVG, cohort=BySize(5)), "no account is known for clients drawn as by BySize"),
    "pooled": (lambda: replace(FEDAVG, cohort=Pooled()), "no account is known for clients drawn as by Pooled"),
    "scaffold": (lambda: replace(scaffold(), weigh=Equally()), "ControlVariates has clients report more than"),
    "mimelite": (lambda: replace(mimelite(), weigh=Equally()), "ServerMomentum has clients report more than"),
    "fedir": (lambda: replace(fedir(), weigh=Equally()), "FedIR would read p.y. off all users: give the target"),
}


@pytest.mark.parametrize("name", WANTED)
def test_what_would_tell_more_than_a_bounded_update_is_refused(name: str) -> None:
    make, sentence = WANTED[name]
    with pytest.raises(ValueError, match=sentence):
        replace(make(), privacy=CentralDP()).check(PEOPLE)


@pytest.mark.parametrize("cohort", [BySize(5), Pooled()])
def test_local_noise_wants_clients_that_are_chosen_without_a_look_at_them(cohort: Any) -> None:
    with pytest.raises(ValueError, match="looks at what clients hold before they add noise: select uniform"):
        replace(FEDAVG, cohort=cohort, privacy=LocalDP()).check(PEOPLE)


def test_a_target_makes_fedir_private() -> None:
    replace(fedir(), weigh=Equally(), reweigh=ImportanceRatio((0.5, 0.5)), privacy=CentralDP()).check(PEOPLE)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: CentralDP(epsilon=0), "private training needs a budget or a noise"),
        (lambda: CentralDP(epsilon=-1), "epsilon is -1: it must be a number of at least 0"),
        (lambda: CentralDP(noise_cohort=-5), "noise_cohort is -5: it must be a whole number of at least 0"),
        (lambda: CentralDP(delta=1), "delta is 1: it must be above 0 and below 1"),
        (lambda: LocalDP(delta=1), "delta is 1: it must be above 0 and below 1"),
        (lambda: Clip(0), "clip is 0: it must be a number above 0"),
        (lambda: AdaptiveClip(quantile=0), "quantile is 0: it must be a number above 0"),
        (lambda: AdaptiveClip(quantile=1), "quantile is 1: it must be at least 0 and below 1"),
        (lambda: LocalDP(0), "noise is 0: it must be a number above 0"),
        (lambda: settled(CentralDP(noise=9.0, clip=AdaptiveClip(count_std=4.0))), "leaves nothing for the update"),
        (lambda: settled(CentralDP(noise_cohort=10)), "noise_cohort is 10: it must be at least the cohort that trains"),
        (lambda: settled(CentralDP(accountant="guess")), "accountant 'guess' is unknown: choose rdp, pld"),
    ],
)
def test_a_number_without_a_meaning_is_refused(make: Callable[[], Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        make()


@pytest.mark.parametrize(
    ("cohort", "many", "sentence"),
    [
        (Poisson(5), 101, "noise_cohort is 101: there are 100 users"),
        (Everyone(), 100, "and everyone does: set it to 0"),
    ],
)
def test_a_simulated_cohort_that_cannot_be_is_refused(cohort: Any, many: int, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        replace(FEDAVG, cohort=cohort, privacy=CentralDP(noise_cohort=many)).check(PEOPLE)


# Local noise


def gaussian_delta(sigma: float, epsilon: float) -> float:
    """Of the Gaussian mechanism with sensitivity 1, exactly (Balle and Wang 2018, theorem 8)."""
    a, b = 0.5 / sigma, epsilon * sigma
    return float(norm.cdf(a - b) - math.exp(epsilon) * norm.cdf(-a - b))


def test_local_noise_is_that_of_every_client_and_those_left_out_send_noise_too() -> None:
    privacy = settled(LocalDP(2.0, clip=0.3)).privacy
    for kept in (np.ones(16, bool), np.arange(16) < 3):
        mean, _ = protect(privacy, np.ones(16), os_secret(), 50_000, kept=kept)
        assert_deviation(mean, 2.0 * 0.3 / math.sqrt(16))


def test_the_ledger_of_local_noise_is_that_of_whoever_came_most_often() -> None:
    """Client 1 comes three times: three releases at sensitivity 2 C are one Gaussian of deviation z / 2 / sqrt(3)."""
    privacy = replace(LocalDP(20.0), delta=1e-5)
    kept, cohorts = privacy.start(), ([0, 1], [1, 4], [], [1, 0])
    for keys in cohorts:
        result, plan, work = result_of(torch.zeros(1), np.ones(len(keys)))
        clients = tuple(replace(client, key=key) for client, key in zip(plan.clients, keys, strict=True))
        _, kept = privacy.protect(result, replace(plan, clients=clients), work, kept, 0)
    assert kept["times"].tolist() == [2, 3, 0, 0, 1]
    spent = privacy.spent(len(cohorts), kept)
    exact = gaussian_delta(20 / 2 / math.sqrt(3), spent)
    assert exact <= 1e-5  # never less than what was spent, and with the moments accountant not much more
    assert gaussian_delta(20 / 2 / math.sqrt(3), 0.8 * spent) > 1e-5
    assert privacy.spent(0, privacy.start()) == 0
    assert privacy.affordable(7) == 7


# Settings


def test_settings_become_the_parts_that_they_name() -> None:
    presets = {name: build_privacy(config) for name, config in OPTIONS["privacy"].items()}
    assert presets["none"] is None
    assert presets["central"] == CentralDP(epsilon=2.0, clip=Clip(1.0))
    assert presets["local"] == LocalDP(noise=1.0, clip=1.0)
    flair = presets["flair"]
    assert flair == CentralDP(epsilon=2.0, clip=AdaptiveClip(0.1, 0.1, 0.2), noise_cohort=5000)


def test_flairs_settings_give_flairs_noise() -> None:
    """FACTS: 41,131 users, 5,000 rounds, epsilon 2: z 18.67 for 5,000 clients, and delta 8.40e-6."""
    users = 41131
    people = Population.of(
        np.zeros((users, 1, 1, 3), np.uint8), SingleLabels(np.zeros(users, np.int64), ("any",)), np.arange(users)
    )
    flair = build_privacy(OPTIONS["privacy"]["flair"])
    assert flair is not None
    done = flair.settled(replace(FEDAVG, cohort=Poisson(200)), people, 5000)
    assert isinstance(done, CentralDP)
    assert (done.noise, done.delta) == pytest.approx((18.67, 8.40e-6), rel=1e-3)
    assert done.affordable(5000) == 5000
    assert done.affordable(6000) == 5000
    assert (
        "is what training with 5,000 would promise. This training itself, with 200, spends epsilon 4.3" in done.words()
    )
