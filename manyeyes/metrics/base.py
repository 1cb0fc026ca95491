"""The metric slot: metrics that merge over batches, users and processes, and how their results are shown.

A metric is immutable. As configured it has seen nothing, `update` returns one that has also seen a batch, and `merge`
adds two up; the order and the grouping of batches do not matter.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, Self

from manyeyes.core.population import Population


@dataclass(frozen=True)
class ResultInfo:
    """How a result is shown and compared."""

    label: str
    is_fraction: bool = False  # between 0 and 1, shown as a percentage
    higher_is_better: bool | None = True  # None: neither, such as a count

    @property
    def is_count(self) -> bool:
        return self.higher_is_better is None


class Metric(Protocol):
    """What a split is scored with, in addition to the metrics that are always reported."""

    @property
    def results(self) -> Mapping[str, ResultInfo]:
        """The results of `compute`, by name."""

    def update(self, outputs_NC: Any, targets: Any) -> Self:
        """Return the metric with a batch added: logits [N, C], and class ids [N] or multi-hot rows [N, C]."""

    def merge(self, other: Self) -> Self:
        """Return the metric over what both have seen."""

    def compute(self) -> dict[str, float]:
        """Return the results; without examples they are 0."""


@dataclass(frozen=True, eq=False)
class MetricSet:
    """Several metrics as one; before round 1 each may refuse data by `incompatibility(population) -> str | None`."""

    metrics: tuple[Any, ...] = ()

    @property
    def results(self) -> dict[str, ResultInfo]:
        return {name: info for metric in self.metrics for name, info in getattr(metric, "results", {}).items()}

    def validate(self, population: Population) -> None:
        """Raise ValueError for a metric that does not fit the data, and for two with a result of the same name."""
        for metric in self.metrics:
            if hasattr(metric, "incompatibility") and (reason := metric.incompatibility(population)):
                raise ValueError(reason)
        self.compute()

    def update(self, outputs_NC: Any, targets: Any) -> "MetricSet":
        updated = tuple(metric.update(outputs_NC, targets) for metric in self.metrics)
        for old, new in zip(self.metrics, updated, strict=True):
            if not isinstance(new, type(old)):
                name, kind = type(old).__name__, type(new).__name__
                raise ValueError(f"update of metric {name} returned {kind}: return a new {name} that adds the batch")
        return MetricSet(updated)

    def merge(self, other: "MetricSet") -> "MetricSet":
        return MetricSet(tuple(a.merge(b) for a, b in zip(self.metrics, other.metrics, strict=True)))

    def compute(self) -> dict[str, float]:
        results: dict[str, float] = {}
        for metric in self.metrics:
            for name, value in metric.compute().items():
                if name in results:
                    raise ValueError(f"metrics has two metrics with a result {name!r}: leave one of them out")
                results[name] = float(value)
        return results


NO_METRICS = MetricSet()
