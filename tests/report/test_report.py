"""`manyeyes report`: the page and the chart files of runs of every kind and status."""

from __future__ import annotations

import base64
import csv
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from manyeyes.papers import EXHIBITS
from manyeyes.papers.plan import ReproduceOptions
from manyeyes.report.chart import Axis, Chart, Series
from manyeyes.report.curves import explorer, group_runs
from manyeyes.report.details import classes_section
from manyeyes.report.examples import captioned_image, examples_section
from manyeyes.report.export import default_folder
from manyeyes.report.overview import summary
from manyeyes.report.report import write
from manyeyes.report.scale import ticks
from manyeyes.report.svg import render_svg
from manyeyes.training.run_names import find_runs
from manyeyes.training.run_reader import read_run

MakeRun = Callable[..., Path]


def page_data(page: Path) -> dict[str, Any]:
    """Return the data of the charts of a page."""
    match = re.search(r'<script type="application/json" id="data">(.*?)</script>', page.read_text(), re.DOTALL)
    assert match
    return json.loads(match[1])


@pytest.fixture
def page_text(reader: Callable[[str], Any], tmp_path: Path) -> Callable[..., str]:
    """Return the text of the page of some folders, after checking that it is well-formed and loads nothing."""

    def show(*folders: Path, **options: Any) -> str:
        out = tmp_path / "page.html"
        write(find_runs([str(folder) for folder in folders]), out, **options)
        read = reader(out.read_text())
        for _, attributes in read.tags:
            assert not {"src", "srcset", "action", "onclick", "onload"} & set(attributes)
            assert (attributes.get("href") or "#").startswith("#")
        return " ".join(read.text)

    return show


@pytest.mark.slow
def test_the_page_of_a_private_run_has_every_section(
    command: Callable[..., Any], tiny: tuple[str, ...], reader: Any
) -> None:
    private = ("privacy=central", "privacy.noise_cohort_size=20", "client_weighting=uniform", "data.task=coarse")
    recorded = (*private, "unprotected_statistics=true")  # with the seconds of each round
    assert command("run", *tiny, *recorded, "rounds=6", "folder=runs/mine").code == 0
    outcome = command("report", "runs/mine", "--figures", "figures")
    assert outcome.out.startswith("Report: runs/mine/report.html, and ")
    read = reader(Path("runs/mine/report.html").read_text())
    text = " ".join(read.text)
    for heading in ("Summary", "Curves", "Classes", "Users", "Data", "Privacy", "Speed", "Repeat"):
        assert heading in text
    assert "20 simulated" in text
    assert "replace one user" in text
    assert "the operating system" in text
    assert "reference" in text or "multiprocess" in text  # the engine that auto took
    names = {path.stem for path in Path("figures").iterdir()}
    assert {"curves", "classes", "users", "class_counts", "user_sizes", "skew", "epsilon", "seconds"} <= names
    for path in Path("figures").glob("*.svg"):
        assert ElementTree.parse(path).getroot().tag.endswith("svg")


def test_scores_of_a_model_from_an_earlier_round_name_the_round(make_run: MakeRun, page_text: Any) -> None:
    earlier, last = make_run("earlier", {"seed": 0}, [0.1, 0.5, 0.4, 0.5]), make_run("last", {"lr": 1}, [0.1, 0.2])
    for folder, best in ((earlier, 1), (last, 1)):  # of three rounds, and of one
        lines = (folder / "metrics.jsonl").read_text().splitlines()
        lines[-1] = json.dumps(json.loads(lines[-1]) | {"best_round": best})
        (folder / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    assert "best 20.0 % (round 1)" in " ".join(page_text(last).split())
    assert "50.0 % of the model of round 1, best 50.0 % (round 1)" in " ".join(page_text(earlier).split())
    both = page_text(earlier, last)
    assert "50.0 % (of the model of round 1)" in both
    assert "20.0 % (of" not in both
    assert "Last scores are those of the selected model (select_best_on)" in both
    assert "(select_best_on)" not in page_text(last)


def test_a_number_that_never_changes_is_on_the_page_once(make_run: MakeRun, tmp_path: Path) -> None:
    write([read_run(make_run("a", {}, [0.1, 0.2, 0.4]), "a")], tmp_path / "page.html")
    (group,) = page_data(tmp_path / "page.html")["explorer"]["groups"]
    assert (group["metrics"]["num_images"][1], group["metrics"]["accuracy"][1]) == ([60], [0.1, 0.2, 0.4])


def test_runs_that_differ_only_by_seed_are_a_mean_and_a_band(make_run: MakeRun) -> None:
    first = make_run("fedavg_0", {"seed": 0}, [0.1, 0.2])
    second = make_run("fedavg_1", {"seed": 1}, [0.1, 0.4])
    third = make_run("other", {"seed": 0, "rounds": 9}, [0.5, 0.6])
    runs = find_runs([str(first), str(second), str(third)])
    assert [(group.name, len(group.runs)) for group in group_runs(runs)] == [("fedavg", 2), ("other", 1)]
    lines = explorer(runs)["groups"]
    assert [line["name"] for line in lines] == ["fedavg (2 seeds)", "other"]
    number, mean, low, high = lines[0]["metrics"]["accuracy"]
    assert (lines[0]["positions"][number], mean) == ([0, 1], [0.1, 0.3])
    assert low == pytest.approx([0.1, 0.3 - 0.02**0.5], abs=1e-5)  # deviation of 0.2 and 0.4 is sqrt(0.02)
    assert high == pytest.approx([0.1, 0.3 + 0.02**0.5], abs=1e-5)
    empty = make_run("fedavg_2", {"seed": 2}, [], finished=False)
    assert explorer(find_runs([str(first), str(second), str(empty)]))["groups"] == lines[:1]


def test_a_seed_that_was_run_twice_counts_once(make_run: MakeRun) -> None:
    seeds = {"a_0": 0, "a_1": 1, "b_0": 0, "b_1": 1, "again": 0}
    runs = find_runs([str(make_run(name, {"seed": seed}, [0.1, 0.2])) for name, seed in seeds.items()])
    assert [(group.name, len(group.runs)) for group in group_runs(runs)] == [("a", 2), ("b", 2), ("again", 1)]


def test_an_unfinished_seed_is_not_in_the_mean_over_seeds(make_run: MakeRun, page_text: Callable[..., str]) -> None:
    ends = {"a_0": 0.2, "a_1": 0.4, "a_2": 0.9}
    runs = [make_run(name, {"seed": int(name[-1])}, [0.1, end], name != "a_2") for name, end in ends.items()]
    text = " ".join(page_text(*runs).split())
    assert "seeds accuracy, last accuracy, best time status a 2 30.0 ± 14.1 %" in text  # sqrt(0.02)


def test_groups_have_different_names_when_run_names_begin_with_the_seed(make_run: MakeRun) -> None:
    every = [("s0/low", 0, 1), ("s0/high", 0, 9), ("s1/low", 1, 1), ("s1/high", 1, 9)]
    runs = find_runs([str(make_run(name, {"seed": seed, "lr": lr}, [0.1, 0.2])) for name, seed, lr in every])
    assert [line["name"] for line in explorer(runs)["groups"]] == ["s0/low (2 seeds)", "s0/high (2 seeds)"]


def test_curves_can_be_drawn_over_cumulative_costs(make_run: MakeRun) -> None:
    (line,) = explorer([read_run(make_run("a", {}, [0.1, 0.2, 0.3]))])["groups"]
    assert line["axes"] == {
        "round": [0, 1, 2],
        "max_client_batches": [0, 4, 8],
        "num_images": [0, 60, 120],
        "seconds": [0, 0.5, 1],
    }
    number, values = line["metrics"]["images_per_second"]
    assert (line["positions"][number], values) == ([1, 2], [120])  # which stands for both


@pytest.mark.slow
def test_a_long_run_is_downsampled_but_its_peaks_stay(make_run: MakeRun, tmp_path: Path) -> None:
    folder = make_run("long", {}, [0.5] * 5001)
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    lines[2345] = lines[2345].replace('"train_loss": 1.0', '"train_loss": 77.0')
    (folder / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    out = tmp_path / "page.html"
    write([read_run(folder, str(number)) for number in range(20)], out)
    values = [line["metrics"]["train_loss"][1] for line in page_data(out)["explorer"]["groups"]]
    assert all(max(curve) == 77 and len(curve) <= 1100 for curve in values)
    lines[3] = lines[3].replace('"train_loss": 1.0', '"train_loss": 2.0')
    first = [line if number < 9 else line.replace('"train_loss"', '"other"') for number, line in enumerate(lines)]
    (folder / "metrics.jsonl").write_text("\n".join(first) + "\n")
    write([read_run(folder, str(number)) for number in range(20)], out)
    assert len(page_data(out)["explorer"]["groups"][0]["metrics"]["train_loss"][1]) == 8, "fewer values than intervals"


@pytest.mark.slow
def test_a_page_of_ten_long_runs_is_small(make_run: MakeRun, tmp_path: Path) -> None:
    """All 18 numbers of 5,000 rounds differ from round to round; every run has 100 settings and as many images as it can.

    A thumbnail of a detailed photo has about 2 kB.
    """
    image = {
        "class": "cat",
        "predicted": "dog",
        "is_correct": False,
        "probability": 0.75,
        "format": "jpeg",
        "width": 72,
    }
    picture = base64.b64encode(b"\xff\xd8\xff" + bytes(2000)).decode()
    by = [("class", f"class {n // 4}") for n in range(32)] + [("user", f"user {n // 4}") for n in range(12)]
    images = [image | {"data": picture, "by": kind, "heading": heading} for kind, heading in by]
    rng = np.random.default_rng(0)
    metrics = ["accuracy", "loss", "macro_accuracy", *(f"user_q{n:02}" for n in range(7))]
    for number in range(10):
        settings = {f"group.option_{n}": 0.125 for n in range(100)} | {"algorithm.lr": number}
        folder = make_run(f"sweep/{number}", settings, [0.1])
        events = []
        for round in range(5001):
            names = ["train_loss", "update_norm", "num_images", "max_client_batches", "seconds"]
            names += metrics if round % 10 == 0 else []
            events.append({"round": round} | dict(zip(names, rng.random(len(names)).tolist(), strict=True)))
        (folder / "metrics.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
        (folder / "model.safetensors").touch()
        (folder / "example_images.json").write_text(json.dumps({"images": images}))
    out = tmp_path / "page.html"
    write(find_runs([str(tmp_path / "sweep")]), out)
    assert out.read_text().count(picture) == len(images)
    assert out.stat().st_size < 400_000


def test_names_from_outside_cannot_write_the_page(make_run: MakeRun, tmp_path: Path, reader: Any) -> None:
    bad = "</script><script>alert(1)</script><img src=x onerror=alert(2)>"
    folder = make_run("a", {"data.name": bad}, [0.1, 0.2], classes=[bad, "b"])
    out = tmp_path / "page.html"
    write(find_runs([f"{bad}={folder}"]), out)
    text = out.read_text()
    assert "<script>alert" not in text and "<img" not in text
    assert [script.get("type") for script in reader(text).all("script")] == ["application/json", None, None]
    assert page_data(out)["charts"]["classes"]["series"][0]["labels"] == [bad, "b"]
    assert page_data(out)["explorer"]["groups"][0]["name"] == bad


def test_an_incomplete_or_damaged_run_has_a_page_that_says_so(make_run: MakeRun, page_text: Callable[..., str]) -> None:
    stopped = make_run("stopped", {"rounds": 40}, [0.1, 0.2], finished=False)
    text = page_text(stopped)
    assert "stopped is not finished: 1 of 40 rounds" in text
    assert f"manyeyes run resume={stopped}" in text
    spaced = make_run("a run=1", {"rounds": 40}, [0.1, 0.2], finished=False)
    assert f"manyeyes run 'resume=\"{spaced}\"'" in page_text(spaced), (
        "quotes for the shell, and those that settings need"
    )
    diverged = make_run("diverged", {"rounds": 40}, [0.1, 0.2], finished=False)
    (diverged / "diverged.txt").write_text("the run has diverged: try a lower learning rate\n")
    assert "diverged after 1 of 40 rounds: the run has diverged: try a lower learning rate" in page_text(diverged)
    broken = make_run("broken", {}, [0.1, 0.2])
    with (broken / "metrics.jsonl").open("a") as file:
        file.write('{"round": 2, "accur')
    (broken / "config.yaml").write_text("a: [")
    text = page_text(broken)
    assert "line 3 of metrics.jsonl is damaged and ignored" in text
    assert "config.yaml cannot be read" in text
    huge = "1" + "0" * 400
    lines = ('{"round": true}', f'{{"round": {huge}}}', f'{{"round": 1, "seconds": {huge}}}')
    (broken / "metrics.jsonl").write_text('{"round": 0, "accuracy": 0.5}\n' + "\n".join(lines))
    assert "3 lines of metrics.jsonl, the first line 2, are damaged and ignored" in page_text(broken)
    (broken / "metrics.jsonl").write_text('{"round": 0, "accuracy": 0.5}\n' + "?\n" * 2000)
    (broken / "config.yaml").write_text("rounds: many")
    text = page_text(broken)
    assert "2,000 lines of metrics.jsonl, the first line 2, are damaged and ignored" in text
    assert text.count("damaged and ignored") == 1
    closed = make_run("closed", {}, [0.1, 0.2])
    (closed / "metrics.jsonl").unlink()
    (closed / "metrics.jsonl").mkdir()
    assert "closed: metrics.jsonl cannot be read (Is a directory)" in page_text(closed)
    empty = make_run("empty", {}, [], finished=False)
    assert "empty is empty: it ended before its first evaluation" in page_text(empty)
    assert "Curves" not in page_text(empty)


def test_a_run_without_evaluation_still_has_its_losses(make_run: MakeRun, page_text: Callable[..., str]) -> None:
    folder = make_run("plain", {}, [0.1, 0.2])
    events = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    text = "".join(json.dumps({k: v for k, v in e.items() if k != "accuracy"}) + "\n" for e in events)
    (folder / "metrics.jsonl").write_text(text)
    assert "Training loss" in page_text(folder)


def test_the_table_of_runs_has_the_settings_that_differ(make_run: MakeRun, page_text: Callable[..., str]) -> None:
    first = make_run("a", {"algorithm.lr": 0.125, "data.users": 10}, [0.1, 0.9, 0.25])
    text = page_text(first, make_run("b", {"algorithm.lr": 0.5, "data.users": 10}, [0.1, 0.2, 0.75]))
    table = text[text.index("The runs, ") : text.index("Training loss")]
    for cell in ("lr", "0.125", "0.5", "90.0 % (round 1)", "25.0 %", "75.0 %"):
        assert cell in table
    assert "users" not in table


def test_options_that_follow_from_the_algorithm_are_not_columns(
    make_run: MakeRun, page_text: Callable[..., str]
) -> None:
    algorithms = {"a": ("fedavg", "uniform", 1), "b": ("fedvc", "size_weighted", 1), "c": ("fedvc", "size_weighted", 2)}
    folders = [
        make_run(name, {"algorithm.name": algorithm, "sampler.name": sampler, "server_optimizer.lr": lr}, [0.1, 0.2])
        for name, (algorithm, sampler, lr) in algorithms.items()
    ]
    text = page_text(*folders)
    table = text[text.index("The runs, ") : text.index("Training loss")]
    assert "fedvc" in table and " lr " in table
    assert "size_weighted" not in table


def test_a_setting_that_a_component_repeats_is_one_column(make_run: MakeRun, page_text: Callable[..., str]) -> None:
    """`algorithm.lr` is also an option of the client optimizer; the server optimizer's `lr` is another setting."""
    settings = [("a", 0.125, 1.0), ("b", 0.5, 2.0)]
    folders = [
        make_run(name, {"algorithm.lr": lr, "client_optimizer.lr": lr, "server_optimizer.lr": server_lr}, [0.1, 0.2])
        for name, lr, server_lr in settings
    ]
    text = page_text(*folders)
    table = text[text.index("The runs, ") : text.index("Training loss")]
    assert (table.count("0.125"), table.count("algorithm.lr"), table.count("server_optimizer.lr")) == (1, 1, 1)
    assert "client_optimizer.lr" not in table


def test_a_folder_of_runs_is_all_of_them_named_by_what_differs(make_run: MakeRun, tmp_path: Path) -> None:
    for number in (10, 2):
        make_run(f"sweep/{number}", {"algorithm.lr": number, "folder": str(number)}, [0.1])
    assert [run.name for run in find_runs([str(tmp_path / "sweep")])] == ["lr 2", "lr 10"]


def test_names_and_folders_may_have_equal_signs(make_run: MakeRun) -> None:
    folder = make_run("lr=0.1", {}, [0.1])
    arguments = [str(folder), f"a={folder}", f"lr=1={folder}"]
    assert [find_runs([argument])[0].name for argument in arguments] == ["lr=0.1", "a", "lr=1"]
    with pytest.raises(ValueError, match=r"^No folder nowhere"):
        find_runs(["a=nowhere"])


def test_example_images_say_of_how_many_classes_they_are(make_run: MakeRun) -> None:
    folder = make_run("a", {}, [0.1])
    image = {
        "class": "cat",
        "predicted": "dog",
        "is_correct": False,
        "probability": 0.75,
        "format": "jpeg",
        "width": 72,
    }
    picture = base64.b64encode(b"\xff\xd8\xff" + bytes(20)).decode()
    images = [image | {"data": picture, "by": "class", "heading": "cat"}]
    (folder / "example_images.json").write_text(json.dumps({"images": images}))
    (folder / "per_class.csv").write_text("class,examples,accuracy\ncat,1,0.5\ndog,1,0.5\n")
    section = examples_section(group_runs([read_run(folder)]))
    assert section is not None
    assert "1 of 2 classes shown." in section.html(0)


@pytest.mark.parametrize(("counts", "is_log"), [((163, 165), False), ((10, 30), True)])
def test_numbers_of_images_are_on_a_logarithmic_axis_from_a_factor_of_three(
    make_run: MakeRun, counts: tuple[int, int], is_log: bool
) -> None:
    folder = make_run("a", {}, [0.1])
    (folder / "per_class.csv").write_text("class,examples,accuracy\ncat,{},0.5\ndog,{},0.5\n".format(*counts))
    section = classes_section(group_runs([read_run(folder)]))
    assert section is not None
    (chart,) = section.charts
    assert (chart.x.log, chart.x.integer) == (is_log, True)


def test_personalized_models_have_a_line_of_their_own(make_run: MakeRun, tmp_path: Path) -> None:
    folder = make_run("a", {}, [0.1])
    (folder / "per_user.csv").write_text("user,examples,personalized_accuracy,accuracy\nu,1,1.0,0.5\nv,3,0.5,0.0\n")
    out = tmp_path / "page.html"
    write([read_run(folder)], out)
    lines = page_data(out)["charts"]["users"]["series"]
    assert [(line["name"], line["y"], line.get("dashed")) for line in lines] == [
        ("a, personalized", [0.5, 1], None),
        ("a, shared model", [0, 0.5], True),
    ]


def write_scores(folder: Path, **curves: list[float]) -> None:
    """Replace the events of a run by the values of these metrics over rounds."""
    rounds = [dict(zip(curves, values, strict=True)) for values in zip(*curves.values(), strict=True)]
    lines = [json.dumps({"round": round, **scores}) for round, scores in enumerate(rounds)]
    (folder / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    (folder / "model.safetensors").touch()  # of the last round


def test_personalized_scores_come_first_and_those_of_the_shared_model_next_to_them(
    make_run: MakeRun, tmp_path: Path, reader: Any
) -> None:
    folder, out = make_run("ditto", {}, [0.1]), tmp_path / "page.html"
    write_scores(
        folder, accuracy=[0.1, 0.1], loss=[3, 2.5], personalized_accuracy=[0.1, 0.579], personalized_loss=[3, 1]
    )
    write([read_run(folder)], out)
    text = "|".join(reader(out.read_text()).text)
    cards = [
        "accuracy, personalized models|57.9 %",
        "accuracy, shared model|10.0 %",
        "loss on the evaluated split, pers",
    ]
    assert [text.index(card) for card in cards] == sorted(text.index(card) for card in cards)
    data = page_data(out)
    assert data["charts"]["curves"]["metric"] == "personalized_accuracy"
    assert data["explorer"]["groups"][0]["metrics"]["personalized_accuracy"][1] == [0.1, 0.579]
    assert data["charts"]["accuracy"]["title"] == "Accuracy, shared model"
    assert [metric["label"] for metric in data["explorer"]["metrics"]][:2] == [
        "accuracy, personalized models",
        "accuracy, shared model",
    ]


def test_runs_with_and_without_personalized_models_are_drawn_by_their_scores(make_run: MakeRun, tmp_path: Path) -> None:
    fedavg, ditto, out = make_run("fedavg", {}, [0.1]), make_run("ditto", {"lam": 1}, [0.1]), tmp_path / "page.html"
    write_scores(fedavg, accuracy=[0.1, 0.3])
    write_scores(ditto, accuracy=[0.1, 0.2], personalized_accuracy=[0.1, 0.6])
    write([read_run(fedavg), read_run(ditto)], out)
    data = page_data(out)
    assert [line["name"] for line in data["charts"]["curves"]["series"]] == ["fedavg", "ditto, personalized"]
    first = data["explorer"]["metrics"][0]
    assert (first["label"], first["percent"]) == ("accuracy, of personalized models where a run has them", True)
    assert [curve["metrics"][first["name"]][1] for curve in data["explorer"]["groups"]] == [[0.1, 0.3], [0.1, 0.6]]
    assert [curve["score_name"] for curve in data["explorer"]["groups"]] == ["fedavg", "ditto, personalized"]
    table = summary([read_run(fedavg), read_run(ditto)])[0]
    columns = [
        table.header.index(name) for name in ("accuracy, personalized models, last", "accuracy, shared model, last")
    ]
    assert [[row[i] for i in columns] for row in table.rows] == [["60.0 %", "20.0 %"], ["", "30.0 %"]], "the best first"


def test_a_private_run_has_no_axis_and_no_speed_of_what_it_withholds(
    make_run: MakeRun, tmp_path: Path, reader: Any
) -> None:
    folder, out = make_run("private", {}, [0.1]), tmp_path / "page.html"
    write_scores(folder, accuracy=[0.1, 0.5], epsilon=[0.5, 1.0])
    (folder / "privacy.json").write_text(json.dumps({"guarantee": "(1, 1e-3)", "mechanism": {}}))
    write([read_run(folder)], out)
    assert [axis["name"] for axis in page_data(out)["explorer"]["axes"]] == ["round"]
    text = "|".join(reader(out.read_text()).text)
    assert "statistics of the training users, are not recorded" in text
    assert "training time" not in text
    assert "Seconds per round" not in text


def test_counts_of_users_and_images_are_not_drawn(make_run: MakeRun, tmp_path: Path) -> None:
    folder = make_run("a", {}, [0.1])
    scores = {
        "num_users_scored": 20.0,
        "personalized_num_users_scored": 20.0,
        "personalized_user_mean": 0.5,
        "personalized_examples": 80.0,
    }
    (folder / "metrics.jsonl").write_text(json.dumps({"round": 0, "accuracy": 0.1, **scores}) + "\n")
    out = tmp_path / "page.html"
    write([read_run(folder)], out)
    assert [metric["name"] for metric in page_data(out)["explorer"]["metrics"]] == [
        "accuracy",
        "personalized_user_mean",
    ]


def test_a_name_that_is_not_valid_text_does_not_stop_the_figures(make_run: MakeRun, tmp_path: Path) -> None:
    run = read_run(make_run("a", {}, [0.125]), "run \udcff")
    write([run], tmp_path / "page.html", figures=tmp_path / "f")
    assert "run \N{REPLACEMENT CHARACTER},0,0.125" in (tmp_path / "f/curves.csv").read_text(encoding="utf-8")


@pytest.mark.slow
def test_figures_have_all_values(make_run: MakeRun, tmp_path: Path) -> None:
    write(
        [read_run(make_run("a", {}, [0.125, 0.5], classes=["x", "y,z"]))],
        tmp_path / "page.html",
        figures=tmp_path / "f",
    )
    rows = list(csv.reader((tmp_path / "f/curves.csv").open()))
    assert rows == [["series", "rounds", "accuracy"], ["a", "0", "0.125"], ["a", "1", "0.5"]]
    write([read_run(make_run("long", {}, [0.5] * 2500))], tmp_path / "page.html", figures=tmp_path / "long")
    assert len((tmp_path / "long/curves.csv").read_text().splitlines()) == 2501  # more than the page draws
    rows = list(csv.reader((tmp_path / "f/classes.csv").open()))
    assert rows[2] == ["a", "y,z", "2", "0.5"]


def test_runs_of_reproduce_are_compared_with_the_paper(make_run: MakeRun, command: Callable[..., Any]) -> None:
    row, options = EXHIBITS["flair.table1"].rows[0], ReproduceOptions(synthetic=True)
    runs = f"runs/flair/{options.folder_tag}/{row.runs[0].name}"
    folder = make_run(f"{runs}/0", {}, [0.1, 0.25], metric="macro_ap_200")
    scores = {str(metric): 0.5 for metric in row.expected} | {"round": 2, "macro_ap_200": 0.25, "max_client_batches": 1}
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(json.dumps(scores) + "\n")
    (folder / "model.safetensors").touch()  # written after the last round
    assert command("report", runs, "--out", "page.html").code == 0
    text = Path("page.html").read_text()
    assert "Paper: flair.table1" in text
    assert f"measured ({options.tag})" in text
    printed = next(number for metric, number in row.expected.items() if str(metric) == "macro_ap_200")
    assert re.search(
        rf'<td class="text">macro_ap_200</td><td>{re.escape(str(printed))}</td><td>25</td><td></td><td></td>', text
    )


def test_any_run_can_be_compared_with_a_paper(make_run: MakeRun, command: Callable[..., Any]) -> None:
    make_run("mine", {}, [0.1, 0.25])
    assert command("report", "mine", "--paper", "hsu2020.table2").code == 0
    assert "hsu2020.table2" in (text := Path("mine/report.html").read_text())
    assert "settings may not be the paper's" in text or "settings may not be the paper&#x27;s" in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere"], "No folder nowhere"),
        (["hollow"], "hollow has no run"),
        (["mine", "--out", "hollow"], "hollow is a folder"),
        (["mine", "--paper", "hsu2020.table99"], "Unknown table or figure 'hsu2020.table99'"),
        ([], "required: RUN"),
    ],
)
def test_a_mistake_is_one_sentence(
    arguments: list[str], message: str, make_run: MakeRun, command: Callable[..., Any]
) -> None:
    make_run("mine", {}, [0.1])
    Path("hollow").mkdir()
    outcome = command("report", *arguments)
    assert outcome.code != 0
    assert message in outcome.err
    assert outcome.err.count("\n") == 1
    assert not list(Path().rglob("*.html"))


def test_ticks_are_round() -> None:
    assert ticks(0, 1, 5) == [0, 0.2, 0.4, 0.6, 0.8, 1]
    assert ticks(37, 62, 5) == [40, 45, 50, 55, 60]
    assert ticks(1, 2000, 5, log=True) == [1, 10, 100, 1000]
    assert ticks(100, 20_000, 7, log=True) == [100, 200, 500, 1000, 2000, 5000, 10_000, 20_000]
    assert ticks(100, 20_000, 2, log=True) == [100, 10_000]
    assert ticks(0, 2, 7, integer=True) == [0, 1, 2]


def test_a_still_chart_has_upright_long_names_whiskers_and_hollow_points() -> None:
    names = tuple(f"FedAvgM + FedVC + FedIR, K={number}" for number in range(6))
    bars = Series("measured", range(6), [0.5] * 6, [0.4] * 6, [0.6] * 6, kind="bars")
    paper = Series("paper", range(6), [0.5] * 6, kind="points", dashed=True, color=1)
    short, tall = (Chart("key", "", Axis("", names=x), Axis(""), [bars, paper], "") for x in (tuple("abcdef"), names))
    svg = render_svg(tall)
    assert [name in svg for name in names] == [True] * 6
    assert svg.count("rotate(-90)") == 6
    assert render_svg(short).count("rotate(-90)") == 0
    assert svg.count("<circle") == 7, "six rings, and one before the name"
    whiskers = re.search(r'<path d="([^"]*)" stroke="#1b1f24"', svg)
    assert whiskers and whiskers[1].count("M") == 6


def test_the_best_score_of_a_run_that_got_worse_is_that_before_training(make_run: MakeRun, page_text: Any) -> None:
    folder = make_run("worse", {"seed": 0}, [0.4, 0.2])  # of rounds 0 and 1
    assert "best 40.0 % (before training)" in " ".join(page_text(folder).split())


def test_a_page_belongs_to_the_run_or_to_the_folder_of_several(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert default_folder([Path("runs/a")]) == Path("runs/a")
    assert default_folder([Path("runs/sweep/0"), Path("runs/sweep/1")]) == Path("runs/sweep")
    assert default_folder([Path("runs/sweep/0"), tmp_path / "runs" / "b"]) == Path("runs")
    assert default_folder([Path("/x/a"), Path("/y/b")]) == Path()


@pytest.mark.parametrize(
    ("predicted", "caption"),
    [("cat", ["✓ labeled cat", "75.0 %"]), ("dog", ["✗ labeled cat", "predicted dog", "75.0 %"])],
)
def test_captions_say_what_is_the_label_and_what_the_prediction(predicted: str, caption: list[str]) -> None:
    entry = {"class": "cat", "predicted": predicted, "is_correct": predicted == "cat", "probability": 0.75}
    image = captioned_image(entry | {"data": "", "format": "png", "width": 8})
    assert image.caption == caption
    assert image.alt == f"labeled cat, predicted {predicted} (75.0 %)"
