"""The headline of a run: the metric that is shown first, wherever a run is shown.

Where clients have personalized models, these are what the algorithm is for: their metric is the headline, and that of
the shared model is next to it, by its name.
"""

from collections.abc import Container

from manyeyes.metrics import PERSONALIZED

SHARED_METRICS = ("macro_ap", "accuracy")
HEADLINE_METRICS = (*(PERSONALIZED + name for name in SHARED_METRICS), *SHARED_METRICS)  # the first that a run has


def headline_metric(names: Container[str]) -> str | None:
    """Return the metric that is shown first of those that a run has."""
    return next((name for name in HEADLINE_METRICS if name in names), None)


def shared_metric(metric: str | None) -> str | None:
    """Return the same metric of the shared model, if `metric` is one of personalized models."""
    return metric.removeprefix(PERSONALIZED) if metric is not None and metric.startswith(PERSONALIZED) else None


def shared_model_name(has_personal_layers: bool) -> str:
    """Return what the models are called that the personalized models of a run are compared with."""
    return "models before fine-tuning" if has_personal_layers else "shared model"
