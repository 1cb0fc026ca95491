"""Accuracy and its merging, the cross-entropy and the summary over users, against other libraries and by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from sklearn.metrics import accuracy_score, balanced_accuracy_score, recall_score

from manyeyes.metrics import Accuracy, PerUser
from manyeyes.metrics.accuracy import cross_entropy


def random_case(seed: int, count: int, classes: int) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Return scores, targets and users; some classes may not occur."""
    rng = np.random.default_rng(seed)
    targets = rng.integers(0, classes, count)
    scores = rng.normal(size=(count, classes)).astype(np.float32)
    scores[np.arange(count), targets] += 1
    return scores, targets, rng.choice([3, 8, 700], count)


def assert_equal(actual: Accuracy, expected: Accuracy) -> None:
    assert actual.compute() == pytest.approx(expected.compute(), rel=1e-12, abs=1e-12)
    np.testing.assert_array_equal(actual.correct_C, expected.correct_C)
    np.testing.assert_array_equal(actual.users_U, expected.users_U)
    np.testing.assert_array_equal(actual.user_correct_U, expected.user_correct_U)


@pytest.mark.filterwarnings("ignore:y_pred contains classes not in y_true")
@settings(deadline=None, max_examples=50)
@given(st.integers(0, 9999), st.integers(1, 40), st.integers(2, 12))
def test_equals_scikit_learn(seed: int, count: int, classes: int) -> None:
    scores, targets, _ = random_case(seed, count, classes)
    predicted = scores.argmax(axis=1)
    metric = Accuracy.from_scores(scores, targets)
    assert metric.compute()["accuracy"] == pytest.approx(accuracy_score(targets, predicted))
    seen = np.unique(targets)
    recall = recall_score(targets, predicted, labels=np.arange(classes), average=None, zero_division=0)
    np.testing.assert_allclose(metric.per_class(), recall)
    np.testing.assert_array_equal(np.flatnonzero(metric.count_C), seen)
    if len(seen) > 1:
        assert metric.compute()["macro_accuracy"] == pytest.approx(balanced_accuracy_score(targets, predicted))


@pytest.mark.parametrize("scale", [1.0, 1e4])
def test_loss_equals_torch(scale: float) -> None:
    scores, targets, _ = random_case(0, 30, 5)
    expected = torch.nn.functional.cross_entropy(torch.tensor(scores).double() * scale, torch.tensor(targets)).item()
    assert Accuracy.from_scores(scores * np.float64(scale), targets).compute()["loss"] == pytest.approx(
        expected, rel=1e-9
    )


def test_passed_losses_are_averaged() -> None:
    assert Accuracy.from_predictions([0, 1, 2], [0, 1, 1], 3, losses=[1.0, 2.0, 6.0]).compute()["loss"] == 3.0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_tensors_are_accepted(dtype: torch.dtype) -> None:
    scores = torch.tensor([[1.0, 0.0], [1.0, 0.0]], dtype=dtype, requires_grad=True)
    assert Accuracy.from_scores(scores, torch.tensor([0, 1]), torch.tensor([5, 6])).compute()["accuracy"] == 0.5


def test_predictions_give_what_scores_give() -> None:
    scores, targets, users = random_case(1, 30, 5)
    losses = cross_entropy(scores, targets)
    from_predictions = Accuracy.from_predictions(scores.argmax(axis=1), targets, 5, losses, users)
    assert_equal(from_predictions, Accuracy.from_scores(scores, targets, users))


def test_per_user_equals_a_plain_loop() -> None:
    scores, targets, users = random_case(2, 60, 4)
    per_user = Accuracy.from_scores(scores, targets, users).per_user()
    for user, value, count in zip(per_user.users_U, per_user.values_U, per_user.counts_U, strict=True):
        correct = [scores[i].argmax() == targets[i] for i in range(60) if users[i] == user]
        assert (value, count) == (sum(correct) / len(correct), len(correct))
    assert per_user.users_U.tolist() == [3, 8, 700]


@settings(deadline=None, max_examples=50)
@given(st.integers(0, 9999), st.lists(st.integers(0, 40), max_size=4))
def test_the_grouping_and_order_of_batches_do_not_matter(seed: int, cuts: list[int]) -> None:
    scores, targets, users = random_case(seed, 40, 5)
    parts = [Accuracy.from_scores(scores[i], targets[i], users[i]) for i in np.split(np.arange(40), sorted(cuts))]
    expected = Accuracy.from_scores(scores, targets, users)
    assert_equal(sum(parts, Accuracy.empty(5)), expected)
    assert_equal(sum(parts[::-1], Accuracy.empty(5)), expected)


def test_addition_is_associative_with_an_identity() -> None:
    a, b, c = (Accuracy.from_scores(*random_case(seed, 10, 5)) for seed in range(3))
    assert_equal((a + b) + c, a + (b + c))
    assert_equal(Accuracy.empty(5) + a, a)
    assert_equal(a + Accuracy.empty(5), a)


def test_empty_has_results_without_nan() -> None:
    assert set(Accuracy.empty(3).compute().values()) == {0.0}


@pytest.mark.parametrize(
    ("scores", "targets", "users", "message"),
    [
        (np.zeros(3), [0], None, r"scores has shape \(3,\)"),
        (np.zeros((2, 3)), [0], None, r"targets has shape \(1,\) but there are 2 examples"),
        (np.zeros((2, 3)), [0, 3], None, "targets has class 3 but there are 3 classes"),
        (np.zeros((2, 3)), [0, -1], None, "targets has class -1"),
        (np.zeros((2, 3)), [0.5, 1.0], None, "targets has type float64: give whole numbers"),
        (np.array([[0.0], [np.nan]]), [0, 0], None, "scores has a NaN in row 1"),
        (np.array([[0.0, 1.0], [np.inf, 0.0]]), [0, 0], None, "losses has a NaN in row 1"),
        (np.zeros((2, 3)), [0, 1], [1], r"users has shape \(1,\)"),
    ],
)
def test_bad_input_is_named(scores: Any, targets: Any, users: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Accuracy.from_scores(scores, targets, users)


def test_a_missing_loss_is_named() -> None:
    with pytest.raises(ValueError, match=r"losses has shape \(1,\) but there are 2 examples"):
        Accuracy.from_predictions([0, 1], [0, 1], 3, losses=[1.0])


def test_incompatible_accuracies_are_not_added() -> None:
    with pytest.raises(ValueError, match="3 and 4 classes"):
        Accuracy.empty(3) + Accuracy.empty(4)
    with pytest.raises(ValueError, match="with users and one without"):
        Accuracy.from_scores(np.eye(2), [0, 1], [7, 7]) + Accuracy.from_scores(np.eye(2), [0, 1])


def test_cross_entropy_equals_that_of_torch() -> None:
    scores, targets = torch.randn(20, 5, dtype=torch.float64) * 50, torch.arange(20) % 5
    expected = torch.nn.functional.cross_entropy(scores, targets, reduction="none").numpy()
    np.testing.assert_allclose(cross_entropy(scores.numpy(), targets.numpy()), expected, rtol=1e-12, atol=1e-12)


def test_the_summary_over_users_equals_a_hand_computation() -> None:
    # 20 users with values 0.00, 0.05, ..., 0.95; the last has 81 examples and the others one each
    values = np.arange(20) / 20
    counts = np.array([1] * 19 + [81])
    summary = PerUser(np.arange(20), values, counts, num_unscorable=4).summary()
    assert summary == pytest.approx(
        {
            "mean": 0.475,
            "weighted_mean": (8.55 + 81 * 0.95) / 100,
            "q05": 0.0475,
            "q25": 0.2375,
            "q50": 0.475,
            "q75": 0.7125,
            "q95": 0.9025,
            "worst_decile": 0.025,
        }
    )


def test_results_per_user_count_the_users_and_prefix_their_scores() -> None:
    results = PerUser(np.arange(2), np.array([0.2, 0.4]), np.array([1, 1]), num_unscorable=4).compute()
    assert (results["num_users_scored"], results["num_users_unscorable"]) == (2, 4)
    assert results["user_mean"] == pytest.approx(0.3)


def test_worst_decile_has_at_least_one_user() -> None:
    assert PerUser(np.arange(3), np.array([0.9, 0.2, 0.5]), np.ones(3, np.int64)).summary()["worst_decile"] == 0.2


def test_no_users_give_zeros() -> None:
    none = np.zeros(0, np.int64)
    assert set(PerUser(none, np.zeros(0), none).compute().values()) == {0.0}
