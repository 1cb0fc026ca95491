"""Charts of a population: their series have the numbers that were given."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from manyeyes.metrics.heterogeneity import SplitStats
from manyeyes.report import population_charts as charts
from manyeyes.report.chart import Chart
from manyeyes.report.export import render_png
from manyeyes.report.svg import render_svg


def make_stats(
    sizes: Any = (1,), labels: Any = (1,), holders: Any = (1,), emds: Any = (0.5,), name: str = "all"
) -> SplitStats:
    """Return statistics with these numbers of images of each user, of images and users of each label, and EMDs."""
    sizes_U, labels_C, holders_C, emd_U = map(np.array, (sizes, labels, holders, emds))
    return SplitStats(name, sizes_U, labels_C, holders_C, np.ones(len(sizes_U), int), emd_U, float(emd_U.mean()))


def all_charts(count: int) -> list[Chart]:
    """Return each chart, with this number of users and classes."""
    rng = np.random.default_rng(0)
    sizes, holders, emds = rng.integers(1, 5000, count), rng.integers(1, count + 1, count), rng.random(count)
    splits = [make_stats(sizes, sizes, holders, emds), make_stats(sizes, sizes, holders, emds, name="$x^$")]
    return [
        charts.quantity_chart(splits),
        charts.images_chart(splits),
        charts.classes_chart(splits),
        *charts.label_charts(splits[0], ["$\\frac{$ 中"] * count),
        charts.label_emd_chart(splits, ""),
        charts.pixel_emd_chart(emds, emds, emds, ""),
        charts.location_chart(emds, emds, count, 0),
    ]


@pytest.mark.parametrize("count", [1, 17, 1628])
def test_every_chart_is_a_picture_of_modest_size(count: int) -> None:
    for chart in all_charts(count):
        svg = render_svg(chart)
        assert ElementTree.fromstring(svg).tag.endswith("svg"), chart.name
        assert len(svg) < 300_000, chart.name


def test_a_png_file_is_png() -> None:
    assert render_png(all_charts(1)[0]).startswith(b"\x89PNG")


def test_the_title_names_the_share_of_the_largest_users() -> None:
    sizes = np.repeat([977, 23], [23, 977])  # 23 of 1,000 users have as many images as all others
    assert (
        charts.quantity_chart([make_stats(sizes)]).title == "Share of images held by the largest 2.3 % of users: 50 %"
    )


@pytest.mark.parametrize(
    ("sizes", "classes", "titles"),
    [
        ([6, 2], [2, 1], ["Share of images held by the largest user: 75 %", "Users have from 2 to 6 images"]),
        ([4, 4], [2, 2], ["Share of images held by the largest user: 50 %", "Every user has 4 images"]),
    ],
)
def test_titles_fit_few_users(sizes: list[int], classes: list[int], titles: list[str]) -> None:
    stats = replace(make_stats(sizes, labels=[5, 3], holders=[2, 1]), classes_U=np.array(classes))
    assert [charts.quantity_chart([stats]).title, charts.images_chart([stats]).title] == titles


def test_the_title_of_equal_users_names_their_number_of_classes() -> None:
    stats = make_stats([4, 4], labels=[5, 3])
    assert (
        charts.classes_chart([replace(stats, classes_U=np.array([2, 2]))]).title == "Every user has 2 of the 2 classes"
    )
    most = charts.classes_chart([replace(stats, classes_U=np.array([1, 2, 2]))]).title
    assert most == "Half of the users or more have all 2 classes"


def test_ranks_start_at_one_in_descending_order() -> None:
    (series,) = charts.images_chart([make_stats([2, 9, 4])]).series
    assert (list(series.x), list(series.y)) == ([1, 2, 3], [9, 4, 2])


def test_a_long_line_keeps_its_ends_and_its_first_ranks() -> None:
    chart = charts.images_chart([make_stats(np.arange(50_000)[::-1] + 1)])
    (series,) = chart.downsample().series
    assert len(series.x) <= 4000
    assert [series.x[i] for i in (0, 1, 2, -1)] == [1, 2, 3, 50_000]
    assert [series.y[i] for i in (0, -1)] == [50_000, 1]


def test_labels_are_sorted_by_frequency_in_both_charts() -> None:
    stats = make_stats(sizes=[1] * 10, labels=[1, 7, 3], holders=[1, 5, 2])
    frequencies, users = charts.label_charts(stats, ["a", "b", "c"])
    assert frequencies.x.names == users.x.names == ("b", "c", "a")
    assert list(frequencies.series[0].y) == [7, 3, 1]
    assert list(users.series[0].y) == [0.5, 0.2, 0.1]
    assert frequencies.title == "Most common class: b (70 % of images)"
    assert users.title == "Users who have b: 50 %"


def test_a_histogram_of_emd_sums_to_one() -> None:
    chart = charts.label_emd_chart([make_stats(emds=[0.0, 0.01, 1.99, 2.0])], "")
    y = [value or 0 for value in chart.series[0].y]
    assert sum(y[:-1]) == 1  # the last point repeats the last bin, to its right edge
    assert (y[0], y[-1]) == (0.5, 0.5)
    assert [reference.x for reference in chart.reference_lines] == [1.0]


def test_pixel_lines_are_cumulative_distributions() -> None:
    emds = np.array([3.0, 1.0, 2.0])
    series = charts.pixel_emd_chart(emds, emds, emds, "").series[0]
    assert list(series.x) == [1, 2, 3]
    assert list(series.y) == pytest.approx([1 / 3, 2 / 3, 1])


def test_of_many_locations_a_sample_is_drawn() -> None:
    degrees = np.linspace(-80, 80, 3 * charts.MAX_LOCATIONS)
    chart = charts.location_chart(degrees, degrees, len(degrees), 0)
    assert len(chart.series[0].x) == charts.MAX_LOCATIONS
    assert "5,000 images drawn at random" in chart.caption
