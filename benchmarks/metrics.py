"""Seconds of the multi-label metrics at FLAIR's size (fine-grained test set), and of scikit-learn's on a subset.

python benchmarks/metrics.py [--examples 43960] [--classes 1628] [--subset 100]
"""

from __future__ import annotations

import argparse
import time
import tracemalloc
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from sklearn.metrics import average_precision_score, precision_recall_fscore_support

from manyeyes.metrics import MultiLabelScores
from manyeyes.metrics.threshold_ap import NUM_THRESHOLDS, ThresholdCounts, num_above_thresholds

LABELS_PER_IMAGE = 4.6  # as in FLAIR
NUM_USERS = 5_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--examples", type=int, default=43_960)
    parser.add_argument("--classes", type=int, default=1_628)
    parser.add_argument("--subset", type=int, default=100, help="classes that scikit-learn is timed on")
    args = parser.parse_args()

    rng = np.random.default_rng(0)
    frequency_C = 1 / np.arange(1, args.classes + 1)
    hot_NC = rng.random((args.examples, args.classes), np.float32) < LABELS_PER_IMAGE * frequency_C / frequency_C.sum()
    scores_NC = rng.standard_normal(hot_NC.shape, np.float32) + 2 * hot_NC.astype(np.float32) - 3
    users_N = (NUM_USERS * rng.random(args.examples) ** 3).astype(np.int64)  # a few large users, many small ones

    print(f"{args.examples} x {args.classes} scores, {hot_NC.sum() / args.examples:.1f} positives per example")
    seconds, _ = time_call(lambda: MultiLabelScores.from_scores(scores_NC, hot_NC).compute())
    print(f"manyeyes, all                 {seconds:8.2f} s")
    compare_thresholds(scores_NC, hot_NC, seconds)
    seconds, _ = time_call(lambda: MultiLabelScores.from_scores(scores_NC, hot_NC, users_N).per_user())
    print(f"manyeyes, per user            {seconds:8.2f} s   {len(np.unique(users_N))} users")
    tracemalloc.start()
    seconds, _ = time_call(lambda: in_batches(scores_NC, hot_NC, 512))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    print(f"manyeyes, in batches of 512   {seconds:8.2f} s   {peak / 2**30:.2f} GiB in addition to the input")

    subset_NC, subset_hot_NC = scores_NC[:, : args.subset].copy(), hot_NC[:, : args.subset].copy()
    ours_s, ours = time_call(lambda: MultiLabelScores.from_scores(subset_NC, subset_hot_NC).compute())
    theirs_s, theirs = time_call(lambda: scikit_learn(subset_NC, subset_hot_NC))
    print(
        f"{args.subset} classes: manyeyes {ours_s:.2f} s, scikit-learn {theirs_s:.2f} s, {theirs_s / ours_s:.1f} times"
    )
    print(f"largest difference            {max(abs(ours[name] - theirs[name]) for name in theirs):8.1e}")


def compare_thresholds(scores_NC: Any, hot_NC: Any, total_s: float) -> None:
    """Print what the average precision at 200 thresholds adds to the exact one, and what it costs to count it anew."""
    sorted_CN = np.sort(scores_NC.T, axis=1)
    positives = [np.sort(scores_NC[is_positive_N, c]) for c, is_positive_N in enumerate(hot_NC.T)]

    def in_sorted_scores() -> Any:
        counts = (np.array([num_above_thresholds(ascending) for ascending in rows]) for rows in (sorted_CN, positives))
        return ThresholdCounts(*counts).average_precision()

    seconds, ap_200_C = time_call(in_sorted_scores)
    print(f"of which at 200 thresholds    {seconds:8.2f} s   {seconds / total_s:.1%} of all")
    seconds, expected_C = time_call(lambda: released_ap(scores_NC, hot_NC))
    print(
        f"the same as Keras counts it   {seconds:8.2f} s   largest difference {np.abs(ap_200_C - expected_C).max():.1e}"
    )


def released_ap(scores_NC: Any, hot_NC: Any) -> Any:
    """Count as Keras's AUC does: the bucket of each sigmoid, then sums from the highest bucket down."""
    buckets_NC = np.maximum(np.ceil((NUM_THRESHOLDS - 1) / (1 + np.exp(-scores_NC))) - 1, 0).astype(np.int64)
    ap_C = []
    for bucket_N, is_positive_N in zip(buckets_NC.T, hot_NC.T, strict=True):
        chosen = (bucket_N, bucket_N[is_positive_N])
        examples_T, positives_T = (np.bincount(b, minlength=NUM_THRESHOLDS)[::-1].cumsum()[::-1] for b in chosen)
        recall_T = positives_T / max(1, positives_T[0])
        ap_C.append(-np.sum(np.diff(recall_T) * (positives_T / np.maximum(examples_T, 1))[:-1]))
    return np.array(ap_C)


def time_call(call: Callable[[], Any]) -> tuple[float, Any]:
    start = time.perf_counter()
    result = call()
    return time.perf_counter() - start, result


def in_batches(scores_NC: Any, hot_NC: Any, size: int) -> dict[str, float]:
    starts = range(0, len(scores_NC), size)
    batches = (MultiLabelScores.from_scores(scores_NC[i : i + size], hot_NC[i : i + size]) for i in starts)
    return sum(batches, MultiLabelScores.empty(scores_NC.shape[1])).compute()


def scikit_learn(scores_NC: Any, hot_NC: Any) -> dict[str, float]:
    results = {}
    for average in ("macro", "micro"):
        with warnings.catch_warnings():  # scikit-learn warns about classes without positives
            warnings.simplefilter("ignore")
            results[f"{average}_ap"] = average_precision_score(hot_NC, scores_NC, average=average)
        values = precision_recall_fscore_support(hot_NC, scores_NC > 0, average=average, zero_division=0)
        for name, value in zip(("precision", "recall", "f1"), values, strict=False):
            results[f"{average}_{name}"] = value
    return results


if __name__ == "__main__":
    main()
