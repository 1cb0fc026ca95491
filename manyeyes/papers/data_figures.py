"""Figures of data: how many images and classes clients hold, how common labels are, how far users' pixels differ."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from manyeyes.core.population import Population
from manyeyes.papers.comparison import ExhibitResults
from manyeyes.papers.exhibit import DatasetRecipe, ExhibitRow
from manyeyes.report.chart import Axis, Chart, Mark, Series
from manyeyes.report.population import PixelSkew, cumulative_share, pixel_skew
from manyeyes.training.dataset_stats import split_stats

MOST = 400  # points of a line over clients
NAMED = 40  # classes that are few enough for names

Populations = Mapping[DatasetRecipe, Population]


def classes_of_clients(found: ExhibitResults, populations: Populations) -> list[Chart]:
    """Figures 2, 3 and 10 of Hsu et al.: classes and images of each client, the largest first."""
    held = [(name, split_stats(name, people.split("train"))) for name, people in _held(found, populations)]
    charts = []
    for label, counts in (
        ("classes", [(name, one.classes_U) for name, one in held]),
        ("images", [(name, one.sizes_U) for name, one in held]),
    ):
        series = []
        for place, (name, count) in enumerate(counts):
            ranks = _ranks(len(count))
            values = np.sort(count)[::-1][ranks - 1]
            series.append(Series(name, ranks.tolist(), values.tolist(), color=place))
        title = f"{label} of the clients, the largest first"
        charts.append(chart(found, title, Axis("clients", log=True), Axis(label, log=True), series))
    return charts


def quantity(found: ExhibitResults, populations: Populations) -> Chart:
    """FLAIR's figure 2, left: the share of all images that the largest users hold."""
    series = []
    for place, (name, people) in enumerate(_held(found, populations)):
        shares = cumulative_share(people.num_examples)
        at = np.unique(np.linspace(0, len(shares) - 1, MOST).astype(int))
        series.append(Series(name, (at / (len(shares) - 1)).tolist(), shares[at].tolist(), color=place))
    x, y = Axis("share of the users, the largest first"), Axis("share of the images", percent=True)
    return chart(found, "images of the largest users", x, y, series)


def pixels(found: ExhibitResults, populations: Populations) -> list[Chart]:
    """FLAIR's figure 2, right: how far users' pixel histograms are from the average."""
    for name, people in _held(found, populations)[:1]:
        skew = pixel_skew(people)
        if skew is not None:
            x, y = Axis("EMD of pixel histograms"), Axis("users with at most that EMD", percent=True)
            title = f"{name}, images with {skew.label}"
            return [chart(found, title, x, y, _skews(skew))]
    return []


def label_counts(found: ExhibitResults, populations: Populations) -> list[Chart]:
    """FLAIR's figure 3: how many images have each label, and which share of the users."""
    charts: list[Chart] = []
    for name, people in _held(found, populations):
        one = split_stats(name, people)
        order = np.argsort(-one.labels_C, kind="stable")
        few = len(order) <= NAMED
        x = Axis("" if few else "labels, the most common first", names=_names(people, order) if few else ())
        places = list(range(len(order)))
        counts = Series("images", places, one.labels_C[order].tolist(), kind="bars" if few else "steps")
        share = Series("users", places, (one.holders_C[order] / len(people.user_ids)).tolist(), color=1)
        y = Axis("images with the label", log=not few)
        charts.append(chart(found, f"{name} labels, images", x, y, [counts]))
        y = Axis("users who have the label", percent=True)
        charts.append(chart(found, f"{name} labels, users", x, y, [share]))
    return charts


def _held(found: ExhibitResults, populations: Populations) -> list[tuple[str, Population]]:
    """The datasets that the rows show, by the row's name."""
    return [
        (_named(row, store), populations[store])
        for row in found.item.rows
        for store in row.stores
        if store in populations
    ]


def _named(row: ExhibitRow, store: DatasetRecipe) -> str:
    return row.name if len(row.stores) == 1 else f"{row.name}, {Path(store.path).name}"


def _skews(skew: PixelSkew) -> list[Series]:
    parts = (("equal sizes", skew.equal_sizes), ("real sizes", skew.real_sizes), ("the users", skew.actual))
    series = []
    for place, (name, values) in enumerate(parts):
        ordered = np.sort(values)
        at = np.unique(np.linspace(0, len(ordered) - 1, MOST).astype(int))
        share = (at + 1) / len(ordered)
        series.append(Series(name, ordered[at].tolist(), share.tolist(), dashed=place < 2, color=place))
    return series


def _names(people: Population, order: np.ndarray[tuple[int], np.dtype[np.int64]]) -> tuple[str, ...]:
    return tuple(people.classes[place] for place in order)


def _ranks(count: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Ranks from 1 to the count, all where they are few, else spread over the logarithm."""
    return np.unique(np.geomspace(1, count, MOST).round().astype(np.int64)) if count > 1 else np.array([1])


def chart(
    found: ExhibitResults,
    title: str,
    x: Axis,
    y: Axis,
    series: Sequence[Series],
    marks: Sequence[Mark] = (),
    also: str = "",
) -> Chart:
    """A chart of the item, which says where it is not of the paper's own runs."""
    head = f"{found.item.key}{f', {title}' if title else ''}" + (f" ({found.options.tag})" if found.options.tag else "")
    return Chart(
        "chart", head, x, y, series, " ".join(filter(None, [found.item.claim, found.options.disclaimer, also])), marks
    )
