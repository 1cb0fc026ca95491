"""Charts of runs for a notebook."""

from dataclasses import dataclass
from pathlib import Path

from manyeyes.core.registry import suggestion
from manyeyes.report.chart import Chart
from manyeyes.report.curves import data_caveat, group_runs, metric_chart, metric_label, metrics
from manyeyes.report.export import write_chart
from manyeyes.report.svg import render_svg
from manyeyes.training.result import Result
from manyeyes.training.run_record import RunRecord


@dataclass(frozen=True)
class Figure:
    """A chart, which a notebook shows and `save` writes to a file."""

    chart: Chart

    def save(self, path: str | Path) -> None:
        """Write the chart as .svg, or as .png if resvg-py is installed."""
        write_chart(self.chart, Path(path))

    def __repr__(self) -> str:
        return f"Figure({self.chart.title!r}, {len(self.chart.series)} curves)"

    def _repr_html_(self) -> str:
        return render_svg(self.chart)


def plot(*runs: Result | RunRecord, metric: str = "") -> Figure:
    """Return a chart of a metric over rounds.

    Parameters
    ----------
    runs
        What `train`, `load_run` and `load_runs` return; runs that differ only in their seed are one line with a band.
    metric
        Such as "accuracy" or "train_loss"; by default the score that the runs show first.
    """
    if not runs:
        raise ValueError("plot needs a run: give results of train, or runs of load_run.")
    records = [run.record if isinstance(run, Result) else run for run in runs]
    known = metrics(records)
    if not known:
        raise ValueError("The runs have no completed round yet: there is nothing to plot.")
    name = metric or known[0]
    if name not in known:
        raise ValueError(f"The runs have no metric {name!r}{suggestion(name, known)}: choose {', '.join(known)}.")
    label = metric_label(records, name)
    chart = metric_chart(group_runs(records), name, label[:1].upper() + label[1:], "")
    return Figure(chart.with_caveat(data_caveat(records)))
