"""Partitions: every example has one user, and partitions are as skewed as the released ones."""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from manyeyes.core.population import Ints
from manyeyes.data.partition import by_users, classes_per_client, dirichlet, iid, released, within_users
from manyeyes.metrics.heterogeneity import emd, mean_emd

SHARED = Path(__file__).resolve().parents[3] / "shared"
SPLITS = SHARED / "data" / "hsu_cifar_splits.npz"
ALPHAS = (0, 0.05, 0.1, 0.2, 0.5, 1, 10, 100)

LABELS = st.lists(st.integers(0, 5), min_size=1, max_size=80).map(np.array)
SEEDS = st.integers(0, 2**31)
ALPHA = st.sampled_from([0.0, 1e-300, 1e-9, 1e-3, 0.1, 1.0, 100.0, 1e12])


def histograms(owners: Ints, labels: Ints, users: int, classes: int) -> Ints:
    return np.bincount(owners * classes + labels, minlength=users * classes).reshape(users, classes)


@pytest.fixture(scope="module")
def cifar10() -> Ints:
    """The labels of CIFAR-10's 50,000 train images."""
    if not SPLITS.exists():
        pytest.skip(f"needs CIFAR-10's labels and released splits in {SHARED}")
    files = [SHARED / "data" / "cifar10" / f"part_{name}.npz" for name in "ab"]
    return np.concatenate([np.load(file)["y"] for file in files])[:50_000].astype(np.int64)


@given(LABELS, st.data(), ALPHA, SEEDS)
def test_dirichlet_gives_every_example_to_one_user_in_equal_numbers(
    labels: Ints, data: st.DataObject, alpha: float, seed: int
) -> None:
    users = data.draw(st.integers(1, len(labels)))
    owners = dirichlet(labels, users, alpha, seed)
    sizes = np.bincount(owners, minlength=users)
    assert owners.shape == labels.shape
    assert sizes.max() - sizes.min() <= 1
    assert np.array_equal(owners, dirichlet(labels, users, alpha, seed))


@given(LABELS, st.data(), ALPHA, SEEDS)
def test_dirichlet_gives_each_user_per_user_examples_and_leaves_the_rest_unassigned(
    labels: Ints, data: st.DataObject, alpha: float, seed: int
) -> None:
    users = data.draw(st.integers(1, len(labels)))
    per_user = data.draw(st.integers(1, len(labels) // users))
    owners = dirichlet(labels, users, alpha, seed, per_user)
    assert np.bincount(owners[owners >= 0], minlength=users).tolist() == [per_user] * users


def test_alpha_0_gives_one_class_a_client_until_it_is_exhausted() -> None:
    labels = np.repeat(np.arange(10), 50)
    assert (histograms(dirichlet(labels, 100, 0, seed=1), labels, 100, 10) > 0).sum(axis=1).tolist() == [1] * 100
    classes = (histograms(dirichlet(labels, 4, 0, seed=1), labels, 4, 10) > 0).sum(axis=1)  # 125 = 2.5 classes
    assert classes.min() >= 3
    assert classes.max() <= 4


def test_alpha_0_draws_first_classes_in_proportion_to_the_prior() -> None:
    labels = np.repeat([0, 1], [300, 100])
    first = [labels[dirichlet(labels, 40, 0, seed) == 0][0] for seed in range(300)]
    assert np.mean(first) == pytest.approx(0.25, abs=0.1)  # four standard deviations


def test_a_large_alpha_draws_clients_from_the_prior() -> None:
    labels = np.repeat(np.arange(3), [6000, 3000, 1000])
    frequencies = histograms(dirichlet(labels, 5, 1e9, seed=0), labels, 5, 3) / 2000
    assert np.abs(frequencies - [0.6, 0.3, 0.1]).max() < 0.06


def test_dirichlet_has_the_variance_of_the_paper() -> None:
    """Var q = p (1 - p) / (alpha + 1), plus p (1 - p) / n from drawing n, while no class is exhausted."""
    labels = np.repeat(np.arange(4), 50_000)
    frequencies = histograms(dirichlet(labels, 400, 7.0, 0, per_user=100) + 1, labels, 401, 4)[1:] / 100
    expected = 0.25 * 0.75 * (1 / 8 + (1 - 1 / 8) / 100)
    assert frequencies.var(axis=0).mean() == pytest.approx(expected, rel=0.1)


def test_examples_of_a_class_are_assigned_at_random() -> None:
    labels = np.zeros(1000, np.int64)
    assert np.abs(np.corrcoef(dirichlet(labels, 10, 1, seed=0), np.arange(1000))[0, 1]) < 0.15


@pytest.mark.slow
@pytest.mark.parametrize("alpha", ALPHAS)
def test_dirichlet_is_as_skewed_as_the_released_splits(cifar10: Ints, alpha: float) -> None:
    """The tolerances were set after measuring; over 30 seeds the largest differences were 0.030, 0.040 and 0.40."""
    theirs = histograms(released(SPLITS, cifar10, "cifar10", alpha), cifar10, 100, 10)
    ours = [histograms(dirichlet(cifar10, 100, alpha, seed, per_user=500), cifar10, 100, 10) for seed in range(10)]
    assert np.mean([mean_emd(h) for h in ours]) == pytest.approx(mean_emd(theirs), abs=0.04)
    assert np.mean([emd(h).std() for h in ours]) == pytest.approx(emd(theirs).std(), abs=0.06)
    assert np.mean([(h > 0).sum(1).mean() for h in ours]) == pytest.approx((theirs > 0).sum(1).mean(), abs=0.5)
    assert all(np.array_equal(h.sum(axis=1), theirs.sum(axis=1)) for h in ours)


@given(LABELS, st.data(), SEEDS)
def test_classes_per_client_splits_each_class_equally_among_its_clients(
    labels: Ints, data: st.DataObject, seed: int
) -> None:
    labels = np.unique(labels, return_inverse=True)[1]
    classes = int(labels.max()) + 1
    users = data.draw(st.integers(1, len(labels)))
    n = data.draw(st.integers(-(-classes // users), classes))
    try:
        owners = classes_per_client(labels, users, n, seed)
    except ValueError as error:
        assert "without a client in 10000 draws" in str(error)  # noqa: PT017
        return
    counts = histograms(owners, labels, users, classes)
    assert ((counts > 0).sum(axis=1) <= n).all()
    for c, count in enumerate(counts.T):
        positive = count[count > 0]
        assert positive.sum() == (labels == c).sum()
        assert positive.max() - positive.min() <= 1
    assert np.array_equal(owners, classes_per_client(labels, users, n, seed))


def test_classes_per_client_redraws_until_every_class_has_a_client() -> None:
    """With 4 of 10 classes for 10 clients, 6 % of draws leave out a class: 18 of these 300 without redrawing."""
    labels = np.repeat(np.arange(10), 20)
    for seed in range(300):
        counts = histograms(classes_per_client(labels, 10, 4, seed), labels, 10, 10)
        assert (counts > 0).sum(axis=1).tolist() == [4] * 10
        assert counts.sum(axis=0).tolist() == [20] * 10


@given(st.integers(1, 200), st.data(), SEEDS)
def test_iid_gives_equal_numbers(count: int, data: st.DataObject, seed: int) -> None:
    users = data.draw(st.integers(1, count))
    sizes = np.bincount(iid(count, users, seed), minlength=users)
    assert sizes.sum() == count
    assert sizes.max() - sizes.min() <= 1


@pytest.mark.parametrize(
    "partition",
    [
        lambda seed: dirichlet(np.arange(60) % 6, 6, 1.0, seed),
        lambda seed: classes_per_client(np.arange(60) % 6, 6, 3, seed),
        lambda seed: iid(60, 6, seed),
        lambda seed: within_users(np.arange(60) % 6, seed),
        lambda seed: by_users(np.arange(60), seed),
    ],
)
def test_another_seed_gives_another_partition(partition: Callable[[int], Ints]) -> None:
    assert np.array_equal(partition(3), partition(3))
    assert not np.array_equal(partition(3), partition(4))


@given(st.lists(st.sampled_from("abcdef"), min_size=1, max_size=100), SEEDS)
def test_within_users_tests_17_in_100_and_trains_on_the_rest(users: list[str], seed: int) -> None:
    split, owners = within_users(users, seed), np.array(users)
    for user in set(users):
        user_split = split[owners == user]
        num_test = int((user_split == "test").sum())
        assert num_test == (0 if len(user_split) == 1 else max(1, round(0.17 * len(user_split))))
        assert ((user_split == "train") | (user_split == "test")).all()


def test_a_users_split_does_not_depend_on_other_users() -> None:
    alone = within_users(["anna"] * 20, seed=0)
    assert np.array_equal(alone, within_users(["anna"] * 20 + ["aaron"] * 9 + ["bert"], seed=0)[:20])


@given(st.integers(3, 100), SEEDS)
def test_by_users_puts_every_user_in_one_split(count: int, seed: int) -> None:
    split = by_users(np.tile(np.arange(count), 2), seed)
    assert np.array_equal(split[:count], split[count:])
    tenth = max(1, round(0.1 * count))
    assert [int((split[:count] == name).sum()) for name in ("val", "test")] == [tenth, tenth]


@pytest.mark.parametrize("alpha", ALPHAS)
def test_released_splits_of_cifar10_give_100_users_500_images(cifar10: Ints, alpha: float) -> None:
    assert np.bincount(released(SPLITS, cifar10, "cifar10", alpha)).tolist() == [500] * 100


def test_released_splits_of_cifar100_load(cifar10: Ints) -> None:
    for alpha in (0, 0.5, 1000):
        assert np.bincount(released(SPLITS, cifar10, "cifar100", alpha)).tolist() == [500] * 100


CSV = "user_id,image_id,class\n1,0,7\n0,2,5\n1,1,6\n"


def test_released_csv_archive_and_folder_give_the_same_users(tmp_path: Path) -> None:
    csv = tmp_path / "cifar10" / "federated_train_alpha_0.10.csv"
    csv.parent.mkdir()
    csv.write_text(CSV)
    with zipfile.ZipFile(tmp_path / "cifar10_v1.1.zip", "w") as archive:
        archive.writestr("cifar10/federated_train_alpha_0.10.csv", CSV)
    for path in (csv, tmp_path, tmp_path / "cifar10_v1.1.zip"):
        assert released(path, [7, 6, 5, 4], "cifar10", 0.1).tolist() == [1, 1, 0, -1]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("user_id,image_id\n0,0\n", "split.csv has no column 'class', only user_id, image_id"),
        ("user_id,image_id,class\n0,0,7\n0,4,5\n", "line 3: no image 4 of user 0 among 3 images"),
        ("user_id,image_id,class\n0,0,7\n1,0,7\n", "line 3: image 0 already belongs to user 0"),
        ("user_id,image_id,class\n0,1,7\n", "line 2: image 1 has class 6, not 7: get v1.1"),
        ("user_id,image_id,class\n0,x,7\n", "line 2: user_id, image_id, class must be numbers"),
    ],
)
def test_an_inconsistent_released_csv_is_refused_by_line(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "split.csv").write_text(text)
    with pytest.raises(ValueError, match=message):
        released(tmp_path / "split.csv", [7, 6, 5], "cifar10", 0.1)


def save_splits(path: Path) -> None:
    """Save three images of user 0 as the released split with alpha 0.10."""
    splits: dict[str, Any] = {"cifar10_alpha_0.10": np.zeros(3, np.uint8)}
    np.savez(path, **splits)


def test_splits_that_were_not_released_are_refused(tmp_path: Path) -> None:
    save_splits(tmp_path / "splits.npz")
    with pytest.raises(
        ValueError, match=r"^splits\.npz has no cifar10_alpha_0\.30: set alpha to one of cifar10_alpha_0\.10"
    ):
        released(tmp_path / "splits.npz", [0] * 3, "cifar10", 0.3)
    with pytest.raises(ValueError, match="each of 4 images"):
        released(tmp_path / "splits.npz", [0] * 4, "cifar10", 0.1)
    with pytest.raises(ValueError, match=r"has no federated_train_alpha_0\.30\.csv"):
        released(tmp_path, [0] * 3, "cifar10", 0.3)
    with pytest.raises(ValueError, match="No released splits at"):
        released(tmp_path / "none.zip", [0] * 3, "cifar10", 0.3)


@pytest.mark.parametrize("kind", ["npz", "zip"])
def test_half_downloaded_splits_are_refused(tmp_path: Path, kind: str) -> None:
    save_splits(tmp_path / "splits.npz")
    data = (tmp_path / "splits.npz").read_bytes()
    (tmp_path / f"half.{kind}").write_bytes(data[: len(data) // 2])
    with pytest.raises(ValueError, match=rf"half\.{kind} is truncated or not an archive: download it again"):
        released(tmp_path / f"half.{kind}", [0] * 3, "cifar10", 0.1)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: dirichlet([0, 1], 3, 1, 0), "users is 3: set it to a whole number of at least 1 and at most 2"),
        (lambda: dirichlet([0, 1], 2, -1, 0), "alpha is -1"),
        (lambda: dirichlet([0, 1], 2, float("nan"), 0), "alpha is nan"),
        (
            lambda: dirichlet([0, 1], 2, 1, 0, per_user=2),
            "per_user is 2: set it to a whole number of at least 1 and at most 1",
        ),
        (
            lambda: classes_per_client([0, 1], 2, 3, 0),
            "classes_per_client is 3: set it to a whole number of at least 1 and at most 2",
        ),
        (lambda: classes_per_client(np.arange(30), 2, 3, 0), "left some of the 30 classes without a client"),
        (lambda: iid(3, 0, 0), "users is 0: set it to a whole number of at least 1 and at most 3"),
        (lambda: within_users([0, 0], 0, test=1.5), "test is 1.5: set it to a number of at least 0 and below 1"),
        (lambda: by_users([0, 1], 0), "2 users are too few"),
    ],
)
def test_impossible_partitions_are_refused(call: Callable[[], Ints], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


def test_dirichlet_gives_log_normal_sizes_that_add_up() -> None:
    labels = np.repeat(np.arange(10), 1000)
    sizes = np.bincount(dirichlet(labels, 101, 1.0, seed=0, size_spread=0.9), minlength=101)
    assert (sizes.sum(), sizes.min() >= 1) == (10_000, True)
    assert np.log(sizes).std() == pytest.approx(0.9, rel=0.05)
    assert np.median(sizes) == pytest.approx(10_000 / 101 * np.exp(-(0.9**2) / 2), rel=0.05)  # of a log-normal mean
