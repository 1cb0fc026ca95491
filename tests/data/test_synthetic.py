"""The labels, users and splits of synthetic images; the pixels are tested in test_renderer.py."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from manyeyes.core.population import MultiLabels, Population, SingleLabels
from manyeyes.data.synthetic.dataset import SyntheticImages, make_synthetic, render_users, splits, user_sizes
from manyeyes.data.synthetic.users import FLAIR_IMAGE_COUNTS, sizes, taxonomy

SMALL = SyntheticImages(users=300, size=32, seed=3)


@pytest.fixture(scope="module")
def population() -> Population:
    return make_synthetic(SMALL, processes=1)


def multi(population: Population, name: str) -> MultiLabels:
    labels = population.task(name).labels
    assert isinstance(labels, MultiLabels)
    return labels


def test_sizes_match_the_published_statistics_of_flair() -> None:
    counts = np.sort(sizes(51_414, seed=0))
    assert np.quantile(counts, [0.25, 0.5, 0.75]).tolist() == [1, 2, 5]
    assert counts.mean() == pytest.approx(8.35, rel=0.05)
    assert counts.std() == pytest.approx(51.3, rel=0.05)
    assert counts.max() == pytest.approx(4151, rel=0.05)
    assert 0.45 <= counts[-round(0.023 * 51_414) :].sum() / counts.sum() <= 0.55


@given(users=st.integers(1, 3000), seed=st.integers(0, 2**31))
def test_sizes_are_positive_and_their_total_does_not_depend_on_the_seed(users: int, seed: int) -> None:
    counts = sizes(users, seed)
    assert len(counts) == users
    assert counts.min() >= 1
    assert counts.sum() == sizes(users, 0).sum()


def test_in_a_small_population_no_user_has_a_tenth_of_the_images() -> None:
    counts = np.sort(sizes(200, seed=0))
    assert np.quantile(counts, [0.25, 0.5, 0.75]).tolist() == [1, 2, 5]
    assert 5 < counts.mean() < 9
    assert counts[-1] < 0.1 * counts.sum()


def test_images_per_user_gives_every_user_the_same_number() -> None:
    assert user_sizes(SyntheticImages(users=7, images_per_user=5)).tolist() == [5] * 7


@pytest.mark.slow
def test_labels_per_image_match_the_published_statistics_of_flair(population: Population) -> None:
    coarse, fine = np.diff(multi(population, "coarse").indptr), np.diff(multi(population, "fine").indptr)
    assert coarse.mean() == pytest.approx(2.79, rel=0.05)
    assert np.median(coarse) == 3
    assert coarse.max() <= 9
    assert fine.mean() == pytest.approx(4.61, rel=0.05)
    assert fine.max() <= 36


@pytest.mark.slow
def test_coarse_classes_are_as_common_as_in_flair() -> None:
    wide = make_synthetic(SyntheticImages(users=1500, size=32, alpha=1e6, images_per_user=1), processes=1)
    frequency = multi(wide, "coarse").counts() / len(wide)
    published = np.array(list(FLAIR_IMAGE_COUNTS.values())) / 429_078
    assert np.corrcoef(frequency, published)[0, 1] > 0.97
    assert np.abs(frequency - published).max() < 0.12


@pytest.mark.slow
def test_no_main_class_is_more_than_a_quarter(population: Population) -> None:
    assert population.class_counts.max() < 0.25 * len(population)


def test_class_imbalance_0_makes_all_classes_equally_common() -> None:
    classes = taxonomy(5, 20, class_imbalance=0)
    assert classes.coarse_probabilities == pytest.approx(np.full(5, 0.2))
    assert classes.fine_probabilities == pytest.approx(np.full(20, 0.25))


@given(coarse=st.integers(2, 136), extra=st.integers(0, 300))
def test_every_coarse_class_has_a_fine_class_and_names_are_unique(coarse: int, extra: int) -> None:
    classes = taxonomy(coarse, coarse + extra, class_imbalance=1)
    assert len(classes.fine) == coarse + extra == len(set(classes.fine))
    assert len(set(classes.coarse)) == coarse
    assert np.array_equal(np.unique(classes.parent), np.arange(coarse))
    assert all(fine.startswith(classes.coarse[c]) for fine, c in zip(classes.fine, classes.parent, strict=True))


def test_coarse_labels_are_the_parents_of_the_fine_labels(population: Population) -> None:
    coarse, fine = multi(population, "coarse"), multi(population, "fine")
    parent = taxonomy(SMALL.coarse, SMALL.fine, SMALL.class_imbalance).parent
    for i in range(len(population)):
        parents = parent[fine.indices[fine.indptr[i] : fine.indptr[i + 1]]]
        assert set(parents) == set(coarse.indices[coarse.indptr[i] : coarse.indptr[i + 1]])


def test_the_main_class_is_among_the_coarse_labels(population: Population) -> None:
    examples = np.arange(len(population))
    one_hot = multi(population, "coarse").targets(examples)
    assert one_hot[examples, population.labels.targets(examples)].all()


@pytest.mark.slow
def test_a_small_alpha_gives_few_classes_per_user() -> None:
    def classes_per_user(alpha: float) -> float:
        population = make_synthetic(
            SyntheticImages(users=30, size=32, coarse=10, fine=50, images_per_user=30, alpha=alpha), processes=1
        )
        return float((population.histograms() > 0).sum(1).mean())

    assert classes_per_user(0.1) < 3
    assert classes_per_user(1e6) > 7


@pytest.mark.slow
def test_regions_differ_in_class_frequencies() -> None:
    population = make_synthetic(
        SyntheticImages(users=300, size=32, coarse=5, fine=5, images_per_user=10, alpha=1e6), processes=1
    )
    city = np.round(np.asarray(population.columns["longitude"]) / 30)
    mixes = [population.labels.counts(np.flatnonzero(city == c)) for c in np.unique(city) if (city == c).sum() > 300]
    frequencies = np.array([counts / counts.sum() for counts in mixes])
    assert frequencies.std(0).max() > 0.04


def test_ratings_use_all_five_values(population: Population) -> None:
    ratings = population.task("rating").labels
    assert isinstance(ratings, SingleLabels)
    assert ratings.classes == ("1", "2", "3", "4", "5")
    assert ratings.counts().min() > 0.04 * len(population)


def test_coordinates_are_valid_and_a_users_images_are_close_together(population: Population) -> None:
    latitude, longitude = (np.asarray(population.columns[k]) for k in ("latitude", "longitude"))
    assert latitude.dtype == longitude.dtype == np.float64
    assert np.abs(latitude).max() < 90
    assert longitude.min() >= -180
    assert longitude.max() < 180
    assert max(np.ptp(latitude[population.examples(u)]) for u in range(300)) < 0.5


def test_image_ids_are_unique(population: Population) -> None:
    assert len(np.unique(np.asarray(population.columns["image_id"]))) == len(population)


def test_split_users_puts_every_user_in_one_split(population: Population) -> None:
    views = [population.split(name) for name in ("train", "val", "test")]
    assert [len(view.user_ids) for view in views] == [240, 30, 30]
    assert np.array_equal(np.sort(np.concatenate([view.user_ids for view in views])), np.arange(300))
    assert sum(map(len, views)) == len(population)


def test_split_per_user_tests_on_a_sixth_of_each_user_and_never_on_an_only_image() -> None:
    counts = np.array([1, 2, 6, 60])
    split = np.split(splits(SyntheticImages(users=4, split="per_user"), counts), np.cumsum(counts)[:-1])
    assert [(s == "test").sum() for s in split] == [0, 1, 1, 10]
    assert [(s == "train").sum() for s in split] == [1, 1, 5, 50]


def test_equal_descriptions_give_equal_images_and_other_seeds_differ() -> None:
    first, again, reseeded = (
        make_synthetic(SyntheticImages(users=12, size=32, seed=seed), processes=1) for seed in (0, 0, 1)
    )
    assert np.array_equal(first.images, again.images)
    assert np.array_equal(multi(first, "fine").indices, multi(again, "fine").indices)
    assert not np.array_equal(first.images[:10], reseeded.images[:10])


@pytest.mark.slow
def test_two_processes_render_the_same_images_as_one() -> None:
    description = SyntheticImages(users=60, size=128)
    serial, parallel = (make_synthetic(description, processes=processes) for processes in (1, 2))
    assert np.array_equal(serial.images, parallel.images)
    assert np.array_equal(multi(serial, "fine").indices, multi(parallel, "fine").indices)


def test_a_user_rendered_alone_has_the_same_images_as_in_the_population(population: Population) -> None:
    counts = user_sizes(SMALL)
    for user in (0, 17, int(np.argmax(counts)), 299):
        (contents,), ratings, pixels = render_users((SMALL, counts[user : user + 1], user))
        examples = population.examples(user)
        assert np.array_equal(pixels, population.pixels(examples))
        assert np.array_equal(contents.main_class, population.labels.targets(examples))
        assert np.array_equal(ratings, population.task("rating").labels.targets(examples))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"users": 0}, "data.users is 0: set it to a whole number of at least 1 and at most 1e"),
        ({"size": 16}, "data.size is 16"),
        ({"coarse": 1}, "data.coarse is 1"),
        ({"coarse": 20, "fine": 10}, "data.fine is 10: set it to at least data.coarse, 20"),
        ({"alpha": 0.0}, "data.alpha is 0"),
        ({"alpha": float("nan")}, "data.alpha is nan"),
        ({"images_per_user": -1}, "data.images_per_user is -1"),
        ({"class_imbalance": -1.0}, "data.class_imbalance is -1"),
        ({"split": "time"}, "data.split is 'time': set it to users or per_user"),
    ],
)
def test_invalid_options_are_refused_by_name(options: dict[str, float | str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SyntheticImages(**options)  # type: ignore[arg-type]
