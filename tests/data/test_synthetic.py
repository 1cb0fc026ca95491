"""The world's labels, users and splits; its pixels are tested in test_painter.py."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from manyeyes.core.population import MultiLabels, Population, SingleLabels
from manyeyes.data.synthetic.dataset import SyntheticImages, make_synthetic, photograph, splits, user_sizes
from manyeyes.data.synthetic.users import FLAIR, sizes, taxonomy

SMALL = SyntheticImages(users=300, size=32, seed=3)


@pytest.fixture(scope="module")
def population() -> Population:
    return make_synthetic(SMALL, processes=1)


def multi(population: Population, name: str) -> MultiLabels:
    labels = population.task(name).labels
    assert isinstance(labels, MultiLabels)
    return labels


def test_sizes_match_the_published_statistics_of_flair() -> None:
    found = np.sort(sizes(51_414, seed=0))
    assert np.quantile(found, [0.25, 0.5, 0.75]).tolist() == [1, 2, 5]
    assert found.mean() == pytest.approx(8.35, rel=0.05)
    assert found.std() == pytest.approx(51.3, rel=0.05)
    assert found.max() == pytest.approx(4151, rel=0.05)
    assert 0.45 <= found[-round(0.023 * 51_414) :].sum() / found.sum() <= 0.55


@given(users=st.integers(1, 3000), seed=st.integers(0, 2**31))
def test_sizes_are_positive_and_their_total_does_not_depend_on_the_seed(users: int, seed: int) -> None:
    found = sizes(users, seed)
    assert len(found) == users
    assert found.min() >= 1
    assert found.sum() == sizes(users, 0).sum()


def test_a_few_users_hold_a_good_part_of_a_small_world_but_none_holds_most_of_it() -> None:
    found = np.sort(sizes(200, seed=0))
    assert np.quantile(found, [0.25, 0.5, 0.75]).tolist() == [1, 2, 5]
    assert 5 < found.mean() < 9
    assert found[-1] < 0.1 * found.sum()


def test_photos_gives_everyone_the_same_number() -> None:
    assert user_sizes(SyntheticImages(users=7, images_per_user=5)).tolist() == [5] * 7


def test_labels_an_image_match_the_published_statistics_of_flair(population: Population) -> None:
    coarse, fine = np.diff(multi(population, "coarse").indptr), np.diff(multi(population, "fine").indptr)
    assert coarse.mean() == pytest.approx(2.79, rel=0.05)
    assert np.median(coarse) == 3
    assert coarse.max() <= 9
    assert fine.mean() == pytest.approx(4.61, rel=0.05)
    assert fine.max() <= 36


def test_coarse_classes_are_as_common_as_in_flair() -> None:
    wide = make_synthetic(SyntheticImages(users=1500, size=32, alpha=1e6, images_per_user=1), processes=1)
    share = multi(wide, "coarse").counts() / len(wide)
    published = np.array(list(FLAIR.values())) / 429_078
    assert np.corrcoef(share, published)[0, 1] > 0.97
    assert np.abs(share - published).max() < 0.12


def test_no_main_class_is_more_than_a_quarter(population: Population) -> None:
    assert population.class_counts.max() < 0.25 * len(population)


def test_tail_zero_makes_all_classes_equally_common() -> None:
    classes = taxonomy(coarse=5, fine=20, tail=0)
    assert classes.common == pytest.approx(np.full(5, 0.2))
    assert classes.within == pytest.approx(np.full(20, 0.25))


@given(coarse=st.integers(2, 136), more=st.integers(0, 300))
def test_every_coarse_class_has_a_fine_class_and_names_are_unique(coarse: int, more: int) -> None:
    classes = taxonomy(coarse, coarse + more, tail=1)
    assert len(classes.fine) == coarse + more == len(set(classes.fine))
    assert len(set(classes.coarse)) == coarse
    assert np.array_equal(np.unique(classes.parent), np.arange(coarse))
    assert all(fine.startswith(classes.coarse[c]) for fine, c in zip(classes.fine, classes.parent, strict=True))


def test_coarse_labels_are_the_parents_of_the_fine_labels(population: Population) -> None:
    coarse, fine = multi(population, "coarse"), multi(population, "fine")
    parent = taxonomy(SMALL.coarse, SMALL.fine, SMALL.class_imbalance).parent
    for i in range(len(population)):
        of_fine = parent[fine.indices[fine.indptr[i] : fine.indptr[i + 1]]]
        assert set(of_fine) == set(coarse.indices[coarse.indptr[i] : coarse.indptr[i + 1]])


def test_the_main_class_is_among_the_coarse_labels(population: Population) -> None:
    every = np.arange(len(population))
    hot = multi(population, "coarse").targets(every)
    assert hot[every, population.labels.targets(every)].all()


def test_a_small_taste_leaves_a_user_few_subjects() -> None:
    def subjects(taste: float) -> float:
        made = make_synthetic(
            SyntheticImages(users=30, size=32, coarse=10, fine=50, images_per_user=30, alpha=taste), processes=1
        )
        return float((made.histograms() > 0).sum(1).mean())

    assert subjects(0.1) < 3
    assert subjects(1e6) > 7


def test_regions_differ_in_what_is_photographed() -> None:
    made = make_synthetic(
        SyntheticImages(users=300, size=32, coarse=5, fine=5, images_per_user=10, alpha=1e6), processes=1
    )
    city = np.round(np.asarray(made.columns["longitude"]) / 30)
    mixes = [made.labels.counts(np.flatnonzero(city == c)) for c in np.unique(city) if (city == c).sum() > 300]
    shares = np.array([m / m.sum() for m in mixes])
    assert shares.std(0).max() > 0.04


def test_ratings_use_all_five_values(population: Population) -> None:
    ratings = population.task("rating").labels
    assert isinstance(ratings, SingleLabels)
    assert ratings.classes == ("1", "2", "3", "4", "5")
    assert ratings.counts().min() > 0.04 * len(population)


def test_places_are_on_the_globe_and_a_users_photos_lie_together(population: Population) -> None:
    latitude, longitude = (np.asarray(population.columns[k]) for k in ("latitude", "longitude"))
    assert latitude.dtype == longitude.dtype == np.float64
    assert np.abs(latitude).max() < 90
    assert longitude.min() >= -180
    assert longitude.max() < 180
    assert max(np.ptp(latitude[population.examples(u)]) for u in range(300)) < 0.5


def test_image_ids_are_unique(population: Population) -> None:
    assert len(np.unique(np.asarray(population.columns["image_id"]))) == len(population)


def test_split_users_puts_every_user_in_one_split(population: Population) -> None:
    parts = [population.split(name) for name in ("train", "val", "test")]
    assert [len(p.user_ids) for p in parts] == [240, 30, 30]
    assert np.array_equal(np.sort(np.concatenate([p.user_ids for p in parts])), np.arange(300))
    assert sum(len(p) for p in parts) == len(population)


def test_split_within_gives_every_user_a_sixth_for_testing_and_a_single_photo_to_train() -> None:
    counts = np.array([1, 2, 6, 60])
    split = np.split(splits(SyntheticImages(users=4, split="per_user"), counts), np.cumsum(counts)[:-1])
    assert [(s == "test").sum() for s in split] == [0, 1, 1, 10]
    assert [(s == "train").sum() for s in split] == [1, 1, 5, 50]


def test_equal_worlds_are_equal_and_other_seeds_differ() -> None:
    world = SyntheticImages(users=12, size=32)
    one, same, other = (
        make_synthetic(w, processes=1) for w in (world, world, SyntheticImages(users=12, size=32, seed=1))
    )
    assert np.array_equal(one.images, same.images)
    assert np.array_equal(multi(one, "fine").indices, multi(same, "fine").indices)
    assert not np.array_equal(one.images[:10], other.images[:10])


def test_two_processes_take_the_same_photographs_as_one() -> None:
    large = SyntheticImages(users=60, size=128)
    one, two = make_synthetic(large, processes=1), make_synthetic(large, processes=2)
    assert np.array_equal(one.images, two.images)
    assert np.array_equal(multi(one, "fine").indices, multi(two, "fine").indices)


def test_one_users_photographs_taken_alone_are_those_in_the_population(population: Population) -> None:
    counts = user_sizes(SMALL)
    for user in (0, 17, int(np.argmax(counts)), 299):
        (album,), ratings, pixels = photograph((SMALL, counts[user : user + 1], user))
        mine = population.examples(user)
        assert np.array_equal(pixels, population.pixels(mine))
        assert np.array_equal(album.main, population.labels.targets(mine))
        assert np.array_equal(ratings, population.task("rating").labels.targets(mine))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"users": 0}, "users is 0"),
        ({"size": 16}, "size is 16"),
        ({"coarse": 1}, "coarse is 1"),
        ({"coarse": 20, "fine": 10}, "fine is 10"),
        ({"taste": 0.0}, "taste is 0"),
        ({"taste": float("nan")}, "taste is nan"),
        ({"photos": -1}, "photos is -1"),
        ({"tail": -1.0}, "tail is -1"),
        ({"split": "time"}, "split is 'time'"),
    ],
)
def test_a_world_that_cannot_be_is_refused_by_name(wrong: dict[str, float | str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SyntheticImages(**wrong)  # type: ignore[arg-type]
