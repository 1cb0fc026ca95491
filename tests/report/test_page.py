"""The page follows the rules of HTML: well-formed, self-contained and accessible."""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any

import pytest

from manyeyes.report.chart import Axis, Chart, ReferenceLine, Series
from manyeyes.report.page import ChartGrid, Image, ImageStrip, Section, page
from manyeyes.report.table import Table
from manyeyes.report.text import format_duration, printable

PICTURE = Image(b"\x89PNG", "png", "a dot")


@pytest.fixture
def read(reader: Callable[[str], Any]) -> Any:
    table = Table("Counts", ["", "n"], [["users", "3"]])
    sections = [
        Section("One", ["words", table]),
        Section("Two", [ImageStrip("User", [PICTURE])]),
    ]
    return reader(page("A title", "In short.", sections))


def test_the_page_has_a_language_and_one_title(read: Any) -> None:
    assert read.all("html") == [{"lang": "en"}]
    assert len(read.all("h1")) == len(read.all("title")) == len(read.all("main")) == 1


def test_headings_do_not_skip_a_level(read: Any) -> None:
    assert [tag for tag, _ in read.tags if tag in ("h1", "h2", "h3")] == ["h1", "h2", "h2", "h3"]


def test_links_refer_to_ids_in_the_page(read: Any) -> None:
    ids = [attributes["id"] for _, attributes in read.tags if "id" in attributes]
    assert len(set(ids)) == len(ids)
    assert {f"#{id}" for id in ("content", "section-0", "section-1")} == {a["href"] for a in read.all("a")}
    assert {"content", "section-0", "section-1"} <= set(ids)


def test_pictures_are_embedded_and_described(read: Any) -> None:
    source = f"data:image/png;base64,{base64.b64encode(PICTURE.data).decode()}"
    assert [(image["alt"], image["src"]) for image in read.all("img")] == [("a dot", source)]


def test_a_table_has_a_caption_and_headings_of_columns_and_rows(read: Any) -> None:
    assert len(read.all("caption")) == 1
    assert [head["scope"] for head in read.all("th")] == ["col", "row"]


def test_a_wide_table_can_be_scrolled_with_the_keyboard(read: Any) -> None:
    regions = [div for div in read.all("div") if div.get("role") == "region"]
    assert [(div["tabindex"], div["aria-label"]) for div in regions] == [("0", "Counts")]


def test_the_policy_forbids_loading_anything(read: Any) -> None:
    policies = [meta["content"] for meta in read.all("meta") if "http-equiv" in meta]
    assert policies == ["default-src 'none'; img-src data:; style-src 'unsafe-inline'"]
    assert read.all("script") == read.all("link") == []


def test_a_chart_is_a_picture_until_the_allowed_scripts_replace_it(reader: Callable[[str], Any]) -> None:
    chart = Chart("curve", "Accuracy", Axis("rounds"), Axis("accuracy"), [Series("run", [0, 1], [0.1, 0.2])])
    read = reader(page("A title", "In short.", [Section("One", [ChartGrid([chart])])]))
    assert [figure["data-chart"] for figure in read.all("figure")] == ["curve"]
    assert [svg["aria-label"] for svg in read.all("svg")] == ["Accuracy"]
    (policy,) = (meta["content"] for meta in read.all("meta") if "http-equiv" in meta)
    assert policy.count("sha256-") == 2
    assert [script.get("type") for script in read.all("script")] == ["application/json", None, None]


def test_text_cannot_become_markup_anywhere(reader: Callable[[str], Any]) -> None:
    bad = "\"><script>alert('x')</script>&amp;"
    image = Image(b"", "png", bad)
    sections = [Section(bad, [bad, Table(bad, [bad, bad], [[bad, bad]]), ImageStrip(bad, [image])])]
    read = reader(page(bad, bad, sections))
    assert read.all("script") == []
    assert {image["alt"] for image in read.all("img")} == {bad}
    assert read.text.count(bad) == 12
    series = Series(bad, [0, 1], [0.1, 0.2], labels=[bad, bad])
    chart = Chart(bad, bad, Axis(bad), Axis(bad), [series, series], bad, [ReferenceLine(bad, y=0.1)])
    read = reader(page(bad, bad, [Section(bad, [ChartGrid([chart])])]))
    assert len(read.all("script")) == 3


def test_what_cannot_be_printed_is_replaced() -> None:
    assert printable("a\x1b[31m\n\udcff\x00é中") == "a�[31m���é中"


def test_durations_have_readable_units() -> None:
    durations = [format_duration(seconds) for seconds in (0.5, 119, 120, 7200, 200_000)]
    assert durations == ["500 ms", "119 s", "2.0 min", "2.0 h", "2.3 d"]
