"""FedPer's numbers are those that FACTS.md reads off the baseline's plots."""

from __future__ import annotations

import re
from collections.abc import Callable

from manyeyes.papers import EXHIBITS
from manyeyes.papers.fedper import READING_ERROR


def recorded(exhibit: str) -> dict[str, float]:
    return {
        row.name: printed.value
        for row in EXHIBITS[f"fedper.{exhibit}"].rows
        for printed in row.expected.values()
        if printed is not None
    }


def facts(text: Callable[[str], str]) -> str:
    return " ".join(text("FACTS.md").split("## FedPer")[1].split("**Its bugs")[0].split())


def test_figure2_is_the_baselines(text: Callable[[str], str]) -> None:
    printed = {}
    for model in ("MobileNet-v1", "ResNet34"):
        match = re.search(rf"\| {model}, 50 rounds \| ([^|]+) \| ([^|]+) \|", facts(text))
        assert match
        for method, cell in zip(("FedPer", "FedAvg"), match.groups(), strict=True):
            for n, value in zip((4, 8, 10), cell.split("/"), strict=True):
                printed[f"{model}, {method}, n={n}"] = float(value)
    assert recorded("figure2") == printed


def test_figure4_is_the_baselines(text: Callable[[str], str]) -> None:
    match = re.search(
        r"MobileNet 2 / 3 / 4 layers (\S+) / (\S+) / (\S+), FedAvg (\S+); ResNet 1 / 2 / 3: (\S+) / (\S+) / (\S+), "
        r"FedAvg (\S+)\. ",
        facts(text),
    )
    assert match
    names = [*(f"MobileNet-v1, FedPer, {n} layers" for n in (2, 3, 4)), "MobileNet-v1, FedAvg"]
    names += [*(f"ResNet34, FedPer, {n} layers" for n in (1, 2, 3)), "ResNet34, FedAvg"]
    assert recorded("figure4") == dict(zip(names, map(float, match.groups()), strict=True))


def test_figures_7_and_8_are_the_baselines(text: Callable[[str], str]) -> None:
    match = re.search(r"MobileNet (\S+) against (\S+); ResNet (\S+) against (\S+)\. ", facts(text))
    assert match
    names = [f"{model}, {method}" for model in ("MobileNet-v1", "ResNet34") for method in ("FedPer", "FedAvg")]
    assert recorded("figure7") | recorded("figure8") == dict(zip(names, map(float, match.groups()), strict=True))


def test_every_number_is_marked_as_read_off_a_plot(text: Callable[[str], str]) -> None:
    assert f"read off its plots (+-{READING_ERROR:g})" in facts(text)
    exhibits = [exhibit for exhibit in EXHIBITS.values() if exhibit.paper == "fedper"]
    expected = [printed for exhibit in exhibits for row in exhibit.rows for printed in row.expected.values()]
    assert {printed.reading_error for printed in expected if printed is not None} == {READING_ERROR}
