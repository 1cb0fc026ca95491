"""Advice: given where settings or data rarely give what they are meant to, and only there."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from manyeyes.algorithms import centralized, ditto, fedavg, fedper, fedvc, local_only
from manyeyes.components import WeightUniformly
from manyeyes.core.algorithm import Algorithm
from manyeyes.core.population import Population, SingleLabels
from manyeyes.metrics.heterogeneity import rare_classes_note
from manyeyes.models import build_model
from manyeyes.models.flat import FlatModel
from manyeyes.privacy.mechanisms import CentralDP, LocalDP
from manyeyes.training.advice import batch_size_advice, noise_advice, sharing_advice, strangers_advice
from tests.training.small_runs import run


def users_of(num_images: int) -> Population:
    """Return four users with this many images each."""
    count = 4 * num_images
    labels = SingleLabels(np.zeros(count, np.int64), ("one", "two"))
    return Population.from_arrays(np.zeros((count, 8, 8, 3), np.uint8), labels, np.arange(count) // num_images)


@pytest.mark.parametrize(
    ("algorithm", "trainable", "is_given"),
    [
        (fedper(head_layers=1), "last:1", True),
        (fedper(head_layers=1), "last:2", False),
        (fedavg(), "last:1", False),
        (local_only(), "all", False),
    ],
)
def test_advice_if_all_layers_that_train_are_personal(algorithm: Algorithm, trainable: str, is_given: bool) -> None:
    model = FlatModel(build_model("lenet", 2, size=32, width=4, trainable=trainable))
    assert bool(sharing_advice(algorithm, model)) == is_given


@pytest.mark.parametrize(
    ("algorithm", "users", "is_given"),
    [(fedper(), [2, 3], True), (ditto(), [2, 3], True), (fedper(), [1, 2], False), (fedavg(), [2, 3], False)],
)
def test_advice_if_personal_models_are_scored_on_new_users(
    algorithm: Algorithm, users: list[int], is_given: bool
) -> None:
    population = users_of(1)
    train, evaluated = (population.filter(np.isin(population.user_ids, chosen)) for chosen in ([0, 1], users))
    assert bool(strangers_advice(algorithm, train, evaluated)) == is_given


@pytest.mark.parametrize(
    ("num_images", "algorithm", "fix"),
    [
        (8, fedavg(), "algorithm.batch_size to 4 or less, or algorithm.epochs to 5 or more"),
        (31, fedavg(), "algorithm.batch_size to 8 or less, or algorithm.epochs to 5 or more"),
        (2, fedavg(), "algorithm.epochs to 5 or more"),
        (32, fedavg(), "algorithm.batch_size to 16 or less, or algorithm.epochs to 5 or more"),
        (33, fedavg(), ""),  # more than half a batch
        (8, fedavg(batch_size=4), ""),
        (8, fedavg(epochs=2), ""),
        (8, fedavg(batch_size=32), ""),  # which was chosen
        (8, fedvc(), ""),  # virtual clients have 256 images
        (8, centralized(), ""),
    ],
)
def test_advice_is_given_where_a_round_is_one_small_step(num_images: int, algorithm: Algorithm, fix: str) -> None:
    advice = batch_size_advice(algorithm, users_of(num_images))
    assert advice.endswith(f"set {fix}.") if fix else advice == ""


def private(privacy: CentralDP | LocalDP, rounds: int) -> Algorithm:
    """Return private FedAvg with four clients per round, calibrated for four users and this number of rounds."""
    algorithm = replace(fedavg(cohort_size=4), client_weighting=WeightUniformly(), privacy=privacy)
    return replace(algorithm, privacy=privacy.calibrate(algorithm, users_of(2), rounds))


@pytest.mark.parametrize(
    ("privacy", "num_values", "rounds", "times"),
    [
        # a mean over 4 clients of noise with deviation 2 C on the sum has norm 2 sqrt(400) C / 4 = 10 C
        (CentralDP(epsilon=0, noise_multiplier=2, clipping_norm=3), 400, 4, "5 times "),
        # a mean of 4 times noise of deviation C has norm sqrt(100 / 4) C = 5 C
        (LocalDP(noise_multiplier=1), 100, 9, ""),  # and 5 / sqrt(9) is below 2
        (LocalDP(noise_multiplier=1), 100, 25, None),  # 25 rounds of noise are as long as 5 C sqrt(25) = 25 C
    ],
)
def test_noise_that_outweighs_all_updates_is_compared_with_the_longest_of_them(
    privacy: CentralDP | LocalDP, num_values: int, rounds: int, times: str | None
) -> None:
    text = noise_advice(private(privacy, rounds), users_of(2), num_values, rounds)
    longest = f"larger than the longest update can be over {rounds} rounds; the model will not learn: sample more"
    assert text == "" if times is None else text.startswith(f"The noise is {times}{longest}")


def test_a_simulated_cohort_has_the_noise_of_the_large_one() -> None:
    users = users_of(2)
    algorithm = replace(fedavg(cohort_size=2), client_weighting=WeightUniformly())
    privacy = CentralDP(epsilon=0, noise_multiplier=2, noise_cohort_size=4).calibrate(algorithm, users, 1)
    assert privacy.mean_noise_stddev(2) == 2 / 4


def test_classes_with_at_most_one_image_are_named() -> None:
    assert rare_classes_note(("cat", "dog", "owl"), np.array([0, 2, 1])) == (
        "2 of 3 classes have at most one training image: cat (0), owl (1)."
    )
    many = rare_classes_note([f"c{i}" for i in range(1000)], np.ones(1000, np.int64))
    assert many.endswith("c0 (1), c1 (1), c2 (1), c3 (1), c4 (1) and 995 more.")
    assert rare_classes_note(("cat", "dog"), np.array([2, 3])) == ""


def test_a_run_without_a_test_split_says_why_it_is_not_evaluated(capsys: pytest.CaptureFixture[str]) -> None:
    run(users_of(40), fedavg(cohort_size=2), progress=True, rounds=1)
    notes = capsys.readouterr().err
    assert "The model is not evaluated, because the data have no split `test`: give the examples a column" in notes
    assert "1 of 2 classes have at most one training image: two (0)." in notes


def test_a_private_run_says_nothing_of_the_classes_of_its_users(capsys: pytest.CaptureFixture[str]) -> None:
    algorithm = replace(fedavg(cohort_size=2), client_weighting=WeightUniformly(), privacy=LocalDP())
    run(users_of(40), algorithm, progress=True, rounds=1)
    assert "classes have" not in capsys.readouterr().err
