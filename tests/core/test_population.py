"""Populations: no view loses or duplicates an example, and labels stay with their images."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from manyeyes.core.population import MultiLabels, Population, SingleLabels

CLASSES = ("a", "b", "c", "d", "e")
fast_settings = settings(deadline=None, max_examples=60)

tags = st.lists(st.lists(st.integers(0, 4), unique=True), max_size=12)


@st.composite
def sources(draw: st.DrawFn) -> dict[str, Any]:
    """Draw examples in any order, with tags and a split; pixel 0 is the row, pixel 1 the class."""
    count = draw(st.integers(1, 40))
    draw_column = lambda values: draw(st.lists(values, min_size=count, max_size=count))  # noqa: E731
    labels = np.array(draw_column(st.integers(0, 4)))
    images = np.zeros((count, 1, 1, 3), np.uint8)
    images[:, 0, 0, 0], images[:, 0, 0, 1] = np.arange(count), labels
    return {
        "images": images,
        "labels": labels,
        "users": draw_column(st.sampled_from(["ann", "bob", "cem", "dee"])),
        "tags": draw_column(st.lists(st.integers(0, 4), unique=True)),
        "split": np.array(draw_column(st.sampled_from(["train", "val", "test"]))),
    }


def make_population(source: dict[str, Any]) -> Any:
    return Population.from_arrays(
        source["images"],
        SingleLabels(source["labels"], CLASSES),
        source["users"],
        tags=MultiLabels.from_lists(source["tags"], CLASSES),
        split=source["split"],
    )


def assert_holds(population: Any, source: dict[str, Any], expected: list[int]) -> None:
    """Check that a population has exactly these rows, each with its own user, label, tags and split."""
    pixels = population.pixels(np.arange(len(population)))[:, 0, 0]
    assert sorted(pixels[:, 0]) == expected
    np.testing.assert_array_equal(population.labels.targets(np.arange(len(population))), pixels[:, 1])
    positions, actual = population.columns["tags"].nonzero()
    for example, row in enumerate(pixels[:, 0]):
        assert population.labels.ids[example] == source["labels"][row]
        assert sorted(actual[positions == example]) == sorted(source["tags"][row])
        assert population.columns["split"][example] == source["split"][row]
        assert population.user_name(int(population.owners(example))) == source["users"][row]
    assert population.offsets[0] == 0
    assert population.offsets[-1] == len(population)
    assert (population.num_examples > 0).all()


@pytest.mark.slow
@fast_settings
@given(sources())
def test_every_example_has_its_own_user_and_labels(source: dict[str, Any]) -> None:
    population = make_population(source)
    assert_holds(population, source, list(range(len(source["users"]))))
    assert [population.user_name(u) for u in range(len(population.user_ids))] == sorted(set(source["users"]))


@fast_settings
@given(sources(), st.integers(0, 2**40 - 1))
def test_a_filtered_view_has_the_selected_examples_and_unchanged_user_ids(source: dict[str, Any], bits: int) -> None:
    population = make_population(source)
    mask = np.array([bits >> i & 1 for i in range(len(population))], bool)
    view = population.filter(mask)
    assert_holds(view, source, sorted(population.image_indices[mask].tolist()))
    for user_id, name in zip(view.user_ids, view.user_names, strict=True):
        assert population.user_names[user_id] == name


@fast_settings
@given(sources())
def test_every_example_is_in_one_split(source: dict[str, Any]) -> None:
    population = make_population(source)
    rows = []
    for name in sorted(set(source["split"])):
        split = population.split(name)
        assert_holds(split, source, np.flatnonzero(source["split"] == name).tolist())
        rows += split.image_indices.tolist()
    assert sorted(rows) == list(range(len(population)))


@pytest.mark.slow
@fast_settings
@given(sources())
def test_pooling_changes_only_the_owner_of_the_examples(source: dict[str, Any]) -> None:
    population = make_population(source)
    pooled = population.pooled()
    np.testing.assert_array_equal(pooled.image_indices, population.image_indices)
    np.testing.assert_array_equal(pooled.labels.ids, population.labels.ids)
    assert pooled.num_examples.tolist() == [len(population)]
    np.testing.assert_array_equal(pooled.histogram(0), population.class_counts)


@pytest.mark.slow
@fast_settings
@given(sources())
def test_histograms_count_each_user_and_class(source: dict[str, Any]) -> None:
    population = make_population(source)
    for task, classes in ((population, [[c] for c in source["labels"]]), (population.task("tags"), source["tags"])):
        expected = np.zeros((len(population.user_ids), 5), int)
        for user, user_classes in zip(source["users"], classes, strict=True):
            expected[population.user_names.tolist().index(user), user_classes] += 1
        np.testing.assert_array_equal(task.histograms(), expected)
        np.testing.assert_array_equal([task.histogram(u) for u in range(len(population.user_ids))], expected)
        np.testing.assert_array_equal(task.class_counts, expected.sum(0))


@fast_settings
@given(tags, st.lists(st.integers(0, 10_000), max_size=20))
def test_multi_labels_behave_as_plain_lists(rows: list[list[int]], picks: list[int]) -> None:
    labels = MultiLabels.from_lists(rows, CLASSES)
    examples = np.array([pick % len(rows) for pick in picks] if rows else [], np.int64)
    selected = [rows[i] for i in examples]
    positions, classes = labels.nonzero(examples)
    assert list(zip(positions.tolist(), classes.tolist(), strict=True)) == [
        (i, c) for i, r in enumerate(selected) for c in r
    ]
    assert labels.counts(examples).tolist() == [sum(c in row for row in selected) for c in range(5)]
    assert labels.targets(examples).tolist() == [[float(c in row) for c in range(5)] for row in selected]
    taken = labels.take(examples)
    assert [taken.indices[a:b].tolist() for a, b in zip(taken.indptr[:-1], taken.indptr[1:], strict=True)] == selected
    assert len(taken) == len(selected)
    assert len(labels) == len(rows)


@fast_settings
@given(st.lists(st.integers(0, 4), min_size=1, max_size=20), st.lists(st.integers(0, 10_000), max_size=20))
def test_single_labels_behave_as_a_plain_list(ids: list[int], picks: list[int]) -> None:
    labels = SingleLabels(np.array(ids), CLASSES)
    examples = np.array([pick % len(ids) for pick in picks], np.int64)
    selected = [ids[i] for i in examples]
    assert labels.targets(examples).tolist() == labels.take(examples).ids.tolist() == selected
    assert labels.counts(examples).tolist() == [selected.count(c) for c in range(5)]
    assert [c.tolist() for c in labels.nonzero(examples)] == [list(range(len(selected))), selected]


def test_a_repeated_label_counts_once() -> None:
    assert MultiLabels.from_lists([[1, 1]], CLASSES).counts().tolist() == [0, 1, 0, 0, 0]


IMAGES, LABELS = np.zeros((2, 4, 4, 3), np.uint8), SingleLabels(np.zeros(2, np.int64), CLASSES)


@pytest.mark.parametrize(
    ("images", "labels", "users", "message"),
    [
        (IMAGES[:0], LABELS.take(np.arange(0)), [], "at least one example"),
        (IMAGES, LABELS, [[0, 1]], "one user for each"),
        (IMAGES[:1], LABELS, [0, 1], "images has 1 entries"),
        (IMAGES, LABELS.take(np.arange(1)), [0, 1], "labels has 1 entries"),
        (IMAGES.astype(np.float32), LABELS, [0, 1], "float32"),
        (IMAGES[..., :2], LABELS, [0, 1], r"\(2, 4, 4, 2\)"),
        (list(IMAGES), LABELS, [0, 1], r"images are list \(\): give a uint8 array"),
        (IMAGES, [0, 1], [0, 1], r"labels are of type list: give SingleLabels"),
        (IMAGES, LABELS, [[0], [0, 1]], "users has rows of several lengths"),
        (IMAGES, LABELS, np.array([None, "ann"]), r"user ids cannot be sorted \(.*NoneType.*\): give all numbers, or"),
    ],
)
def test_invalid_arrays_are_refused(images: Any, labels: SingleLabels, users: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Population.from_arrays(images, labels, users)


@pytest.mark.parametrize("label", [5, -1])
def test_a_label_without_a_class_is_refused(label: int) -> None:
    with pytest.raises(ValueError, match=f"labels has class {label} and there are 5 classes"):
        Population.from_arrays(IMAGES, SingleLabels(np.array([0, label]), CLASSES), [0, 1])


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([0.0, 1.0], "labels are float64: give class ids from 0"),
        (["a", "b"], "labels are <U1"),
        ([[0, 1], [1, 0]], r"labels have shape \[2, 2\]"),
        ([[0], [1, 0]], "labels has rows of several lengths"),
    ],
)
def test_labels_that_are_not_class_ids_are_refused(ids: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SingleLabels(ids, CLASSES)


def test_multi_labels_that_are_not_class_ids_are_refused() -> None:
    with pytest.raises(ValueError, match="labels are float64"):
        MultiLabels.from_lists([[0.5], [1]], CLASSES)


@pytest.mark.parametrize("kind", [list, np.int32, np.uint8, bool])
def test_labels_of_other_integer_types_are_converted(kind: Any) -> None:
    ids: Any = [0, 1, 1] if kind is list else np.array([0, 1, 1], kind)
    single = SingleLabels(ids, CLASSES)
    several = MultiLabels(np.array([0, 1, 3], np.int32), ids, CLASSES)
    assert single.ids.tolist() == several.indices.tolist() == [0, 1, 1]
    assert {array.dtype for array in (single.ids, several.indptr, several.indices)} == {np.dtype(np.int64)}


def test_class_ids_are_not_copied() -> None:
    ids = np.array([0, 1])
    assert SingleLabels(ids, CLASSES).ids is ids


def test_columns_may_be_lists_but_not_single_values() -> None:
    population: Any = Population.from_arrays(IMAGES, LABELS, [1, 0], split=["test", "train"])
    assert population.columns["split"].tolist() == ["train", "test"]
    with pytest.raises(ValueError, match="split is one str, 'train': give one entry for each example"):
        Population.from_arrays(IMAGES, LABELS, [0, 1], split="train")
    with pytest.raises(ValueError, match="location has rows of several lengths"):
        Population.from_arrays(IMAGES, LABELS, [0, 1], location=[[0], [0, 1]])


def test_a_column_of_another_length_is_refused() -> None:
    with pytest.raises(ValueError, match="location has 3 entries"):
        Population.from_arrays(IMAGES, LABELS, [0, 1], location=np.zeros(3))


def test_a_missing_split_or_task_is_refused() -> None:
    population = Population.from_arrays(IMAGES, LABELS, [0, 1])
    with pytest.raises(ValueError, match="no split column"):
        population.split("train")
    with pytest.raises(ValueError, match="'color'"):
        population.task("color")
    with pytest.raises(ValueError, match="no split 'val': choose test, train"):
        Population.from_arrays(IMAGES, LABELS, [0, 1], split=np.array(["train", "test"])).split("val")
