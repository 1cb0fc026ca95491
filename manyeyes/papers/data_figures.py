"""Figures of datasets: images and classes of each client, how common labels are, how far users' pixels differ."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from manyeyes.core.population import Ints, Population
from manyeyes.papers.results import ExhibitResults
from manyeyes.report.chart import Axis, Chart, Mark, Series
from manyeyes.report.population import cumulative_share, pixel_skew
from manyeyes.training.dataset_stats import Doubles, split_stats

MAX_POINTS = 400  # of a line over clients
MAX_NAMED_CLASSES = 40  # that a chart has room for


def classes_per_client(results: ExhibitResults) -> list[Chart]:
    """Figures 2, 3 and 10 of Hsu et al.: classes and images of each client, the largest first."""
    datasets = _named(results).items()
    stats = {name: split_stats(name, population.split("train")) for name, population in datasets}
    charts = []
    for label, counts in (
        ("classes", [split.classes_U for split in stats.values()]),
        ("images", [split.sizes_U for split in stats.values()]),
    ):
        series = [
            line(name, ranks, np.sort(count)[::-1][ranks - 1], color)
            for color, (name, count) in enumerate(zip(stats, counts, strict=True))
            for ranks in [np.unique(np.geomspace(1, len(count), MAX_POINTS).round().astype(np.int64))]
        ]
        title = f"{label} of the clients, the largest first"
        charts.append(make_chart(results, title, Axis("clients", log=True), Axis(label, log=True), series))
    return charts


def quantity_skew(results: ExhibitResults) -> Chart:
    """FLAIR's figure 2, left: the fraction of all images that the largest users have."""
    series = []
    for color, (name, population) in enumerate(_named(results).items()):
        fraction_U = cumulative_share(population.num_examples)
        points = spread(len(fraction_U))
        series.append(line(name, points / (len(fraction_U) - 1), fraction_U[points], color))
    x, y = Axis("share of the users, the largest first"), Axis("share of the images", percent=True)
    return make_chart(results, "images of the largest users", x, y, series)


def pixel_skews(results: ExhibitResults) -> list[Chart]:
    """FLAIR's figure 2, right: how far users' pixel histograms are from the average, of the first dataset."""
    for name, population in list(_named(results).items())[:1]:
        if (skew := pixel_skew(population)) is not None:
            distances = {"equal sizes": skew.equal_sizes, "real sizes": skew.real_sizes, "the users": skew.actual}
            series = []
            for color, (label, emd_U) in enumerate(distances.items()):
                points = spread(len(emd_U))
                is_simulated = label != "the users"
                series.append(line(label, np.sort(emd_U)[points], (points + 1) / len(emd_U), color, is_simulated))
            x, y = Axis("EMD of pixel histograms"), Axis("users with at most that EMD", percent=True)
            return [make_chart(results, f"{name}, images with {skew.label}", x, y, series)]
    return []


def label_counts(results: ExhibitResults) -> list[Chart]:
    """FLAIR's figure 3: how many images have each label, and which fraction of the users."""
    charts: list[Chart] = []
    for name, population in _named(results).items():
        stats = split_stats(name, population)
        order = np.argsort(-stats.labels_C, kind="stable")
        is_named = len(order) <= MAX_NAMED_CLASSES
        names = tuple(population.classes[index] for index in order) if is_named else ()
        x, ranks = Axis("" if is_named else "labels, the most common first", names=names), list(range(len(order)))
        images = Series("images", ranks, stats.labels_C[order].tolist(), kind="bars" if is_named else "steps")
        users = Series("users", ranks, (stats.holders_C[order] / len(population.user_ids)).tolist(), color=1)
        image_axis = Axis("images with the label", log=not is_named)
        charts.append(make_chart(results, f"{name} labels, images", x, image_axis, [images]))
        user_axis = Axis("users who have the label", percent=True)
        charts.append(make_chart(results, f"{name} labels, users", x, user_axis, [users]))
    return charts


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
    marks = [] if centralized is None else [Mark("centralized", y=centralized)]
    return Chart("chart", full_title, x, y, series, caption, marks)


def _named(results: ExhibitResults) -> dict[str, Population]:
    """Return the available datasets of the rows, by the row's name."""
    return {
        row.name if len(row.datasets) == 1 else f"{row.name}, {Path(dataset.path).name}": results.populations[dataset]
        for row in results.exhibit.rows
        for dataset in row.datasets
        if dataset in results.populations
    }


def spread(count: int) -> Ints:
    """Return indices into a line of this length, all or evenly spread ones."""
    return np.unique(np.linspace(0, count - 1, MAX_POINTS).astype(np.int64))


def line(name: str, x: Ints | Doubles, y: Ints | Doubles, color: int, dashed: bool = False) -> Series:
    return Series(name, x.tolist(), y.tolist(), dashed=dashed, color=color)
