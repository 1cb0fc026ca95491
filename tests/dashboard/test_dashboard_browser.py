"""The dashboard in a browser."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from manyeyes.io.files import acquire_lock

pytestmark = pytest.mark.browser
Write = Callable[..., Path]
SWEEP = [("fedavg", 0.1), ("fedavg", 0.3), ("fedvc", 0.1), ("fedvc", 0.3)]


@pytest.fixture
def page(browser_page: Any, serve: Callable[..., str], write: Write) -> Any:
    """Open the page of four finished runs, one that diverged and one that trains; it must have no errors at the end."""
    for number, (algorithm, lr) in enumerate(SWEEP):
        write(f"sweep/{number}", algorithm=algorithm, lr=lr)
    (write("wild", 2, lr=9.0) / "diverged.txt").write_text("the run has diverged: try a lower learning rate\n")
    live = write("live", 4, age=0, lr=0.2)
    url = serve()
    with acquire_lock(live, live / ".lock") as browser_page.lock:
        browser_page.goto(url)
        browser_page.wait_for_selector("body[data-ready]")
        yield browser_page
    assert errors(browser_page) == []
    assert {urlsplit(url).netloc for url in browser_page.requested_urls} == {urlsplit(url).netloc}


def errors(page: Any) -> list[str]:
    """Return the errors, without requests that were cancelled when the page was closed."""
    return [error for error in page.console_errors if not re.match(r"failed: .*/api/", error)]


def names(page: Any) -> list[str]:
    """Return the folders of the runs that are shown."""
    boxes = page.locator("#rows td.c-box input").all()
    return [box.get_attribute("aria-label").rpartition(", run ")[2] for box in boxes]


def curves(page: Any, metric: str) -> Any:
    return page.locator(f"[data-metric={metric}] path.me-line")


def test_runs_are_listed_and_the_running_one_is_drawn(page: Any) -> None:
    assert len(names(page)) == 6
    assert names(page)[0] == "live"
    assert page.locator("#rows tr:not(.group) b").all_inner_texts()[1:5] == [
        "fedavg · lr 0.1", "fedavg · lr 0.3", "fedvc · lr 0.1", "fedvc · lr 0.3"
    ]  # fmt: skip
    assert page.locator("#live").inner_text() == "Live: 1 running"
    assert page.locator("#rows tr").first.locator(".badge").inner_text().endswith("running")
    assert "4 / 10" in page.locator("#rows tr").first.inner_text()
    assert curves(page, "accuracy").count() == curves(page, "train_loss").count() == 1
    assert "the run has diverged" in page.locator("#rows").inner_text()


def test_the_last_folder_of_a_name_is_bold(browser_page: Any, serve: Any, write: Write) -> None:
    for name in ("paper/scaled/fedavg-K10/0", "sweep/first", "alone"):
        write(name)
    browser_page.goto(serve())
    browser_page.wait_for_selector("body[data-ready]")
    assert sorted(browser_page.locator("#rows td label b").all_inner_texts()) == ["alone", "fedavg-K10/0", "first"]
    assert sorted(names(browser_page)) == ["alone", "paper/scaled/fedavg-K10/0", "sweep/first"]


def test_text_statuses_and_settings_filter(page: Any) -> None:
    page.fill("#text", "lr=0.3")
    assert sorted(names(page)) == ["sweep/1", "sweep/3"]
    page.fill("#text", "fedvc swee")
    assert sorted(names(page)) == ["sweep/2", "sweep/3"]
    page.fill("#text", "")
    page.click("[data-status=diverged]")
    assert names(page) == ["wild"]
    assert page.locator("#count").inner_text() == "1 of 6 runs"
    page.click("[data-status=diverged]")
    page.select_option("#setting", "algorithm.lr")
    page.select_option("#value", "0.1")
    page.select_option("#setting", "algorithm.name")
    page.select_option("#value", "fedvc")
    assert names(page) == ["sweep/2"]
    page.reload()
    page.wait_for_selector("body[data-ready]")
    assert names(page) == ["sweep/2"], "the URL stores the view"
    page.locator("#chips button").first.click()
    assert sorted(names(page)) == ["sweep/2", "sweep/3"]


def test_a_sweep_is_a_group_that_folds_and_is_selected_as_a_whole(page: Any) -> None:
    head = page.locator("#rows tr.group").first
    assert "4 finished" in head.inner_text() and "best" in head.inner_text()
    head.locator("input").check()
    assert page.locator("#rows .c-box input:checked").count() == 5, "and the running one"
    head.locator("button").click()
    assert head.locator("button").get_attribute("aria-expanded") == "false"
    assert sorted(names(page)) == ["live", "wild"]


def test_runs_that_failed_before_round_1_are_folded_until_they_are_searched_for(page: Any, write: Write) -> None:
    (write("typo", 0) / "failed.txt").write_text("algorithm.lr is negative\n")
    fold = page.locator("#rows .group button", has_text="Failed before round 1")
    fold.wait_for()
    assert "typo" not in names(page)
    fold.press("Enter")
    assert names(page)[-1] == "typo"
    fold.press("Enter")
    page.fill("#text", "typ")
    assert names(page) == ["typo"]


def test_an_empty_folder_shows_the_command_that_fills_it(browser_page: Any, serve: Callable[..., str]) -> None:
    browser_page.goto(serve())
    browser_page.wait_for_selector("body[data-ready]")
    assert browser_page.locator("#first-run").inner_text() == "manyeyes run rounds=50 data.users=200"
    assert not browser_page.locator("#list").is_visible()


def test_a_running_run_shows_how_to_stop_it(page: Any) -> None:
    assert page.locator(".stop pre").all_inner_texts() == [f"kill -TERM {os.getpid()}"]


def test_runs_that_differ_only_by_seed_have_one_color_here_and_in_their_report(
    browser_page: Any, serve: Callable[..., str], write: Write
) -> None:
    for number, (algorithm, seed) in enumerate([("fedavg", 0), ("fedvc", 0), ("fedvc", 1)]):
        write(f"sweep/{number}", algorithm=algorithm, seed=seed)
    browser_page.goto(serve())
    browser_page.wait_for_selector("body[data-ready]")
    browser_page.click("#clear")
    for number in (2, 1, 0):
        browser_page.get_by_label(f"run sweep/{number}").check()
    curves(browser_page, "accuracy").nth(2).wait_for()
    colors = [line.get_attribute("stroke") for line in curves(browser_page, "accuracy").all()]
    assert colors == ["var(--color-0)", "var(--color-0)", "var(--color-1)"]
    with browser_page.expect_popup() as opened:
        browser_page.click("#report")
    entries = opened.value.locator("#explorer .me-legend button")
    entries.first.wait_for()
    classes = {entry.inner_text(): entry.locator("i").get_attribute("class") for entry in entries.all()}
    assert {name: text.split()[0] for name, text in classes.items()} == {
        "fedvc (2 seeds)": "me-c0",
        "fedavg · seed 0": "me-c1",
    }


def test_runs_are_sorted_by_a_column_and_back(page: Any) -> None:
    head = page.locator("th[data-key=score] button")
    head.click()
    assert page.locator("th[data-key=score]").get_attribute("aria-sort") == "descending"
    assert names(page)[-2:] == ["live", "wild"]
    head.click()
    assert names(page)[:2] == ["wild", "live"]


def test_selected_runs_are_drawn_together_and_compared(page: Any) -> None:
    page.click("#clear")
    assert page.locator("#hint").is_visible()
    page.get_by_label("run sweep/1").check()
    page.get_by_label("run sweep/2").check()
    curves(page, "accuracy").nth(1).wait_for()
    table = page.locator("#differences table").first
    assert table.locator("thead th").all_inner_texts() == ["Run", "Score", "algorithm", "lr"]
    cells = [row.locator("td").all_inner_texts() for row in table.locator("tbody tr").all()]
    assert cells == [["100.0 %", "fedavg", "0.3"], ["100.0 %", "fedvc", "0.1"]]
    page.locator("#metrics summary").click()
    page.locator("#names").get_by_text("Seconds").click()
    curves(page, "seconds").nth(1).wait_for(state="attached")  # a level line has no height
    page.select_option("#axis", "num_images")
    page.get_by_text("images trained on").first.wait_for()


def test_the_number_of_selected_runs_is_limited(page: Any, write: Write) -> None:
    for number in range(25):
        write(f"grid/{number}", 2)
    page.fill("#text", "grid")
    page.locator("#rows tr").nth(24).wait_for()
    page.locator("#rows .group input").first.click()
    assert page.locator("#rows .c-box input:checked").count() == 23  # and the running one
    assert page.locator("#count").inner_text() == "25 of 31 runs; 24 are selected, which is the maximum"


def test_a_hover_shows_values(page: Any) -> None:
    """The run has an accuracy of 0.1 per round; the pointer is at the right end of its curve."""
    box = page.locator("[data-metric=accuracy] .me-plot").bounding_box()
    page.mouse.move(box["x"] + box["width"] - 20, box["y"] + box["height"] / 2)
    tip = page.locator("[data-metric=accuracy] .me-tip")
    tip.wait_for(state="visible")
    assert re.search(r"4[\s\S]*40.0 %", tip.inner_text())


def test_a_run_advances_on_the_page(page: Any, root: Path, append: Callable[..., None]) -> None:
    append(root / "live", {"round": 7, "train_loss": 0.125, "accuracy": 0.875, "num_images": 100, "seconds": 0.5})
    row = page.locator("#rows tr", has_text="live")
    row.get_by_text("7 / 10").wait_for()
    assert "87.5 %" in row.inner_text()
    box = page.locator("[data-metric=accuracy] .me-plot").bounding_box()
    page.mouse.move(box["x"] + box["width"] - 20, box["y"] + box["height"] / 2)
    assert "87.5 %" in page.locator("[data-metric=accuracy] .me-tip").inner_text()
    (root / "live" / "model.safetensors").touch()
    page.lock.close()
    shutil.rmtree(root / "wild")
    page.locator("#rows .s-finished", has_text="finished").nth(4).wait_for()
    assert "wild" not in names(page)


def test_a_report_opens(page: Any) -> None:
    with page.expect_popup() as opened:
        page.click("#report")
    report = opened.value
    report_errors: list[str] = []
    report.on("pageerror", lambda error: report_errors.append(str(error)))
    report.wait_for_load_state()
    assert report.locator("h1").inner_text()
    report.locator("path.me-line").first.wait_for(state="attached")
    assert report_errors == []


def test_names_are_text_and_not_markup(page: Any, write: Write) -> None:
    name = "<img src=x onerror=document.body.id='hurt'>"
    write(name, 2, age=0, algorithm="<b>bold</b>")
    page.get_by_label(name, exact=True).check()
    page.locator("#differences", has_text=name).wait_for()
    assert page.locator("img, #rows b b").count() == 0
    assert page.evaluate("document.body.id") == ""


@pytest.mark.parametrize(("width", "scheme"), [(390, "light"), (390, "dark"), (820, "light"), (1440, "dark")])
def test_the_page_fits_any_width(page: Any, width: int, scheme: str) -> None:
    page.set_viewport_size({"width": width, "height": 800})
    page.emulate_media(color_scheme=scheme)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.locator("#rows .c-score").first.is_visible()
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (background == "rgb(255, 255, 255)") == (scheme == "light")


def test_a_run_can_be_selected_with_the_keyboard(page: Any) -> None:
    page.focus("#text")
    for _ in range(40):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.type") == "checkbox":
            break
    page.keyboard.press("Space")
    page.locator("#hint").wait_for(state="visible")
    assert page.evaluate("document.activeElement.type") == "checkbox", "the focus stays in the list"


def test_the_token_is_removed_from_the_url(browser_page: Any, serve: Callable[..., str], write: Write) -> None:
    write("one")
    browser_page.goto(serve("a-token-of-some-length") + "?token=a-token-of-some-length")
    browser_page.wait_for_selector("body[data-ready]")
    assert names(browser_page) == ["one"]
    assert "token" not in browser_page.url
    browser_page.reload()
    browser_page.wait_for_selector("body[data-ready]")
    assert errors(browser_page) == []
