"""FedPer's numbers are those that FACTS.md reads off the baseline's plots."""

from __future__ import annotations

import re
from collections.abc import Callable

from manyeyes.papers import ITEMS
from manyeyes.papers.fedper import TOLERANCE


def ours(item: str) -> dict[str, float]:
    return {
        row.name: number.value
        for row in ITEMS[f"fedper.{item}"].rows
        for number in row.expected.values()
        if number is not None
    }


def facts(text: Callable[[str], str]) -> str:
    return " ".join(text("FACTS.md").split("## FedPer")[1].split("**Its bugs")[0].split())


def test_figure2_is_the_baselines(text: Callable[[str], str]) -> None:
    printed = {}
    for model in ("MobileNet-v1", "ResNet34"):
        found = re.search(rf"\| {model}, 50 rounds \| ([^|]+) \| ([^|]+) \|", facts(text))
        assert found
        for method, cell in zip(("FedPer", "FedAvg"), found.groups(), strict=True):
            for n, value in zip((4, 8, 10), cell.split("/"), strict=True):
                printed[f"{model}, {method}, n={n}"] = float(value)
    assert ours("figure2") == printed


def test_figure4_is_the_baselines(text: Callable[[str], str]) -> None:
    found = re.search(
        r"MobileNet 2 / 3 / 4 layers (\S+) / (\S+) / (\S+), FedAvg (\S+); ResNet 1 / 2 / 3: (\S+) / (\S+) / (\S+), "
        r"FedAvg (\S+)\. ",
        facts(text),
    )
    assert found
    names = [*(f"MobileNet-v1, FedPer, {n} layers" for n in (2, 3, 4)), "MobileNet-v1, FedAvg"]
    names += [*(f"ResNet34, FedPer, {n} layers" for n in (1, 2, 3)), "ResNet34, FedAvg"]
    assert ours("figure4") == dict(zip(names, map(float, found.groups()), strict=True))


def test_figures_7_and_8_are_the_baselines(text: Callable[[str], str]) -> None:
    found = re.search(r"MobileNet (\S+) against (\S+); ResNet (\S+) against (\S+)\. ", facts(text))
    assert found
    names = [f"{model}, {method}" for model in ("MobileNet-v1", "ResNet34") for method in ("FedPer", "FedAvg")]
    assert ours("figure7") | ours("figure8") == dict(zip(names, map(float, found.groups()), strict=True))


def test_every_number_is_marked_as_read_off_a_plot(text: Callable[[str], str]) -> None:
    assert f"read off its plots (+-{TOLERANCE:g})" in facts(text)
    numbers = [
        n for key, item in ITEMS.items() if item.paper == "fedper" for row in item.rows for n in row.expected.values()
    ]
    assert {number.tolerance for number in numbers if number is not None} == {TOLERANCE}
