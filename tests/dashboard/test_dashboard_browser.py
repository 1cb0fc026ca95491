"""The page in a real browser."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from manyeyes.io.files import acquire_lock

Write = Callable[..., Path]
SWEEP = [("fedavg", 0.1), ("fedavg", 0.3), ("fedvc", 0.1), ("fedvc", 0.3)]


@pytest.fixture
def board(browser_page: Any, serve: Callable[..., str], write: Write) -> Any:
    """The page over a sweep of four finished runs, one that diverged and one that goes on; nothing goes wrong on it."""
    for number, (algorithm, lr) in enumerate(SWEEP):
        write(f"sweep/{number}", algorithm=algorithm, lr=lr)
    (write("wild", 2, lr=9.0) / "diverged.txt").write_text("the run has diverged: try a lower learning rate\n")
    live = write("live", 4, age=0, lr=0.2)
    address = serve()
    with acquire_lock(live, live / ".lock") as browser_page.lock:
        browser_page.goto(address)
        browser_page.wait_for_selector("body[data-ready]")
        yield browser_page
    assert wrong(browser_page) == []
    assert {urlsplit(url).netloc for url in browser_page.requested_urls} == {urlsplit(address).netloc}


def wrong(page: Any) -> list[str]:
    """What went wrong; a question that was under way when the page was left is none."""
    return [error for error in page.console_errors if not re.match(r"failed: .*/api/", error)]


def names(page: Any) -> list[str]:
    return [name.replace("\n", "") for name in page.locator("#rows label").all_inner_texts()]


def curves(page: Any, metric: str) -> Any:
    return page.locator(f"[data-metric={metric}] path.me-line")


def test_the_runs_are_listed_and_the_one_that_goes_on_is_drawn(board: Any) -> None:
    assert len(names(board)) == 6
    assert names(board)[0] == "live"
    assert board.locator("#live").inner_text() == "Live: 1 running"
    assert board.locator("#rows tr").first.locator(".badge").inner_text().endswith("running")
    assert "4 / 10" in board.locator("#rows tr").first.inner_text()
    assert curves(board, "accuracy").count() == curves(board, "train_loss").count() == 1
    assert "the run has diverged" in board.locator("#rows").inner_text()


def test_what_sets_runs_apart_stands_out_of_their_names(browser_page: Any, serve: Any, write: Write) -> None:
    for name in ("paper/scaled/fedavg-K10/0", "mine/first", "alone"):
        write(name)
    browser_page.goto(serve())
    browser_page.wait_for_selector("body[data-ready]")
    assert sorted(browser_page.locator("#rows label b").all_inner_texts()) == ["alone", "fedavg-K10/0", "first"]
    assert sorted(names(browser_page)) == ["alone", "mine/first", "paper/scaled/fedavg-K10/0"]


def test_text_states_and_settings_filter(board: Any) -> None:
    board.fill("#text", "lr=0.3")
    assert sorted(names(board)) == ["sweep/1", "sweep/3"]
    board.fill("#text", "fedvc swee")
    assert sorted(names(board)) == ["sweep/2", "sweep/3"]
    board.fill("#text", "")
    board.click("[data-state=diverged]")
    assert names(board) == ["wild"]
    assert board.locator("#count").inner_text() == "1 of 6 runs"
    board.click("[data-state=diverged]")
    board.select_option("#setting", "algorithm.lr")
    board.select_option("#value", "0.1")
    board.select_option("#setting", "algorithm.name")
    board.select_option("#value", "fedvc")
    assert names(board) == ["sweep/2"]
    board.reload()
    board.wait_for_selector("body[data-ready]")
    assert names(board) == ["sweep/2"], "the address keeps the view"
    board.locator("#chips button").first.click()
    assert sorted(names(board)) == ["sweep/2", "sweep/3"]


def test_runs_are_sorted_by_a_column_and_back(board: Any) -> None:
    head = board.locator("th[data-key=score] button")
    head.click()
    assert board.locator("th[data-key=score]").get_attribute("aria-sort") == "descending"
    assert names(board)[-2:] == ["live", "wild"]
    head.click()
    assert names(board)[:2] == ["wild", "live"]


def test_chosen_runs_are_laid_over_each_other_and_their_differences_named(board: Any) -> None:
    board.click("#clear")
    assert board.locator("#hint").is_visible()
    board.get_by_label("sweep/1").check()
    board.get_by_label("sweep/2").check()
    curves(board, "accuracy").nth(1).wait_for()
    table = board.locator("#differences table").first
    assert table.locator("thead th").all_inner_texts() == ["Run", "Score", "algorithm", "lr"]
    cells = [row.locator("td").all_inner_texts() for row in table.locator("tbody tr").all()]
    assert cells == [["100.0 %", "fedavg", "0.3"], ["100.0 %", "fedvc", "0.1"]]
    board.locator("#metrics summary").click()
    board.locator("#names").get_by_text("Seconds").click()
    curves(board, "seconds").nth(1).wait_for(state="attached")  # a level line has no height
    board.select_option("#axis", "images")
    board.get_by_text("images trained on").first.wait_for()


def test_who_chooses_too_many_is_told(board: Any, write: Write) -> None:
    for number in range(25):
        write(f"many/{number}", 2)
    board.fill("#text", "many")
    board.locator("#rows tr").nth(24).wait_for()
    for row in board.locator("#rows input").all():
        row.click()
    assert board.locator("#rows input:checked").count() == 23  # and the run that goes on
    assert board.locator("#count").inner_text() == "25 of 31 runs; 24 are chosen, the most at once"


def test_a_hover_shows_values(board: Any) -> None:
    """The run has an accuracy of 0.1 a round; the pointer is at the right end of its curve."""
    box = board.locator("[data-metric=accuracy] .me-plot").bounding_box()
    board.mouse.move(box["x"] + box["width"] - 20, box["y"] + box["height"] / 2)
    tip = board.locator("[data-metric=accuracy] .me-tip")
    tip.wait_for(state="visible")
    assert re.search(r"4[\s\S]*40 %", tip.inner_text())


def test_a_run_advances_on_the_page(board: Any, root: Path, append: Callable[..., None]) -> None:
    append(root / "live", {"round": 7, "train_loss": 0.125, "accuracy": 0.875, "images": 100, "seconds": 0.5})
    row = board.locator("#rows tr", has_text="live")
    row.get_by_text("7 / 10").wait_for()
    assert "87.5 %" in row.inner_text()
    box = board.locator("[data-metric=accuracy] .me-plot").bounding_box()
    board.mouse.move(box["x"] + box["width"] - 20, box["y"] + box["height"] / 2)
    assert "87.5 %" in board.locator("[data-metric=accuracy] .me-tip").inner_text()
    (root / "live" / "model.safetensors").touch()
    board.lock.close()
    shutil.rmtree(root / "wild")
    board.locator("#rows .s-finished", has_text="finished").nth(4).wait_for()
    assert "wild" not in names(board)


def test_a_report_opens(board: Any) -> None:
    with board.expect_popup() as opened:
        board.click("#report")
    report = opened.value
    errors: list[str] = []
    report.on("pageerror", lambda error: errors.append(str(error)))
    report.wait_for_load_state()
    assert report.locator("h1").inner_text()
    report.locator("path.me-line").first.wait_for(state="attached")
    assert errors == []


def test_names_are_text_and_not_markup(board: Any, write: Write) -> None:
    name = "<img src=x onerror=document.body.id='hurt'>"
    write(name, 2, age=0, algorithm="<b>bold</b>")
    board.get_by_label(name, exact=True).check()
    board.locator("#differences", has_text=name).wait_for()
    assert board.locator("img, #rows b b").count() == 0
    assert board.evaluate("document.body.id") == ""


@pytest.mark.parametrize(("width", "scheme"), [(390, "light"), (390, "dark"), (820, "light"), (1440, "dark")])
def test_nothing_is_cut_off_at_any_width(board: Any, width: int, scheme: str) -> None:
    board.set_viewport_size({"width": width, "height": 800})
    board.emulate_media(color_scheme=scheme)
    assert board.evaluate("document.documentElement.scrollWidth") <= width
    assert board.locator("#rows .c-score").first.is_visible()
    paper = board.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (paper == "rgb(255, 255, 255)") == (scheme == "light")


def test_the_keyboard_chooses_a_run(board: Any) -> None:
    board.focus("#text")
    for _ in range(40):
        board.keyboard.press("Tab")
        if board.evaluate("document.activeElement.type") == "checkbox":
            break
    board.keyboard.press("Space")
    board.locator("#hint").wait_for(state="visible")
    assert board.evaluate("document.activeElement.type") == "checkbox", "the list does not take the focus away"


def test_with_a_token_the_page_works_and_its_address_forgets_it(
    browser_page: Any, serve: Callable[..., str], write: Write
) -> None:
    write("one")
    browser_page.goto(serve("a-token-of-some-length") + "?token=a-token-of-some-length")
    browser_page.wait_for_selector("body[data-ready]")
    assert names(browser_page) == ["one"]
    assert "token" not in browser_page.url
    browser_page.reload()
    browser_page.wait_for_selector("body[data-ready]")
    assert wrong(browser_page) == []
