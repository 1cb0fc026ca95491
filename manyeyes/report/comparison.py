"""Federated runs against centralized training: accuracy, rounds to a target, fluctuation (Hsu et al. 2020, section 6)."""

from collections.abc import Mapping

import numpy as np

from manyeyes.metrics import Curve, relative_accuracy
from manyeyes.report.chart import Axis, Chart, ReferenceLine, make_series
from manyeyes.report.curves import X_AXES
from manyeyes.report.table import Table
from manyeyes.report.text import format_value

NUM_LAST = 5  # evaluations that the fluctuation is measured on


def comparison_table(curves: Mapping[str, Curve], baseline: float, target: float) -> Table:
    """Return a row for each curve, next to the accuracy `baseline` of centralized training."""
    header = [
        "",
        "accuracy",
        "relative",
        f"rounds to {100 * target:.0f} %",
        f"batches to {100 * target:.0f} %",
        "fluctuation",
    ]
    rows = [["centralized", format_value(baseline, percent=True), "1.00", "", "", ""]]
    for name, curve in curves.items():
        accuracy, fluctuation = float(curve.values_E[-1]), np.std(curve.values_E[-NUM_LAST:])
        scores = [format_value(accuracy, percent=True), f"{relative_accuracy(accuracy, baseline):.2f}"]
        costs = (curve.rounds_to(target), curve.batches_to(target))
        costs_text = ["never" if cost is None else f"{cost:,}" for cost in costs]
        rows.append([name, *scores, *costs_text, format_value(float(fluctuation), percent=True)])
    return Table("", header, rows)


def comparison_charts(curves: Mapping[str, Curve], baseline: float, target: float, title: str) -> list[Chart]:
    """Return the accuracy over rounds and over the batches of the largest client, below that of centralized training."""
    lines = [ReferenceLine("centralized", y=baseline), ReferenceLine("target", y=target)]
    y = Axis("test accuracy", percent=True, low=0, high=min(1.0, 1.15 * baseline))
    by_round = {name: (curve.rounds_E, curve.values_E) for name, curve in curves.items()}
    by_batch = {name: (curve.cumulative_batches_R[curve.rounds_E], curve.values_E) for name, curve in curves.items()}
    axes = {"round": ("rounds", by_round), "batch": (X_AXES["max_client_batches"], by_batch)}
    return [
        Chart(f"accuracy_by_{name}", title, Axis(label, low=0), y, make_series(columns), reference_lines=lines)
        for name, (label, columns) in axes.items()
    ]
