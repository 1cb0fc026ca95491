"""The report in a browser: hover, legend, zoom, keyboard, color schemes, a phone, print, and no JavaScript."""

from __future__ import annotations

import csv
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from manyeyes.report.report import write
from manyeyes.training.run_names import find_runs

pytestmark = pytest.mark.browser
FIRST = "#explorer figure"
SERIES = f"{FIRST} path.me-line"


@pytest.fixture
def report(make_run: Callable[..., Path], tmp_path: Path) -> Path:
    """Write a report of three runs, two of which differ only by seed; the third has an accuracy of round / 100."""
    folders = [
        make_run("fedavg_0", {"seed": 0}, [0.1, 0.2, 0.3], classes=["sky", "sea"]),
        make_run("fedavg_1", {"seed": 1}, [0.1, 0.4, 0.5]),
        make_run("other", {"seed": 0, "lr": 1}, [r / 100 for r in range(51)]),
    ]
    out = tmp_path / "page.html"
    write(find_runs([str(folder) for folder in folders]), out)
    return out


@pytest.fixture
def page(browser_page: Any, report: Path) -> Any:
    """Open the report; at the end it must have no errors and no requests."""
    browser_page.goto(report.as_uri())
    yield browser_page
    assert browser_page.console_errors == []
    assert browser_page.requested_urls == []


def point(page: Any, round: int) -> tuple[float, float]:
    """Return the position of a round of the first chart on the screen, from the positions of its ticks."""
    page.locator(f"{FIRST} .me-plot").scroll_into_view_if_needed()
    boxes = {
        tick.text_content(): tick.bounding_box() for tick in page.locator(f"{FIRST} .me-tick[text-anchor=middle]").all()
    }
    left, right = (boxes[tick]["x"] + boxes[tick]["width"] / 2 for tick in ("0", "40"))
    box = page.locator(f"{FIRST} .me-plot").bounding_box()
    return left + (right - left) * round / 40, box["y"] + box["height"] / 2


def last_tick(page: Any) -> float:
    text = page.locator(f"{FIRST} .me-tick[text-anchor=middle]").last.text_content()
    return float(text.replace(",", ""))


def test_a_hover_shows_every_value_at_the_round(page: Any) -> None:
    page.mouse.move(*point(page, 30))
    tip = page.locator(f"{FIRST} .me-tip.me-on")
    assert tip.locator("b").text_content() == "rounds 30"
    assert tip.locator("span").all_inner_texts() == ["other\n30.0 %"]
    page.mouse.move(*point(page, 1))
    assert tip.locator("strong").all_text_contents() == ["30.0 %", "1.0 %"]  # the mean of 20 and 40, and the other
    assert "fedavg (2 seeds)" in tip.text_content()


def test_a_name_in_the_legend_hides_its_series(page: Any) -> None:
    button = page.locator(f"{FIRST} .me-legend button", has_text="other")
    assert page.locator(SERIES).count() == 2
    button.click()
    assert button.get_attribute("aria-pressed") == "false"
    assert page.locator(SERIES).count() == 1
    assert last_tick(page) <= 2  # the axis is that of what is left
    button.press("Enter")
    assert page.locator(SERIES).count() == 2


def test_dragging_zooms_and_a_double_click_goes_back(page: Any) -> None:
    assert last_tick(page) == 50
    page.mouse.move(*point(page, 10))
    page.mouse.down()
    page.mouse.move(*point(page, 20), steps=4)
    page.mouse.up()
    assert 18 <= last_tick(page) <= 20
    page.locator(f"{FIRST} button", has_text="Reset zoom").click()
    assert last_tick(page) == 50
    page.mouse.move(*point(page, 10))
    page.mouse.down()
    page.mouse.move(*point(page, 20), steps=4)
    page.mouse.up()
    page.locator(f"{FIRST} .me-plot").dblclick()
    assert last_tick(page) == 50


def test_the_keyboard_reads_zooms_and_resets(page: Any) -> None:
    plot, live = page.locator(f"{FIRST} .me-plot"), page.locator(f"{FIRST} [aria-live]")
    plot.focus()
    plot.press("ArrowRight")
    plot.press("ArrowRight")
    assert live.text_content().startswith("rounds 1; fedavg (2 seeds) 30.0 %")
    plot.press("End")
    assert live.text_content() == "rounds 50; other 50.0 %"
    plot.press("+")
    assert page.locator(f"{FIRST} button", has_text="Reset zoom").is_visible()
    plot.press("0")
    assert not page.locator(f"{FIRST} button", has_text="Reset zoom").is_visible()


def test_metric_axis_and_seeds_can_be_selected(page: Any) -> None:
    page.locator("#metric").select_option(label="training loss")
    page.locator("#axis").select_option(label="images trained on")
    assert page.locator(f"{FIRST} .me-title").text_content() == "Training loss"
    assert last_tick(page) == 3000  # 50 rounds of 60 images
    page.get_by_label("show each seed").check()
    names = page.locator(f"{FIRST} .me-legend button").all_text_contents()
    assert names == ["fedavg_0", "fedavg_1", "other"]


def test_numbers_and_picture_are_downloaded(page: Any) -> None:
    with page.expect_download() as download:
        page.locator(f"{FIRST} button", has_text="CSV").click()
    rows = list(csv.reader(Path(download.value.path()).read_text().splitlines()))
    assert rows[0] == ["series", "rounds", "accuracy", "low", "high"]
    assert rows[-1] == ["other", "50", "0.5", "", ""]
    with page.expect_download() as download:
        page.locator(f"{FIRST} button", has_text="SVG").click()
    assert download.value.suggested_filename == "accuracy.svg"
    assert "<svg" in Path(download.value.path()).read_text()


def test_the_page_follows_the_color_scheme(page: Any) -> None:
    background = "getComputedStyle(document.body).backgroundColor"
    line = f"getComputedStyle(document.querySelector('{SERIES}')).stroke"
    page.emulate_media(color_scheme="light")
    light = page.evaluate(background), page.evaluate(line)
    page.emulate_media(color_scheme="dark")
    assert light[0] == "rgb(255, 255, 255)"
    assert page.evaluate(background) == "rgb(20, 24, 29)"
    assert page.evaluate(line) != light[1]
    page.emulate_media(color_scheme="dark", media="print")
    assert page.evaluate(background) == "rgb(255, 255, 255)"


def test_the_page_fits_a_phone(page: Any) -> None:
    page.set_viewport_size({"width": 375, "height": 700})
    for _ in range(100):  # not by `wait_for_function`, whose eval the page forbids
        if page.evaluate(f"document.querySelector('{FIRST} svg').viewBox.baseVal.width < 375"):
            break
        page.wait_for_timeout(50)
    else:
        pytest.fail("the chart has not become as narrow as the page")
    assert page.evaluate("document.documentElement.scrollWidth") <= 375
    page.mouse.move(*point(page, 30))
    box = page.locator(f"{FIRST} .me-tip.me-on").bounding_box()
    assert box["x"] >= 0 and box["x"] + box["width"] <= 375


def test_a_long_name_fits_a_phone(browser_page: Any, make_run: Callable[..., Path], tmp_path: Path) -> None:
    runs = [make_run("a" * 200, {"seed": 0}, [0.1, 0.2]), make_run("b", {"seed": 0, "lr": 1}, [0.1, 0.2])]
    write(find_runs([str(folder) for folder in runs]), tmp_path / "page.html")
    browser_page.set_viewport_size({"width": 375, "height": 700})
    browser_page.goto((tmp_path / "page.html").as_uri())
    assert browser_page.evaluate("document.documentElement.scrollWidth") <= 375


def test_an_axis_keeps_the_ends_that_it_was_given(page: Any) -> None:
    ticks = """(x) => {
      const box = document.createElement("div");
      document.body.append(box);
      const chart = manyeyes.chart(box, {x, series: [{name: "a", x: [20, 60], y: [1, 2]}]});
      const labels = [...box.querySelectorAll(".me-tick[text-anchor=middle]")].map((tick) => tick.textContent);
      chart.destroy();
      return [labels[0], labels[labels.length - 1]];
    }"""
    assert page.evaluate(ticks, {"low": 0, "high": 100}) == ["0", "100"]
    assert page.evaluate(ticks, {}) == ["20", "60"]


def test_the_label_of_a_level_stays_inside_the_chart(page: Any) -> None:
    script = """(label) => {
      const box = document.createElement("div");
      box.style.width = "320px";
      document.body.append(box);
      const chart = manyeyes.chart(box, {reference_lines: [{y: 1.5, label}], series: [{name: "a", x: [0, 9], y: [1, 2]}]});
      const level = [...box.querySelectorAll(".me-tick")].find((tick) => tick.textContent[0] === label[0]);
      const result = [level.textContent, level.getBoundingClientRect().right <= box.getBoundingClientRect().right];
      chart.destroy();
      return result;
    }"""
    assert page.evaluate(script, "centralized") == ["centralized", True]
    text, is_inside = page.evaluate(script, "centralized " * 20)
    assert is_inside and text.startswith("centralized central") and text.endswith("…")


def test_only_dashed_points_are_hollow(page: Any) -> None:
    count = """() => {
      const box = document.createElement("div");
      const series = (name, dashed) => ({name, kind: "points", x: [1, 2], y: [1, 2], dashed});
      document.body.append(box);
      const chart = manyeyes.chart(box, {series: [series("ours", false), series("paper", true)]});
      const kinds = ["path.me-points", "path.me-hollow", "i.me-points", "i.me-hollow"];
      const result = kinds.map((kind) => box.querySelectorAll(kind).length);
      chart.destroy();
      return result;
    }"""
    assert page.evaluate(count) == [1, 1, 1, 1]


def test_every_button_and_region_has_a_name(page: Any) -> None:
    has_name = "e => e.textContent.trim() || e.getAttribute('aria-label')"
    controls = "[...document.querySelectorAll('button, select, [role], summary')]"
    assert page.evaluate(f"{controls}.every({has_name})")
    tools = page.locator(".me-tools button")
    names = tools.evaluate_all("all => all.map(e => e.getAttribute('aria-label')).filter(n => n.startsWith('SVG'))")
    assert "SVG: Training loss" in names
    assert len(names) == len(set(names)) == page.locator("figure[data-chart]").count(), "each names its chart"
    ids = page.evaluate("[...document.querySelectorAll('[id]')].map(e => e.id)")
    assert len(ids) == len(set(ids))


def test_without_scripts_there_are_pictures_and_tables(browser: Any, report: Path) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(report.as_uri())
    assert page.locator(f"{FIRST} svg").is_visible()
    page.locator(f"{FIRST} summary").click()
    assert page.locator(f"{FIRST} td", has_text="50.0 %").first.is_visible()
    context.close()


def test_a_chart_of_many_long_series_is_drawn_and_removed(page: Any) -> None:
    counts = page.evaluate("""() => {
      const x = [...Array(5000).keys()], box = document.createElement("div");
      document.body.append(box);
      const series = [...Array(30).keys()].map((n) => ({name: "n" + n, x, y: x.map((i) => Math.sin(i / 99 + n))}));
      const chart = manyeyes.chart(box, {series});
      const numLines = box.querySelectorAll("path.me-line").length;
      chart.destroy();
      return [numLines, box.children.length];
    }""")
    assert counts == [30, 0]


@pytest.mark.parametrize("name", ["FL-R-{}", "FedAvgM + FedVC + FedIR, K={}"], ids=["short", "long"])
def test_names_on_the_axis_do_not_overlap_and_bars_have_whiskers(page: Any, name: str) -> None:
    script = """(names) => {
      const box = document.createElement("div");
      box.style.width = "420px";
      document.body.append(box);
      const x = names.map((_, i) => i), y = x.map(() => 0.5), low = x.map(() => 0.4), high = x.map(() => 0.6);
      manyeyes.chart(box, {x: {names}, series: [{name: "measured", kind: "bars", x, y, low, high}]});
      const ticks = [...box.querySelectorAll(".me-tick")].filter((tick) => names.includes(tick.textContent));
      const frame = box.querySelector("svg").getBoundingClientRect();
      const boxes = ticks.map((tick) => tick.getBoundingClientRect());
      const areSeparate = boxes.slice(1).every((box, i) => box.left >= boxes[i].right);
      const areInside = boxes.every((box) => box.bottom <= frame.bottom && box.left >= frame.left);
      return [ticks.length, areSeparate, areInside, box.querySelector(".me-whiskers").getAttribute("d").split("M").length - 1];
    }"""
    names = [name.format(number) for number in range(6)]
    assert page.evaluate(script, names) == [6, True, True, 6]


def test_a_curve_can_be_smoothed_and_drawn_on_logarithmic_axes(page: Any) -> None:
    """The third run has an accuracy of round / 100, which its moving average with weight 0.6 follows 0.6 / 0.4 rounds late."""
    page.locator("#smoothing").select_option(label="light")
    assert page.locator(f"{FIRST} .me-title").text_content() == "Accuracy (smoothed)"
    assert page.locator(f"{FIRST} path.me-raw").count() == 2
    plot, live = page.locator(f"{FIRST} .me-plot"), page.locator(f"{FIRST} [aria-live]")
    plot.focus()
    plot.press("End")
    assert live.text_content() == "rounds 50; other 48.5 % (50.0 % unsmoothed)"
    page.get_by_label("log x").check()
    page.get_by_label("log y").check()
    assert page.locator(SERIES).count() == 2


def test_many_series_have_a_short_legend_and_a_search(
    browser_page: Any, make_run: Callable[..., Path], tmp_path: Path
) -> None:
    runs = [str(make_run(f"run{number:02}", {"lr": number}, [0.1, number / 20])) for number in range(15)]
    write(find_runs(runs), tmp_path / "page.html")
    browser_page.goto((tmp_path / "page.html").as_uri())
    legend, search = browser_page.locator(f"{FIRST} .me-legend"), browser_page.locator(f"{FIRST} .me-search")
    assert legend.locator("button").count() == 12
    assert "and 3 more" in legend.inner_text()
    search.fill("run14")
    assert legend.locator("button").all_inner_texts() == ["run14"]
    assert browser_page.locator(f"{FIRST} g[opacity='1'] path.me-line").count() == 1


def test_a_command_is_copied_with_a_click(page: Any) -> None:
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    block = page.locator("figure.code").first
    block.locator("button").click()
    assert block.locator("button").inner_text() == "Copied"
    assert page.evaluate("navigator.clipboard.readText()") == "manyeyes run rounds=2"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing(browser: Any, report: Path, scheme: str) -> None:
    """Set AXE to the file axe.min.js of the npm package axe-core to run it."""
    source = os.environ.get("AXE")
    if source is None:
        pytest.skip("AXE is not set")
    context = browser.new_context(color_scheme=scheme, bypass_csp=True)
    page = context.new_page()
    page.goto(report.as_uri())
    page.evaluate("document.querySelectorAll('details').forEach((element) => { element.open = true; })")
    page.evaluate(Path(source).read_text(encoding="utf-8"))
    result = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    context.close()
    assert [violation["id"] for violation in result["violations"]] == []
