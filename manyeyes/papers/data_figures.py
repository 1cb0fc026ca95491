"""Figures of datasets: images and classes of each client, how common labels are, how far users' pixels differ."""

from collections.abc import Iterator
from pathlib import Path

from manyeyes.core.population import Population
from manyeyes.metrics.heterogeneity import split_stats
from manyeyes.papers.results import ExhibitResults
from manyeyes.report import population_charts as charts
from manyeyes.report.chart import Chart
from manyeyes.report.population import pixel_skew


def classes_per_client(results: ExhibitResults) -> Iterator[Chart]:
    """Figures 2, 3 and 10 of Hsu et al.: classes and images of each client, the largest first."""
    if stats := [split_stats(name, population.split("train")) for name, population in _named(results).items()]:
        for chart in (charts.classes_chart(stats), charts.images_chart(stats)):
            yield _retitled(chart, chart.y.label)


def skews(results: ExhibitResults) -> Iterator[Chart]:
    """FLAIR's figure 2: the images of the largest users, and how far users' pixels are from the average."""
    populations = _named(results)
    if stats := [split_stats(name, population) for name, population in populations.items()]:
        yield _retitled(charts.quantity_chart(stats), "images of the largest users")
    for name, population in list(populations.items())[:1]:
        if (skew := pixel_skew(population)) is not None:
            chart = charts.pixel_emd_chart(skew.actual, skew.real_sizes, skew.equal_sizes, "")
            yield _retitled(chart, f"{name}, images with {skew.label}")


def label_counts(results: ExhibitResults) -> Iterator[Chart]:
    """FLAIR's figure 3: how many images have each label, and which fraction of the users."""
    for name, population in _named(results).items():
        for chart in charts.label_charts(split_stats(name, population), population.classes):
            yield _retitled(chart, f"{name}, {chart.y.label}")


def _retitled(chart: Chart, title: str) -> Chart:
    return Chart("", title, chart.x, chart.y, chart.series)


def _named(results: ExhibitResults) -> dict[str, Population]:
    return {
        row.name if len(row.datasets) == 1 else f"{row.name}, {Path(dataset.path).name}": results.populations[dataset]
        for row in results.exhibit.rows
        for dataset in row.datasets
        if dataset in results.populations
    }
