"""A population neither loses nor shares an example, and labels stay with their images, whatever view is taken."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from manyeyes.core.population import MultiLabels, Population, SingleLabels

CLASSES = ("a", "b", "c", "d", "e")
quick = settings(deadline=None, max_examples=60)

tags = st.lists(st.lists(st.integers(0, 4), unique=True), max_size=12)


@st.composite
def sources(draw: st.DrawFn) -> dict[str, Any]:
    """Examples in any order: pixel 0 is the row, pixel 1 the class; a second set of labels and a split beside them."""
    count = draw(st.integers(1, 40))
    each = lambda values: draw(st.lists(values, min_size=count, max_size=count))  # noqa: E731
    labels = np.array(each(st.integers(0, 4)))
    images = np.zeros((count, 1, 1, 3), np.uint8)
    images[:, 0, 0, 0], images[:, 0, 0, 1] = np.arange(count), labels
    return {
        "images": images,
        "labels": labels,
        "users": each(st.sampled_from(["ann", "bob", "cem", "dee"])),
        "tags": each(st.lists(st.integers(0, 4), unique=True)),
        "split": np.array(each(st.sampled_from(["train", "val", "test"]))),
    }


def make_population(source: dict[str, Any]) -> Population:
    return Population.from_arrays(
        source["images"],
        SingleLabels(source["labels"], CLASSES),
        source["users"],
        tags=MultiLabels.from_lists(source["tags"], CLASSES),
        split=source["split"],
    )


def assert_whole(population: Population, source: dict[str, Any], expected: list[int]) -> None:
    """Holds exactly the expected rows, each with its own user, label, tags and split."""
    pixels = population.pixels(np.arange(len(population)))[:, 0, 0]
    assert sorted(pixels[:, 0]) == expected
    np.testing.assert_array_equal(population.labels.targets(np.arange(len(population))), pixels[:, 1])
    owner, actual = population.columns["tags"].nonzero()
    for example, row in enumerate(pixels[:, 0]):
        assert population.labels.ids[example] == source["labels"][row]
        assert sorted(actual[owner == example]) == sorted(source["tags"][row])
        assert population.columns["split"][example] == source["split"][row]
        assert population.user_name(int(population.owners(example))) == source["users"][row]
    assert population.offsets[0] == 0
    assert population.offsets[-1] == len(population)
    assert (population.num_examples > 0).all()


@quick
@given(sources())
def test_every_example_comes_with_its_own_user_and_labels(source: dict[str, Any]) -> None:
    population = make_population(source)
    assert_whole(population, source, list(range(len(source["users"]))))
    assert [population.user_name(u) for u in range(len(population.user_ids))] == sorted(set(source["users"]))


@quick
@given(sources(), st.integers(0, 2**40 - 1))
def test_a_view_holds_what_was_kept_and_its_users_keep_their_numbers(source: dict[str, Any], bits: int) -> None:
    population = make_population(source)
    keep = np.array([bits >> i & 1 for i in range(len(population))], bool)
    view = population.filter(keep)
    assert_whole(view, source, sorted(population.image_indices[keep].tolist()))
    for number, name in zip(view.user_ids, view.user_names, strict=True):
        assert population.user_names[number] == name


@quick
@given(sources())
def test_splits_share_out_every_example_once(source: dict[str, Any]) -> None:
    population = make_population(source)
    rows = []
    for name in sorted(set(source["split"])):
        part = population.split(name)
        assert_whole(part, source, np.flatnonzero(source["split"] == name).tolist())
        rows += part.image_indices.tolist()
    assert sorted(rows) == list(range(len(population)))


@quick
@given(sources())
def test_pooling_changes_who_holds_the_examples_and_nothing_else(source: dict[str, Any]) -> None:
    population = make_population(source)
    pooled = population.pooled()
    np.testing.assert_array_equal(pooled.image_indices, population.image_indices)
    np.testing.assert_array_equal(pooled.labels.ids, population.labels.ids)
    assert pooled.num_examples.tolist() == [len(population)]
    np.testing.assert_array_equal(pooled.histogram(0), population.class_counts)


@quick
@given(sources())
def test_histograms_count_each_user_and_class(source: dict[str, Any]) -> None:
    population = make_population(source)
    for task, classes in ((population, [[c] for c in source["labels"]]), (population.task("tags"), source["tags"])):
        expected = np.zeros((len(population.user_ids), 5), int)
        for user, mine in zip(source["users"], classes, strict=True):
            expected[population.user_names.tolist().index(user), mine] += 1
        np.testing.assert_array_equal(task.histograms(), expected)
        np.testing.assert_array_equal([task.histogram(u) for u in range(len(population.user_ids))], expected)
        np.testing.assert_array_equal(task.class_counts, expected.sum(0))


@quick
@given(tags, st.lists(st.integers(0, 10_000), max_size=20))
def test_several_labels_answer_as_plain_lists_do(rows: list[list[int]], picks: list[int]) -> None:
    labels = MultiLabels.from_lists(rows, CLASSES)
    examples = np.array([pick % len(rows) for pick in picks] if rows else [], np.int64)
    chosen = [rows[i] for i in examples]
    owner, classes = labels.nonzero(examples)
    assert list(zip(owner.tolist(), classes.tolist(), strict=True)) == [(i, c) for i, r in enumerate(chosen) for c in r]
    assert labels.counts(examples).tolist() == [sum(c in row for row in chosen) for c in range(5)]
    assert labels.targets(examples).tolist() == [[float(c in row) for c in range(5)] for row in chosen]
    taken = labels.take(examples)
    assert [taken.indices[a:b].tolist() for a, b in zip(taken.indptr[:-1], taken.indptr[1:], strict=True)] == chosen
    assert len(taken) == len(chosen)
    assert len(labels) == len(rows)


@quick
@given(st.lists(st.integers(0, 4), min_size=1, max_size=20), st.lists(st.integers(0, 10_000), max_size=20))
def test_single_labels_answer_as_a_plain_list_does(ids: list[int], picks: list[int]) -> None:
    labels = SingleLabels(np.array(ids), CLASSES)
    examples = np.array([pick % len(ids) for pick in picks], np.int64)
    chosen = [ids[i] for i in examples]
    assert labels.targets(examples).tolist() == labels.take(examples).ids.tolist() == chosen
    assert labels.counts(examples).tolist() == [chosen.count(c) for c in range(5)]
    assert [c.tolist() for c in labels.nonzero(examples)] == [list(range(len(chosen))), chosen]


def test_a_label_given_twice_is_one_label() -> None:
    assert MultiLabels.from_lists([[1, 1]], CLASSES).counts().tolist() == [0, 1, 0, 0, 0]


IMAGES, LABELS = np.zeros((2, 4, 4, 3), np.uint8), SingleLabels(np.zeros(2, np.int64), CLASSES)


@pytest.mark.parametrize(
    ("images", "labels", "users", "named"),
    [
        (IMAGES[:0], LABELS.take(np.arange(0)), [], "at least one example"),
        (IMAGES, LABELS, [[0, 1]], "one user for each"),
        (IMAGES[:1], LABELS, [0, 1], "images has 1 entries"),
        (IMAGES, LABELS.take(np.arange(1)), [0, 1], "labels has 1 entries"),
        (IMAGES.astype(np.float32), LABELS, [0, 1], "float32"),
        (IMAGES[..., :1], LABELS, [0, 1], r"\(2, 4, 4, 1\)"),
        (list(IMAGES), LABELS, [0, 1], r"images are list \(\): give a uint8 array"),
        (IMAGES, [0, 1], [0, 1], r"labels are of type list: give SingleLabels"),
        (IMAGES, LABELS, [[0], [0, 1]], "users are rows of several lengths"),
        (IMAGES, LABELS, np.array([None, "ann"]), r"user ids cannot be sorted \(.*NoneType.*\): give all numbers, or"),
    ],
)
def test_refuses_what_is_no_population(images: Any, labels: SingleLabels, users: Any, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        Population.from_arrays(images, labels, users)


@pytest.mark.parametrize("label", [5, -1])
def test_refuses_a_label_that_is_no_class(label: int) -> None:
    with pytest.raises(ValueError, match=str(label)):
        Population.from_arrays(IMAGES, SingleLabels(np.array([0, label]), CLASSES), [0, 1])


@pytest.mark.parametrize(
    ("ids", "named"),
    [
        ([0.0, 1.0], "labels are float64: give class ids, whole numbers from 0"),
        (["a", "b"], "labels are <U1"),
        ([[0, 1], [1, 0]], r"labels have shape \[2, 2\]"),
        ([[0], [1, 0]], "labels are rows of several lengths"),
    ],
)
def test_refuses_labels_that_are_no_class_ids(ids: Any, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        SingleLabels(ids, CLASSES)


def test_refuses_several_labels_that_are_no_class_ids() -> None:
    with pytest.raises(ValueError, match="labels are float64"):
        MultiLabels.from_lists([[0.5], [1]], CLASSES)


@pytest.mark.parametrize("kind", [list, np.int32, np.uint8, bool])
def test_converts_labels_of_other_whole_numbers(kind: Any) -> None:
    given = [0, 1, 1] if kind is list else np.array([0, 1, 1], kind)
    single = SingleLabels(given, CLASSES)
    several = MultiLabels(np.array([0, 1, 3], np.int32), given, CLASSES)
    assert single.ids.tolist() == several.indices.tolist() == [0, 1, 1]
    assert {array.dtype for array in (single.ids, several.indptr, several.indices)} == {np.dtype(np.int64)}


def test_keeps_labels_that_are_class_ids_as_they_are() -> None:
    ids = np.array([0, 1])
    assert SingleLabels(ids, CLASSES).ids is ids


def test_columns_may_be_lists_and_no_single_value() -> None:
    population = Population.from_arrays(IMAGES, LABELS, [1, 0], split=["test", "train"])
    assert population.columns["split"].tolist() == ["train", "test"]
    with pytest.raises(ValueError, match="split is one str, 'train': give one entry for each example"):
        Population.from_arrays(IMAGES, LABELS, [0, 1], split="train")
    with pytest.raises(ValueError, match="place has rows of several lengths"):
        Population.from_arrays(IMAGES, LABELS, [0, 1], place=[[0], [0, 1]])


def test_refuses_a_column_of_another_length() -> None:
    with pytest.raises(ValueError, match="place has 3 entries"):
        Population.from_arrays(IMAGES, LABELS, [0, 1], place=np.zeros(3))


def test_refuses_a_split_or_a_task_that_it_lacks() -> None:
    population = Population.from_arrays(IMAGES, LABELS, [0, 1])
    with pytest.raises(ValueError, match="no split column"):
        population.split("train")
    with pytest.raises(ValueError, match="'colour'"):
        population.task("colour")
    with pytest.raises(ValueError, match="no val split; it has test, train"):
        Population.from_arrays(IMAGES, LABELS, [0, 1], split=np.array(["train", "test"])).split("val")
