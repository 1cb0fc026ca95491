"""The numbers of the README and the documentation are those of the records."""

import re
from pathlib import Path

import pytest

from benchmarks.page_numbers import MARKED, PAGES, ROOT, fill, numbers, pretrained_chart
from manyeyes.report.svg import render_svg

TEXTS = numbers()


@pytest.mark.parametrize(
    "page", [page for page in PAGES if MARKED.search(page.read_text())], ids=lambda page: page.name
)
def test_a_page_has_the_numbers_of_the_records(page: Path) -> None:
    text = page.read_text()
    assert text == fill(text, TEXTS), "renew it with: python -m benchmarks.page_numbers"


def test_every_number_is_on_a_page() -> None:
    assert {name for page in PAGES for _, name, *_ in MARKED.findall(page.read_text())} == {*TEXTS}


def test_a_number_that_was_changed_by_hand_is_found() -> None:
    assert fill("A <!-- record: hsu.time -->1 ms<!-- end --> round", {"hsu.time": "8.5 ms"}) == (
        "A <!-- record: hsu.time -->8.5 ms<!-- end --> round"
    )


def test_the_times_of_the_study_of_hsu_are_the_medians_of_their_record() -> None:
    assert (TEXTS["hsu.time"], TEXTS["hsu.ratio"]) == ("8.5 ms", "25")  # 0.0085 s, and pfl's 0.2092 s


def test_the_chart_of_pretrained_weights_is_that_of_the_record() -> None:
    assert (ROOT / "docs" / "images" / "pretrained.svg").read_text() == render_svg(pretrained_chart())


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_number_in_a_sentence_does_not_begin_a_line(page: Path) -> None:
    """A comment at the beginning of a line ends a paragraph in Markdown."""
    assert not re.search(r"^\s*<!-- record: [\w.]+ -->.", page.read_text(), re.M)
