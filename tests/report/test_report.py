"""`manyeyes report`: what stands on the page, of runs of every kind and in every state, and in the files beside it."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from manyeyes.papers import ITEMS
from manyeyes.report.chart import Axis, Chart, Series
from manyeyes.report.curves import explorer, groups
from manyeyes.report.report import write
from manyeyes.report.scale import ticks
from manyeyes.report.svg import render_svg
from manyeyes.training.run_record import find_runs, read_run

Made = Callable[..., Path]


def data(page: Path) -> dict[str, Any]:
    """The numbers inside a page."""
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page.read_text(), re.DOTALL)
    assert found
    return json.loads(found[1])


@pytest.fixture
def shown(reader: Callable[[str], Any], tmp_path: Path) -> Callable[..., str]:
    """The text of the page of some folders, which is checked to be whole and to ask for nothing."""

    def show(*folders: Path, **options: Any) -> str:
        out = tmp_path / "page.html"
        write(find_runs([str(folder) for folder in folders]), out, **options)
        read = reader(out.read_text())
        for _, attributes in read.tags:
            assert not {"src", "srcset", "action", "onclick", "onload"} & set(attributes)
            assert (attributes.get("href") or "#").startswith("#")
        return " ".join(read.text)

    return show


def test_a_real_run_has_every_part(command: Callable[..., Any], tiny: tuple[str, ...], reader: Any) -> None:
    private = ("privacy=central", "privacy.noise_cohort=20", "algorithm.weigh=equally", "data.task=coarse")
    assert command("run", *tiny, *private, "rounds=6", "folder=runs/mine").code == 0
    told = command("report", "runs/mine", "--figures", "figures")
    assert told.out.startswith("Report: runs/mine/report.html, and ")
    read = reader(Path("runs/mine/report.html").read_text())
    text = " ".join(read.text)
    for heading in ("Summary", "Curves", "Classes", "Users", "Data", "Privacy", "Speed", "Repeat"):
        assert heading in text
    assert "20 simulated" in text
    assert "replace one user" in text
    assert "the operating system" in text
    assert "reference" in text or "multiprocess" in text  # the engine that auto took
    names = {path.stem for path in Path("figures").iterdir()}
    assert {"curves", "classes", "users", "class_counts", "user_sizes", "skew", "epsilon", "images_per_second"} <= names
    for path in Path("figures").glob("*.svg"):
        assert ElementTree.parse(path).getroot().tag.endswith("svg")


def test_scores_of_a_model_that_was_kept_from_an_earlier_round_say_so(made_run: Made, shown: Any) -> None:
    kept, last = made_run("kept", {"seed": 0}, [0.1, 0.5, 0.4, 0.5]), made_run("last", {"lr": 1}, [0.1, 0.2])
    for folder, best in ((kept, 1), (last, 1)):  # of three rounds, and of one
        lines = (folder / "metrics.jsonl").read_text().splitlines()
        lines[-1] = json.dumps(json.loads(lines[-1]) | {"best_round": best})
        (folder / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    assert "50.0 % of the model of round 1, best 50.0 % (round 1)" in " ".join(shown(kept).split())
    both = shown(kept, last)
    assert "50.0 % (of the model of round 1)" in both
    assert "20.0 % (of" not in both
    assert "Last scores are those of the model that is kept (best_on)" in both
    assert "(best_on)" not in shown(last)


def test_runs_that_differ_by_their_seed_are_a_mean_and_a_band(made_run: Made) -> None:
    one = made_run("fedavg_0", {"seed": 0}, [0.1, 0.2])
    two = made_run("fedavg_1", {"seed": 1}, [0.1, 0.4])
    three = made_run("other", {"seed": 0, "rounds": 9}, [0.5, 0.6])
    runs = find_runs([str(one), str(two), str(three)])
    assert [(group.name, len(group.runs)) for group in groups(runs)] == [("fedavg", 2), ("other", 1)]
    lines = explorer(runs)["groups"]
    assert [line["name"] for line in lines] == ["fedavg (2 seeds)", "other"]
    at, mean, low, high = lines[0]["metrics"]["accuracy"]
    assert (at, mean) == ([0, 1], [0.1, 0.3])
    assert low == pytest.approx([0.1, 0.3 - 0.02**0.5], abs=1e-5)  # deviation of 0.2 and 0.4 is sqrt(0.02)
    assert high == pytest.approx([0.1, 0.3 + 0.02**0.5], abs=1e-5)
    empty = made_run("fedavg_2", {"seed": 2}, [], finished=False)
    assert explorer(find_runs([str(one), str(two), str(empty)]))["groups"] == lines[:1]


def test_a_seed_that_was_run_twice_counts_once(made_run: Made) -> None:
    seeds = {"a_0": 0, "a_1": 1, "b_0": 0, "b_1": 1, "again": 0}
    runs = find_runs([str(made_run(name, {"seed": seed}, [0.1, 0.2])) for name, seed in seeds.items()])
    assert [(group.name, len(group.runs)) for group in groups(runs)] == [("a", 2), ("b", 2), ("again", 1)]


def test_a_seed_on_its_way_is_not_in_the_mean_over_seeds(made_run: Made, shown: Callable[..., str]) -> None:
    ends = {"a_0": 0.2, "a_1": 0.4, "a_2": 0.9}
    runs = [made_run(name, {"seed": int(name[-1])}, [0.1, end], name != "a_2") for name, end in ends.items()]
    assert "of the finished runs seeds accuracy, last accuracy, best a 2 30.0 ± 14.1 %" in shown(*runs)  # sqrt(0.02)


def test_groups_whose_runs_are_named_by_seed_first_have_names_of_their_own(made_run: Made) -> None:
    every = [("s0/low", 0, 1), ("s0/high", 0, 9), ("s1/low", 1, 1), ("s1/high", 1, 9)]
    runs = find_runs([str(made_run(name, {"seed": seed, "lr": lr}, [0.1, 0.2])) for name, seed, lr in every])
    assert [line["name"] for line in explorer(runs)["groups"]] == ["s0/low (2 seeds)", "s0/high (2 seeds)"]


def test_curves_can_be_drawn_over_what_was_spent(made_run: Made) -> None:
    (line,) = explorer([read_run(made_run("a", {}, [0.1, 0.2, 0.3]))])["groups"]
    assert line["over"] == {
        "round": [0, 1, 2],
        "max_client_batches": [0, 4, 8],
        "num_images": [0, 60, 120],
        "seconds": [0, 0.5, 1],
    }
    assert line["metrics"]["images_per_second"] == [[1, 2], [120, 120]]


def test_of_many_rounds_the_spikes_stay_and_the_page_is_small(made_run: Made, tmp_path: Path) -> None:
    folder = made_run("long", {}, [0.5] * 5001)
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    lines[2345] = lines[2345].replace('"train_loss": 1.0', '"train_loss": 77.0')
    (folder / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    out = tmp_path / "page.html"
    write([read_run(folder, str(number)) for number in range(20)], out)
    assert out.stat().st_size < 4_000_000
    assert data(out)["charts"]["train_loss"]["series"][0]["y"].count(77) == 1
    values = [line["metrics"]["train_loss"][1] for line in data(out)["explorer"]["groups"]]
    assert all(max(some) == 77 and len(some) <= 1100 for some in values)
    few = [line if number < 9 else line.replace('"train_loss"', '"other"') for number, line in enumerate(lines)]
    (folder / "metrics.jsonl").write_text("\n".join(few) + "\n")
    write([read_run(folder, str(number)) for number in range(20)], out)
    assert len(data(out)["explorer"]["groups"][0]["metrics"]["train_loss"][1]) == 8, "fewer values than stretches"


def test_names_from_outside_cannot_write_the_page(made_run: Made, tmp_path: Path, reader: Any) -> None:
    bad = "</script><script>alert(1)</script><img src=x onerror=alert(2)>"
    folder = made_run("a", {"data.name": bad}, [0.1, 0.2], classes=[bad, "b"])
    out = tmp_path / "page.html"
    write(find_runs([f"{bad}={folder}"]), out)
    text = out.read_text()
    assert "<script>alert" not in text and "<img" not in text
    assert [script.get("type") for script in reader(text).all("script")] == ["application/json", None, None]
    assert data(out)["charts"]["classes"]["series"][0]["labels"] == [bad, "b"]
    assert data(out)["explorer"]["groups"][0]["name"] == bad


def test_runs_that_are_not_whole_make_a_page_that_says_so(made_run: Made, shown: Callable[..., str]) -> None:
    stopped = made_run("stopped", {"rounds": 40}, [0.1, 0.2], finished=False)
    text = shown(stopped)
    assert "stopped is not finished: 1 of 40 rounds" in text
    assert f"manyeyes run resume={stopped}" in text
    spaced = made_run("a run=1", {"rounds": 40}, [0.1, 0.2], finished=False)
    assert f"manyeyes run 'resume=\"{spaced}\"'" in shown(spaced), "quotes for the shell, and those that settings need"
    diverged = made_run("diverged", {"rounds": 40}, [0.1, 0.2], finished=False)
    (diverged / "diverged.txt").write_text("the run has diverged: try a lower learning rate\n")
    assert "diverged after 1 of 40 rounds: the run has diverged: try a lower learning rate" in shown(diverged)
    broken = made_run("broken", {}, [0.1, 0.2])
    with (broken / "metrics.jsonl").open("a") as file:
        file.write('{"round": 2, "accur')
    (broken / "config.yaml").write_text("a: [")
    text = shown(broken)
    assert "line 3 of metrics.jsonl is damaged and ignored" in text
    assert "config.yaml cannot be read" in text
    huge = "1" + "0" * 400
    lines = ('{"round": true}', f'{{"round": {huge}}}', f'{{"round": 1, "seconds": {huge}}}')
    (broken / "metrics.jsonl").write_text('{"round": 0, "accuracy": 0.5}\n' + "\n".join(lines))
    assert "3 lines of metrics.jsonl, the first line 2, are damaged and ignored" in shown(broken)
    (broken / "metrics.jsonl").write_text('{"round": 0, "accuracy": 0.5}\n' + "?\n" * 2000)
    (broken / "config.yaml").write_text("rounds: many")
    text = shown(broken)
    assert "2,000 lines of metrics.jsonl, the first line 2, are damaged and ignored" in text
    assert text.count("damaged and ignored") == 1
    closed = made_run("closed", {}, [0.1, 0.2])
    (closed / "metrics.jsonl").unlink()
    (closed / "metrics.jsonl").mkdir()
    assert "closed: metrics.jsonl cannot be read (Is a directory)" in shown(closed)
    empty = made_run("empty", {}, [], finished=False)
    assert "empty is empty" in shown(empty)
    assert "Curves" not in shown(empty)


def test_a_run_without_evaluation_still_has_its_losses(made_run: Made, shown: Callable[..., str]) -> None:
    folder = made_run("plain", {}, [0.1, 0.2])
    events = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    text = "".join(json.dumps({k: v for k, v in e.items() if k != "accuracy"}) + "\n" for e in events)
    (folder / "metrics.jsonl").write_text(text)
    assert "Training loss" in shown(folder)


def test_the_table_of_runs_has_the_settings_that_differ(made_run: Made, shown: Callable[..., str]) -> None:
    one = made_run("a", {"algorithm.lr": 0.125, "data.users": 10}, [0.1, 0.9, 0.25])
    text = shown(one, made_run("b", {"algorithm.lr": 0.5, "data.users": 10}, [0.1, 0.2, 0.75]))
    table = text[text.index("The runs, and") : text.index("Training loss")]
    for cell in ("lr", "0.125", "0.5", "90.0 % (round 1)", "25.0 %", "75.0 %"):
        assert cell in table
    assert "users" not in table


def test_a_folder_of_runs_is_all_of_them_named_by_what_differs(made_run: Made, tmp_path: Path) -> None:
    for number in (10, 2):
        made_run(f"sweep/{number}", {"algorithm.lr": number, "folder": str(number)}, [0.1])
    assert [run.name for run in find_runs([str(tmp_path / "sweep")])] == ["lr 2", "lr 10"]


def test_names_and_folders_may_have_equal_signs(made_run: Made) -> None:
    folder = made_run("lr=0.1", {}, [0.1])
    words = [str(folder), f"a={folder}", f"lr=1={folder}"]
    assert [find_runs([word])[0].name for word in words] == ["lr=0.1", "a", "lr=1"]
    with pytest.raises(ValueError, match=r"^No folder nowhere"):
        find_runs(["a=nowhere"])


def test_adapted_users_are_a_line_of_their_own(made_run: Made, tmp_path: Path) -> None:
    folder = made_run("a", {}, [0.1])
    (folder / "per_user.csv").write_text("user,examples,accuracy,personalized\nu,1,0.5,1.0\nv,3,0.0,0.5\n")
    out = tmp_path / "page.html"
    write([read_run(folder)], out)
    lines = data(out)["charts"]["users"]["series"]
    assert [(line["name"], line["y"], line.get("dashed")) for line in lines] == [
        ("a", [0, 0.5], None),
        ("a, adapted", [0.5, 1], True),
    ]


def test_how_many_users_were_scored_is_no_share(made_run: Made, tmp_path: Path) -> None:
    folder = made_run("a", {}, [0.1])
    scores = {
        "num_users_scored": 20.0,
        "adapted_num_users_scored": 20.0,
        "adapted_user_mean": 0.5,
        "adapted_examples": 80.0,
    }
    (folder / "metrics.jsonl").write_text(json.dumps({"round": 0, "accuracy": 0.1, **scores}) + "\n")
    out = tmp_path / "page.html"
    write([read_run(folder)], out)
    assert [each["key"] for each in data(out)["explorer"]["metrics"]] == ["accuracy", "adapted_user_mean"]


def test_a_name_that_is_no_text_does_not_stop_the_figures(made_run: Made, tmp_path: Path) -> None:
    run = read_run(made_run("a", {}, [0.125]), "run \udcff")
    write([run], tmp_path / "page.html", figures=tmp_path / "f")
    assert "run \N{REPLACEMENT CHARACTER},0,0.125" in (tmp_path / "f/curves.csv").read_text(encoding="utf-8")


def test_figures_hold_the_numbers(made_run: Made, tmp_path: Path) -> None:
    write(
        [read_run(made_run("a", {}, [0.125, 0.5], classes=["x", "y,z"]))],
        tmp_path / "page.html",
        figures=tmp_path / "f",
    )
    rows = list(csv.reader((tmp_path / "f/curves.csv").open()))
    assert rows == [["series", "rounds", "accuracy"], ["a", "0", "0.125"], ["a", "1", "0.5"]]
    write([read_run(made_run("long", {}, [0.5] * 2500))], tmp_path / "page.html", figures=tmp_path / "long")
    assert len((tmp_path / "long/curves.csv").read_text().splitlines()) == 2501  # more than the page draws
    rows = list(csv.reader((tmp_path / "f/classes.csv").open()))
    assert rows[2] == ["a", "y,z", "2", "0.5"]


def test_the_paper_stands_beside_runs_that_reproduce_made(made_run: Made, command: Callable[..., Any]) -> None:
    row = ITEMS["flair.table1"].rows[0]
    folder = made_run(f"runs/flair/on_stand-ins/{row.runs[0].name}/0", {}, [0.1, 0.25], metric="macro_ap")
    scores = {str(measure): 0.5 for measure in row.expected} | {"round": 2, "macro_ap": 0.25, "batches": 1}
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(json.dumps(scores) + "\n")
    assert command("report", f"runs/flair/on_stand-ins/{row.runs[0].name}", "--out", "page.html").code == 0
    text = Path("page.html").read_text()
    assert "Paper: flair.table1" in text
    assert "measured (on stand-ins)" in text
    printed = next(number for measure, number in row.expected.items() if str(measure) == "macro_ap")
    assert re.search(rf"<td>macro_ap</td><td>{re.escape(str(printed))}</td><td>25</td><td></td><td></td>", text)


def test_a_paper_that_is_asked_for_stands_beside_any_run(made_run: Made, command: Callable[..., Any]) -> None:
    made_run("mine", {}, [0.1, 0.25])
    assert command("report", "mine", "--paper", "hsu2020.table2").code == 0
    assert "hsu2020.table2" in (text := Path("mine/report.html").read_text())
    assert "settings may not be the paper's" in text or "settings may not be the paper&#x27;s" in text


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nowhere"], "No folder nowhere"),
        (["hollow"], "hollow has no run"),
        (["mine", "--out", "hollow"], "hollow is a folder"),
        (["mine", "--paper", "hsu2020.table99"], "there is no 'hsu2020.table99' in the papers"),
        ([], "required: RUN"),
    ],
)
def test_bad_input_is_one_sentence(words: list[str], said: str, made_run: Made, command: Callable[..., Any]) -> None:
    made_run("mine", {}, [0.1])
    Path("hollow").mkdir()
    told = command("report", *words)
    assert told.code != 0
    assert said in told.err
    assert told.err.count("\n") == 1
    assert not list(Path().rglob("*.html"))


def test_ticks_are_round() -> None:
    assert ticks(0, 1, 5) == [0, 0.2, 0.4, 0.6, 0.8, 1]
    assert ticks(37, 62, 5) == [40, 45, 50, 55, 60]
    assert ticks(1, 2000, 5, log=True) == [1, 10, 100, 1000]


def test_a_still_picture_has_long_names_upwards_deviations_and_hollow_signs() -> None:
    names = tuple(f"FedAvgM + FedVC + FedIR, K={number}" for number in range(6))
    bars = Series("measured", range(6), [0.5] * 6, [0.4] * 6, [0.6] * 6, kind="bars")
    paper = Series("paper", range(6), [0.5] * 6, kind="points", dashed=True, color=1)
    short, tall = (Chart("key", "", Axis("", names=x), Axis(""), [bars, paper], "") for x in (tuple("abcdef"), names))
    drawn = render_svg(tall)
    assert [name in drawn for name in names] == [True] * 6
    assert drawn.count("rotate(-90)") == 6
    assert render_svg(short).count("rotate(-90)") == 0
    assert drawn.count("<circle") == 7, "six rings, and one before the name"
    spread = re.search(r'<path d="([^"]*)" stroke="#1b1f24"', drawn)
    assert spread and spread[1].count("M") == 6
