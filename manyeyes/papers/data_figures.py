"""Figures of datasets: images and classes of each client, how common labels are, how far users' pixels differ."""

from collections.abc import Sequence
from pathlib import Path

from manyeyes.core.population import Population
from manyeyes.papers.results import ExhibitResults
from manyeyes.report import population_charts as charts
from manyeyes.report.chart import Axis, Chart, ReferenceLine, Series
from manyeyes.report.population import pixel_skew
from manyeyes.training.dataset_stats import split_stats


def classes_per_client(results: ExhibitResults) -> list[Chart]:
    """Figures 2, 3 and 10 of Hsu et al.: classes and images of each client, the largest first."""
    stats = [split_stats(name, population.split("train")) for name, population in _named(results).items()]
    drawn = (charts.classes_chart(stats), charts.images_chart(stats)) if stats else ()
    return [_of_exhibit(results, chart, chart.y.label) for chart in drawn]


def quantity_skews(results: ExhibitResults) -> list[Chart]:
    """FLAIR's figure 2, left: the fraction of all images that the largest users have."""
    stats = [split_stats(name, population) for name, population in _named(results).items()]
    return [_of_exhibit(results, charts.quantity_chart(stats), "images of the largest users")] if stats else []


def pixel_skews(results: ExhibitResults) -> list[Chart]:
    """FLAIR's figure 2, right: how far users' pixel histograms are from the average, of the first dataset."""
    for name, population in list(_named(results).items())[:1]:
        if (skew := pixel_skew(population)) is not None:
            chart = charts.pixel_emd_chart(skew.actual, skew.real_sizes, skew.equal_sizes, "")
            return [_of_exhibit(results, chart, f"{name}, images with {skew.label}")]
    return []


def label_counts(results: ExhibitResults) -> list[Chart]:
    """FLAIR's figure 3: how many images have each label, and which fraction of the users."""
    return [
        _of_exhibit(results, chart, f"{name}, {chart.y.label}")
        for name, population in _named(results).items()
        for chart in charts.label_charts(split_stats(name, population), population.classes)
    ]


def make_chart(
    results: ExhibitResults,
    title: str,
    x: Axis,
    y: Axis,
    series: Sequence[Series],
    centralized: float | None = None,
    note: str = "",
) -> Chart:
    """Return a chart that says if its runs are not the paper's, with a line at the centralized result."""
    tag = f" ({results.options.tag})" if results.options.tag else ""
    full_title = ", ".join(filter(None, [results.exhibit.key, title])) + tag
    caption = " ".join(filter(None, [results.exhibit.claim, results.options.disclaimer, note]))
    reference_lines = [] if centralized is None else [ReferenceLine("centralized", y=centralized)]
    return Chart("chart", full_title, x, y, series, caption, reference_lines)


def _of_exhibit(results: ExhibitResults, chart: Chart, title: str) -> Chart:
    """Return a chart of a dataset with the title and the caption of an exhibit."""
    return make_chart(results, title, chart.x, chart.y, chart.series)


def _named(results: ExhibitResults) -> dict[str, Population]:
    """Return the available datasets of the rows, by the row's name."""
    return {
        row.name if len(row.datasets) == 1 else f"{row.name}, {Path(dataset.path).name}": results.populations[dataset]
        for row in results.exhibit.rows
        for dataset in row.datasets
        if dataset in results.populations
    }
