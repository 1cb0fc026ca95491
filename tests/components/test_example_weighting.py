"""Importance ratios p(y) / q_k(y) by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from manyeyes.algorithms import fedavg, fedir
from manyeyes.components import ImportanceReweighting
from manyeyes.components.weighting import resolve_target
from manyeyes.core.population import MultiLabels, Population, SingleLabels

IMAGES = np.zeros((4, 1, 1, 3), np.uint8)
POPULATION = Population.from_arrays(IMAGES, SingleLabels(np.array([0, 1, 1, 2]), ("a", "b", "c")), [0, 0, 1, 1])


def test_ratio_of_the_population_to_the_client() -> None:
    actual = ImportanceReweighting().class_weights(np.array([3, 1, 0]), np.array([2, 4, 4]))
    np.testing.assert_allclose(actual, [0.2 / 0.75, 0.4 / 0.25, 0], rtol=1e-6)


def test_ratio_of_a_given_target() -> None:
    actual = ImportanceReweighting((0.0, 0.9, 0.1)).class_weights(np.array([3, 1, 4]), np.array([1, 1, 1]))
    np.testing.assert_allclose(actual, [0, 0.9 / 0.125, 0.1 / 0.5], rtol=1e-6)


def test_refuses_several_labels_an_example() -> None:
    tagged = Population.from_arrays(
        IMAGES, MultiLabels.from_lists([[0], [], [1, 2], [2]], ("a", "b", "c")), [0, 0, 1, 1]
    )
    assert "one class per image" in (ImportanceReweighting().incompatibility(fedavg(), tagged) or "")


@pytest.mark.parametrize("target", [(0.5, 0.5), (0.5, 0.5, 0.5), (1.5, -0.5, 0.0), ()])
def test_refuses_a_target_that_is_no_distribution_of_the_classes(target: tuple[float, ...]) -> None:
    assert "example_weighting.target" in (ImportanceReweighting(target).incompatibility(fedavg(), POPULATION) or "")


def test_refuses_a_target_that_is_not_a_number() -> None:
    assert ImportanceReweighting((float("nan"), 0.5, 0.5)).incompatibility(fedavg(), POPULATION) is not None


@pytest.mark.parametrize("target", ["population", "uniform", "val", (0.2, 0.3, 0.5), (0.0, 1.0, 0.0)])
def test_accepts_a_distribution(target: str | tuple[float, ...]) -> None:
    assert ImportanceReweighting(target).incompatibility(fedavg(), POPULATION) is None


def test_ratio_of_a_uniform_target() -> None:
    actual = ImportanceReweighting("uniform").class_weights(np.array([3, 1, 0]), np.array([2, 4, 4]))
    np.testing.assert_allclose(actual, [(1 / 3) / 0.75, (1 / 3) / 0.25, 0], rtol=1e-6)


def test_the_target_of_a_split_is_its_class_distribution() -> None:
    splits = np.array(["train", "train", "val", "val", "val", "test"])
    labels = SingleLabels(np.array([0, 1, 0, 2, 2, 1]), ("a", "b", "c"))
    population = Population.from_arrays(np.zeros((6, 1, 1, 3), np.uint8), labels, [0, 0, 1, 1, 2, 2], split=splits)
    resolved = resolve_target(fedir(target="val"), population, eval_split="test").example_weighting
    assert resolved == ImportanceReweighting((1 / 3, 0, 2 / 3))
    for split, message in (
        ("test", "'test', the split that is evaluated"),
        ("vall", "'vall' and no split of the data"),
    ):
        with pytest.raises(ValueError, match=message):
            resolve_target(fedir(target=split), population, eval_split="test")
    with pytest.raises(ValueError, match="which has none: set it to population, uniform"):
        resolve_target(fedir(target="val"), POPULATION, eval_split="test")
    with pytest.raises(ValueError, match="is a split: pass the data to resolve_target"):
        ImportanceReweighting("val").class_weights(np.array([3, 1, 0]), np.array([2, 4, 4]))


@pytest.mark.parametrize("text", ["0.5 0.25 0.25", "0.5\n0.25\n0.25\n", "0.5,.25, 0.25"])
def test_a_file_has_a_number_for_each_class(tmp_path: Path, text: str) -> None:
    (tmp_path / "target.txt").write_text(text)
    assert ImportanceReweighting(str(tmp_path / "target.txt")) == ImportanceReweighting((0.5, 0.25, 0.25))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, r"target.txt, which cannot be read \(No such file or directory\): set it to population, uniform"),
        (b"0.5 half", "not all of it are numbers .*'half'.*: write one number per class"),
        (b"\xff\xfe\x00", "is not a text file: write one number per class"),
        (b"1 " * 2**20, "is larger than 1 MiB: write one number per class"),
    ],
)
def test_a_file_without_numbers_is_refused_by_name(tmp_path: Path, content: bytes | None, message: str) -> None:
    path = tmp_path / "target.txt"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ValueError, match=f"example_weighting.target is the file .*{message}"):
        ImportanceReweighting(str(path))


@pytest.mark.parametrize("target", [("a", 1), 0.5, None, {"a": 1}, (None, 1.0)])
def test_refuses_what_is_neither_a_name_nor_numbers(target: Any) -> None:
    with pytest.raises(ValueError, match=r"^example_weighting\.target is .*: set it to population, uniform"):
        ImportanceReweighting(target)
