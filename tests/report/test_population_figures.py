"""Figures: the lines that are drawn are the numbers that were given."""

from __future__ import annotations

from xml.etree import ElementTree

import numpy as np
import pytest

from manyeyes.report import population_figures as figures
from manyeyes.report.figures import CaptionedFigure, render


def every(count: int) -> dict[str, CaptionedFigure]:
    """Each figure, of so many users and classes."""
    rng = np.random.default_rng(0)
    sizes = rng.integers(1, 5000, count)
    share = np.linspace(0, 1, count + 1)
    return {
        "quantity": figures.draw_quantity({"all": share, "$x^$": share}, 0.023),
        "images": figures.draw_images_by_rank({"all": sizes, "_part": sizes}),
        "classes": figures.draw_classes_by_rank({"all": np.ones(count, int)}, 1),
        "labels": figures.draw_labels(["$\\frac{$ 中"] * count, sizes, rng.random(count), 5000),
        "label_emd": figures.draw_label_emd({"all": rng.random(count)}, {"all": 0.5}, ""),
        "pixel_emd": figures.draw_pixel_emd(rng.random(count), rng.random(count), rng.random(count), ""),
        "places": figures.draw_places(rng.random(count), rng.random(count), count),
    }


@pytest.mark.parametrize("count", [1, 17, 1628])
def test_every_figure_is_a_picture_of_modest_size(count: int) -> None:
    for name, drawing in every(count).items():
        svg = render(drawing.figure, "svg")
        assert ElementTree.fromstring(svg).tag.endswith("svg"), name
        assert len(svg) < 300_000, name


def test_png_is_png() -> None:
    assert render(every(1)["quantity"].figure, "png").startswith(b"\x89PNG")


def test_the_title_says_how_much_the_largest_hold() -> None:
    assert figures.draw_quantity({"all": np.array([0, 0.8, 1.0])}, 0.25).title == (
        "The largest 25.0% of users hold 40% of the images"
    )


def test_ranks_are_counted_from_one_in_descending_order() -> None:
    line = figures.draw_images_by_rank({"all": np.array([2, 9, 4])}).figure.axes[0].lines[0]
    np.testing.assert_array_equal(line.get_xydata(), [[1, 9], [2, 4], [3, 2]])


def test_a_long_line_keeps_its_ends_and_its_head() -> None:
    counts = np.arange(50_000)[::-1] + 1
    x, y = figures.draw_images_by_rank({"all": counts}).figure.axes[0].lines[0].get_data()
    assert len(np.asarray(x)) < 1000
    assert np.asarray(x)[[0, 1, 2, -1]].tolist() == [1, 2, 3, 50_000]
    assert np.asarray(y)[[0, -1]].tolist() == [50_000, 1]


def test_labels_stand_from_common_to_rare_with_their_users_above() -> None:
    drawing = figures.draw_labels(["a", "b", "c"], np.array([1, 7, 3]), np.array([0.1, 0.5, 0.2]), 10)
    bars, line = drawing.figure.axes
    assert [text.get_text() for text in bars.get_xticklabels()] == ["b", "c", "a"]
    assert [bar.get_height() for bar in bars.patches] == [7, 3, 1]
    np.testing.assert_array_equal(np.asarray(line.lines[0].get_ydata()), [0.5, 0.2, 0.1])
    assert drawing.title == "b is in 70% of images, with 50% of users"


def test_pixel_lines_are_cumulative_distributions() -> None:
    emd = np.array([3.0, 1.0, 2.0])
    x, y = figures.draw_pixel_emd(emd, emd, emd, "").figure.axes[0].lines[0].get_data()
    assert (np.asarray(x)[0], np.asarray(x)[-1]) == (1, 3)
    assert (np.asarray(y)[0], np.asarray(y)[-1]) == (0, 1)
