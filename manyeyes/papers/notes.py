"""Notes of rows: how the runs behind a number differ from the paper's, and whose model is scored."""

from collections.abc import Iterable

from manyeyes.core.population import CAVEAT_SEPARATOR
from manyeyes.papers.choices import open_choices
from manyeyes.papers.exhibit import ExhibitRow, make_run
from manyeyes.papers.metric import AfterRounds, Metric, is_relative
from manyeyes.papers.plan import ReproduceOptions

USER_METRIC = "user_mean"  # of clients that are scored on their own test images


def row_notes(row: ExhibitRow, options: ReproduceOptions) -> tuple[str, ...]:
    """Return what a reader has to know of a row's runs: their models, and each difference from the paper's once."""
    if row.same_as:
        return (f"With these options the runs of this row are those of {row.same_as}: they are measured there.",)
    described = (make_run(row.name, dataset) for dataset in row.datasets)
    runs = [options.apply(run) for run in (*row.runs, *described)]
    changes = dict.fromkeys(change for run in runs for change in run.changes)
    is_per_user = any(isinstance(metric, AfterRounds) and metric.metric == USER_METRIC for metric in row.expected)
    models = [_scored_model(run.setting("algorithm.head_layers")) for run in runs[:1] if is_per_user]
    return (*models, *changes)


def choice_notes(row: ExhibitRow, metric: Metric, options: ReproduceOptions) -> tuple[str, ...]:
    """Return what the paper leaves open of the runs behind a number, and the answers of these options."""
    baselines = [row.centralized_baseline] if is_relative(metric) and row.centralized_baseline is not None else []
    return tuple(choice.describe(options.answers[choice.name]) for choice in open_choices([*row.runs, *baselines]))


def caveat_notes(caveats: Iterable[str]) -> tuple[str, ...]:
    """Return the caveats of the data that a row was measured on."""
    return (f"Measured on {CAVEAT_SEPARATOR.join(caveats)}.",) if tuple(caveats) else ()


def _scored_model(head_layers: str | None) -> str:
    head = f"with its own head of {head_layers} layers" if head_layers else "with the shared model"
    return f"Each client is scored on its own test images, {head}."
