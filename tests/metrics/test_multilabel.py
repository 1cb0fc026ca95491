"""Multi-label metrics against scikit-learn, a plain loop and FLAIR's table 1, and their merging."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from sklearn.metrics import average_precision_score, precision_recall_fscore_support

from manyeyes.metrics import MultiLabelScores, multilabel

Arrays = tuple[NDArray[Any], NDArray[Any]]


@st.composite
def arrays(draw: st.DrawFn) -> Arrays:
    """Draw scores of few values (ties, or all equal) or many, and rare, frequent, absent and omnipresent classes."""
    rng = np.random.default_rng(draw(st.integers(0, 99999)))
    shape = draw(st.integers(1, 30)), draw(st.integers(2, 8))
    dtype = draw(st.sampled_from([np.float32, np.float64]))
    levels = draw(st.sampled_from([1, 2, 5, 0]))
    scores = rng.integers(0, levels, shape) - levels // 2 if levels else rng.normal(size=shape)
    frequency = rng.choice([0.0, 0.1, 0.5, 1.0], shape[1])
    return scores.astype(dtype), (rng.random(shape) < frequency).astype(draw(st.sampled_from([bool, np.float32, int])))


def sklearn_ap(hot: Any, scores: Any, average: str | None) -> Any:
    with warnings.catch_warnings():  # it warns of classes without positives, and gives 0
        warnings.simplefilter("ignore")
        return average_precision_score(hot, scores, average=average)


@pytest.mark.slow
@settings(deadline=None, max_examples=200)
@given(arrays())
def test_average_precision_equals_scikit_learn(case: Arrays) -> None:
    scores, hot = case
    metric = MultiLabelScores.from_scores(scores, hot)
    np.testing.assert_allclose(metric.per_class().ap_C, sklearn_ap(hot, scores, None), atol=1e-9)
    assert metric.compute()["macro_ap"] == pytest.approx(sklearn_ap(hot, scores, "macro"), abs=1e-9)
    assert metric.compute()["micro_ap"] == pytest.approx(sklearn_ap(hot, scores, "micro"), abs=1e-9)
    assert metric.compute()["classes_without_positives"] == sum(not column.any() for column in hot.T)


@pytest.mark.slow
@settings(deadline=None, max_examples=100)
@given(arrays(), st.sampled_from([-1.0, 0.0, 0.5]))
def test_precision_recall_f1_equal_scikit_learn(case: Arrays, threshold: float) -> None:
    scores, hot = case
    metric = MultiLabelScores.from_scores(scores, hot)
    per_class = metric.per_class(threshold)
    expected = precision_recall_fscore_support(hot, scores > threshold, average=None, zero_division=0)
    ours_4C = (per_class.precision_C, per_class.recall_C, per_class.f1_C, per_class.support_C)
    for ours, theirs in zip(ours_4C, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-12)
    for average in ("macro", "micro"):
        expected = precision_recall_fscore_support(hot, scores > threshold, average=average, zero_division=0)[:3]
        overall = [metric.compute(threshold)[f"{average}_{name}"] for name in ("precision", "recall", "f1")]
        assert overall == pytest.approx(expected, abs=1e-12)


def test_many_blocks_of_classes_give_what_one_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    scores, hot = rng.integers(-9, 9, (50, 23)).astype(np.float32), rng.random((50, 23)) < 0.2
    monkeypatch.setattr(multilabel, "BLOCK_SCORES", 150)
    metric = MultiLabelScores.from_scores(scores, hot)
    np.testing.assert_allclose(metric.per_class().ap_C, sklearn_ap(hot, scores, None), atol=1e-12)
    assert metric.compute()["micro_ap"] == pytest.approx(sklearn_ap(hot, scores, "micro"), abs=1e-12)


def test_a_tie_shares_one_threshold() -> None:
    # at 2: 1 of 1 right; at 1: 2 of 3 right, the order within the tie being unknown
    assert MultiLabelScores.from_scores([[1.0], [2.0], [1.0]], [[1], [1], [0]]).per_class().ap_C[0] == pytest.approx(
        5 / 6
    )


def test_float64_scores_are_not_rounded_into_ties() -> None:
    assert MultiLabelScores.from_scores([[1.0], [1.0 + 1e-12]], [[0], [1]]).compute()["macro_ap"] == 1.0


@pytest.mark.parametrize(("correct", "missed"), [(1, 3), (4, 0)])
def test_c_f1_is_the_harmonic_mean_of_macro_precision_and_recall(correct: int, missed: int) -> None:
    # class 0: precision 1, recall correct / 4; class 1: never predicted
    scores = np.column_stack([[1.0] * correct + [-1.0] * missed, [-1.0] * 4])
    precision, recall = 0.5, correct / 8
    results = MultiLabelScores.from_scores(scores, np.ones((4, 2))).compute()
    assert results["c_f1"] == pytest.approx(2 * precision * recall / (precision + recall))


def test_flair_prints_c_f1_and_not_macro_f1() -> None:
    # table 1, C-R-17: C-P 71.7, C-R 49.3, C-F1 58.4. Two classes with those means: precision and recall of 90.0 and
    # 80.0, and of 53.4 and 18.6; their own F1 are 84.7 and 27.6, whose mean is 56.1
    columns = [(800, 89, 200), (186, 162, 814)]  # true positives, false positives, missed
    scores = np.stack([[1.0] * f + [1.0] * w + [-1.0] * m + [-1.0] * (1162 - f - w - m) for f, w, m in columns], 1)
    hot = np.stack([[1] * f + [0] * w + [1] * m + [0] * (1162 - f - w - m) for f, w, m in columns], 1)
    results = MultiLabelScores.from_scores(scores, hot).compute()
    assert round(100 * results["c_f1"], 1) == 58.4
    assert round(100 * results["macro_f1"], 1) == 56.1


def test_tensors_are_copied() -> None:
    scores, hot = torch.tensor([[1.0, -1.0], [0.5, 2.0]]), torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    metric = MultiLabelScores.from_scores(scores, hot)
    scores.zero_()
    hot.zero_()
    assert metric.compute()["macro_ap"] == 1.0


@settings(deadline=None, max_examples=50)
@given(arrays(), st.integers(1, 5), st.integers(0, 999))
def test_per_user_equals_a_plain_loop(case: Arrays, users: int, seed: int) -> None:
    scores, hot = case
    users_N = np.random.default_rng(seed).integers(0, users, len(scores)) * 10
    expected, unscorable = {}, 0
    for user in np.unique(users_N):
        is_user_N = users_N == user
        values = [
            sklearn_ap(h, s, None)
            for h, s in zip(hot[is_user_N].T, scores[is_user_N].T, strict=True)
            if 0 < h.mean() < 1
        ]
        if values:
            expected[user] = (np.mean(values), is_user_N.sum())
        unscorable += not values
    per_user = MultiLabelScores.from_scores(scores, hot, users_N).per_user()
    assert per_user.users_U.tolist() == sorted(expected)
    np.testing.assert_allclose(per_user.values_U, [expected[user][0] for user in sorted(expected)], atol=1e-9)
    assert per_user.counts_U.tolist() == [expected[user][1] for user in sorted(expected)]
    assert per_user.num_unscorable == unscorable


def test_user_results_are_in_the_table() -> None:
    scores = [[1.0, 0.0], [0.0, 1.0], [0.0, 2.0], [0.0, 3.0], [0.0, 1.0]]
    hot = [[0, 0], [1, 1], [1, 0], [1, 0], [1, 1]]  # of one user nothing, of one all, of one class 0 in all of two
    results = MultiLabelScores.from_scores(scores, hot, [4, 5, 5, 6, 7]).compute()
    assert (results["num_users_scored"], results["num_users_unscorable"], results["user_mean"]) == (1, 3, 0.5)


@pytest.mark.slow
@settings(deadline=None, max_examples=50)
@given(arrays(), st.lists(st.integers(0, 30), max_size=4))
def test_the_grouping_and_order_of_batches_do_not_matter(case: Arrays, cuts: list[int]) -> None:
    scores, hot = case
    users = np.arange(len(scores)) % 3
    slices = np.split(np.arange(len(scores)), sorted(min(cut, len(scores)) for cut in cuts))
    parts = [MultiLabelScores.from_scores(scores[i], hot[i], users[i]) for i in slices]
    expected = MultiLabelScores.from_scores(scores, hot, users).compute()
    empty = MultiLabelScores.empty(scores.shape[1])
    assert sum(parts, empty).compute() == expected
    assert sum(parts[::-1], empty).compute() == expected


def test_addition_is_associative_with_an_identity() -> None:
    rng = np.random.default_rng(0)
    a, b, c = (MultiLabelScores.from_scores(rng.normal(size=(9, 4)), rng.random((9, 4)) < 0.3) for _ in range(3))
    empty = MultiLabelScores.empty(4)
    assert ((a + b) + c).compute() == (a + (b + c)).compute()
    assert (empty + a).compute() == a.compute() == (a + empty).compute()


def test_empty_has_results_without_nan() -> None:
    results = MultiLabelScores.empty(3).compute()
    assert results.pop("classes_without_positives") == 3
    assert set(results.values()) == {0.0}


@pytest.mark.parametrize(
    ("scores", "targets", "users", "message"),
    [
        (np.zeros((2, 3)), np.zeros((2, 4)), None, r"targets has shape \(2, 4\) but scores \(2, 3\)"),
        (np.zeros((2, 3)), np.full((2, 3), 0.5), None, "targets has the value 0.5"),
        (np.zeros((1, 2)), [[np.nan, 0]], None, "targets has the value nan"),
        (np.array([[0.0, 1.0], [0.0, np.nan]]), np.zeros((2, 2)), None, "scores has a NaN in row 1"),
        (np.zeros((2, 0)), np.zeros((2, 0)), None, r"scores has shape \(2, 0\)"),
        (np.array([["a"]]), [[0]], None, "scores has type <U1: give real numbers"),
        (np.zeros((2, 3)), np.zeros((2, 3)), [1], r"users has shape \(1,\) but there are 2 examples"),
    ],
)
def test_bad_input_is_named(scores: Any, targets: Any, users: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        MultiLabelScores.from_scores(scores, targets, users)


def test_incompatible_scores_are_not_added() -> None:
    with pytest.raises(ValueError, match="3 and 4 classes"):
        MultiLabelScores.empty(3) + MultiLabelScores.empty(4)
    with pytest.raises(ValueError, match="with users and scores without"):
        MultiLabelScores.from_scores([[1.0]], [[1]], [7]) + MultiLabelScores.from_scores([[1.0]], [[1]])
    with pytest.raises(ValueError, match="the scores have no users"):
        MultiLabelScores.from_scores([[1.0]], [[1]]).per_user()


def test_mean_binary_cross_entropy_equals_that_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(multilabel, "BLOCK_EXAMPLES", 3)
    scores, hot = torch.randn(20, 5, dtype=torch.float64), (torch.arange(100).view(20, 5) % 3 == 0).double()
    halves = (MultiLabelScores.from_scores(scores[i : i + 10], hot[i : i + 10]) for i in (0, 10))
    expected = torch.nn.functional.binary_cross_entropy_with_logits(scores, hot).item()
    assert sum(halves, MultiLabelScores.empty(5)).mean_loss == pytest.approx(expected, rel=1e-12)


def test_no_scores_have_no_loss() -> None:
    assert MultiLabelScores.empty(3).mean_loss == 0
