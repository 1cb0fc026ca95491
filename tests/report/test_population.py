"""The page on a population: numbers computed by hand, and pages of unusual populations."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image as Pillow
from scipy.stats import wasserstein_distance

from manyeyes.core.population import MultiLabels, Population, SingleLabels
from manyeyes.data.synthetic.dataset import SyntheticImages, make_synthetic
from manyeyes.data.synthetic.users import sizes
from manyeyes.metrics import emd, mean_emd
from manyeyes.metrics.heterogeneity import split_stats
from manyeyes.report import export, population
from manyeyes.report.page import ImageStrip
from manyeyes.report.population import pixel_skew, show, users_with_half, without_pooled
from manyeyes.report.population_charts import cumulative_share, example_images, share_of_largest


def make_population(
    labels: list[Any], users: list[Any], classes: tuple[str, ...] = ("a", "b", "c"), **columns: Any
) -> Population:
    images = np.random.default_rng(0).integers(0, 256, (len(users), 4, 4, 3), np.uint8)
    is_multi = isinstance(labels[0], list)
    all_labels = MultiLabels.from_lists(labels, classes) if is_multi else SingleLabels(np.array(labels), classes)
    arrays = {name: np.array(column) for name, column in columns.items()}
    return Population.from_arrays(images, all_labels, users, **arrays)


@pytest.fixture(scope="module")
def synthetic() -> Population:
    return make_synthetic(SyntheticImages(users=60, size=32, images_per_user=0), processes=1)


def test_cumulative_share_starts_with_the_largest_user() -> None:
    np.testing.assert_allclose(cumulative_share(np.array([1, 6, 3])), [0, 0.6, 0.9, 1])


def test_a_small_fraction_of_users_can_have_half_of_the_images() -> None:
    skewed = np.repeat([977, 23], [23, 977])  # 23 of 1,000 users have as many as all others
    assert share_of_largest(skewed) == pytest.approx(0.5)
    assert users_with_half(skewed) == pytest.approx(0.023)


def test_equal_users_show_no_skew() -> None:
    assert share_of_largest(np.full(100, 5)) == pytest.approx(0.023)
    assert users_with_half(np.full(100, 5)) == 0.5


def test_counts_over_users_and_labels() -> None:
    # p = (1/2, 1/2, 0); the first user's q is (2/3, 1/3, 0), at 1/3; the second's (0, 1, 0), at 1.
    stats = split_stats("", make_population([0, 0, 1, 1], [7, 7, 7, 9]))
    assert stats.sizes_U.tolist() == [3, 1]
    assert stats.labels_C.tolist() == [2, 2, 0]
    assert stats.holders_C.tolist() == [1, 2, 0]
    assert stats.classes_U.tolist() == [2, 1]
    np.testing.assert_allclose(stats.emd_U, [1 / 3, 1])
    assert stats.mean_emd == pytest.approx((3 * (1 / 3) + 1 * 1) / 4)


def test_with_several_labels_per_image_users_without_any_are_left_out() -> None:
    # p = (2/3, 1/3, 0); q of user 0 is (1/2, 1/2, 0), at 1/3, with two labels; of user 1 (1, 0, 0), at 2/3, with one.
    stats = split_stats("", make_population([[0, 1], [0], []], [0, 1, 2]))
    np.testing.assert_allclose(stats.emd_U, [1 / 3, 2 / 3])
    assert stats.mean_emd == pytest.approx((2 * (1 / 3) + 2 / 3) / 3)
    assert stats.classes_U.tolist() == [2, 1, 0]


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 5), st.sets(st.integers(0, 6), min_size=1)), min_size=1, max_size=40))
def test_emd_of_pairs_equals_that_of_the_full_table(examples: list[tuple[int, set[int]]]) -> None:
    labels, users = [list(labels) for _, labels in examples], [user for user, _ in examples]
    population = make_population(labels, users, tuple("abcdefg"))
    stats = split_stats("", population)
    np.testing.assert_allclose(stats.emd_U, emd(population.histograms()), atol=1e-12)
    assert stats.mean_emd == pytest.approx(mean_emd(population.histograms()))


def test_splits_follow_all_users_in_the_order_train_val_test() -> None:
    split = ["test", "extra", "train", "val", "train"]
    stats = population.population_stats(make_population([0] * 5, [0, 1, 2, 3, 4], split=split))
    assert [(part.name, len(part.sizes_U)) for part in stats] == [
        ("all", 5), ("train", 2), ("val", 1), ("test", 1), ("extra", 1),
    ]  # fmt: skip


def test_two_uniform_users_are_half_their_difference_from_the_mean() -> None:
    images = np.full((2, 4, 4, 3), 10, np.uint8)
    images[1] = 30  # half of the mean histogram's mass must move 20 levels
    skew = pixel_skew(Population.from_arrays(images, SingleLabels(np.zeros(2, int), ("a",)), [0, 1]))
    assert skew is not None
    np.testing.assert_allclose(skew.actual, [10, 10], rtol=1e-5)


def test_pixel_emd_equals_scipys_on_the_most_common_label() -> None:
    population = make_population([0, 1, 1, 1, 1, 2], [0, 0, 0, 1, 1, 1])
    skew = pixel_skew(population)
    assert skew is not None
    assert (skew.label, skew.images, skew.users) == ("b", 4, 2)
    pixels = population.pixels(np.array([1, 2, 3, 4]))
    channels = [pixels[..., c].ravel() for c in range(3)]
    expected = [
        np.mean([wasserstein_distance(pixels[user][..., c].ravel(), channels[c]) for c in range(3)])
        for user in ([0, 1], [2, 3])
    ]
    np.testing.assert_allclose(sorted(skew.actual), sorted(expected), rtol=1e-4)


def test_random_assignment_keeps_the_sizes_or_makes_them_equal(monkeypatch: pytest.MonkeyPatch) -> None:
    all_sizes = []
    real_pixel_emd = population.pixel_emd

    def record_sizes(histograms: Any, sizes: Any) -> Any:
        all_sizes.append(sorted(sizes.tolist()))
        return real_pixel_emd(histograms, sizes)

    monkeypatch.setattr(population, "pixel_emd", record_sizes)
    skew = pixel_skew(make_population([0] * 9, [0] * 7 + [1, 2]))
    assert skew is not None
    count = population.NUM_SIMULATIONS
    assert sorted(all_sizes) == [[1, 1, 7]] * (1 + count) + [[3, 3, 3]] * count
    assert len(skew.real_sizes) == len(skew.equal_sizes) == 3 * count


def test_users_with_one_camera_look_randomly_assigned_and_others_do_not() -> None:
    rng = np.random.default_rng(0)
    users = np.repeat(np.arange(200), 5)
    labels = SingleLabels(np.zeros(1000, int), ("a",))
    same_camera = rng.integers(0, 100, (1000, 1, 1, 1)) + np.zeros((1000, 4, 4, 3), int)
    brightness = rng.integers(0, 150, 200)[users][:, None, None, None]
    same, different = (
        pixel_skew(Population.from_arrays(images.astype(np.uint8), labels, users))
        for images in (same_camera, same_camera + brightness)
    )
    assert same is not None and different is not None
    assert np.median(same.actual) == pytest.approx(np.median(same.real_sizes), rel=0.15)
    assert np.median(different.actual) > 1.5 * np.median(different.real_sizes)


class LazyImages:
    """Images that are created and counted when they are read."""

    dtype = np.dtype(np.uint8)

    def __init__(self, count: int, side: int) -> None:
        self.shape = (count, side, side, 3)
        self.num_read = 0

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: Any) -> np.ndarray[Any, Any]:
        self.num_read += len(rows)
        brightness = (np.asarray(rows) * 7919 % 251).astype(np.uint8)
        return np.broadcast_to(brightness[:, None, None, None], (len(rows), *self.shape[1:]))


@pytest.mark.slow
def test_a_population_as_large_as_flair_is_shown_from_few_images(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    user_sizes = sizes(51_414, 0)
    count = int(user_sizes.sum())
    classes = tuple(f"class {c}" for c in range(1628))
    label_ids = (rng.random((count, 4)) ** 4 * 407).astype(int) * 4 + np.arange(4)  # different labels, some common
    labels = MultiLabels(np.arange(count + 1) * 4, label_ids.ravel(), classes)
    images = LazyImages(count, 64)
    split = np.repeat(rng.choice(["train", "val", "test"], len(user_sizes), p=[0.8, 0.1, 0.1]), user_sizes)
    users = np.repeat(np.arange(len(user_sizes)), user_sizes)
    show(Population.from_arrays(images, labels, users, split=split), "large", tmp_path)
    assert images.num_read <= population.MAX_SAMPLED_IMAGES + 3 * 4 * 6
    assert (tmp_path / "index.html").stat().st_size < 4_000_000


def read_page(folder: Path, reader: Callable[[str], Any]) -> Any:
    """Return the page in a folder after checking that it is self-contained and describes every image."""
    text = (folder / "index.html").read_text("utf-8")
    read = reader(text)
    links = [value for _, tag in read.tags for key, value in tag.items() if key in ("src", "href", "srcset", "action")]
    assert all(link.startswith(("#", "data:image/")) for link in links)
    assert all(image["alt"] for image in read.all("img"))
    assert len(read.all("h1")) == 1
    assert read.all("html") == [{"lang": "en"}]
    return read


@pytest.mark.parametrize("task", ["single", pytest.param("fine", marks=pytest.mark.slow)])
def test_the_page_of_a_synthetic_population_has_every_chart(
    synthetic: Population, task: str, tmp_path: Path, reader: Callable[[str], Any]
) -> None:
    out = tmp_path / "new" / "folder"
    text = show(synthetic.task(task), "synthetic", out)
    names = [
        "quantity",
        "images_by_rank",
        "labels",
        "label_users",
        "classes_by_rank",
        "label_emd",
        "pixel_emd",
        "locations",
    ]
    files = {f"{name}.{suffix}" for name in names for suffix in ("svg", "png", "csv")} | {"index.html"}
    assert {path.name for path in out.iterdir()} == files
    read = read_page(out, reader)
    assert {figure["data-chart"] for figure in read.all("figure")} == set(names)
    assert f"{len(synthetic):,} images" in text
    assert "train" in text and str(out / "index.html") in text
    assert ("how often each label occurs" in " ".join(read.text)) == (task != "single")


def test_random_samples_are_the_same_each_time(synthetic: Population) -> None:
    first, second = pixel_skew(synthetic), pixel_skew(synthetic)
    assert first is not None and second is not None
    np.testing.assert_array_equal(first.actual, second.actual)
    np.testing.assert_array_equal(first.real_sizes, second.real_sizes)


def test_example_images_are_of_users_with_few_and_with_many_images(synthetic: Population) -> None:
    strips = [strip for strip in example_images(synthetic, 0) if isinstance(strip, ImageStrip)]
    titles = [strip.title for strip in strips]
    assert [title.split(", ")[1].split(":")[0] for title in titles] == [
        *["few images"] * 4, *["a medium number of images"] * 4, *["many images"] * 4,
    ]  # fmt: skip
    assert any(title.endswith(f": 6 of {synthetic.num_examples.max()} shown") for title in titles)
    first = strips[0].images[0]
    assert first.alt.split(" by user ")[0] in synthetic.classes
    assert np.asarray(Pillow.open(io.BytesIO(first.data))).shape == synthetic.image_shape


@pytest.fixture
def without_png(monkeypatch: pytest.MonkeyPatch) -> None:
    """Write no PNG files, which take most of the time and show the same."""
    monkeypatch.setattr(export, "can_write_png", lambda: False)


@pytest.mark.parametrize(
    "unusual",
    [
        make_population([0, 1, 0], [5, 5, 6]),
        make_population([0, 1, 2], ["me"] * 3),
        make_population([0, 0, 0], [0, 1, 2], classes=("only",)),
        make_population([0], [0], classes=("only",), split=["train"]),
        make_population([[], [], [1]], [0, 1, 2]),
        make_population([[], []], [0, 1]),
        make_population([0, 1], [0, 1], lat=[np.nan, np.nan], lon=[0.0, 1.0]),
        make_population([0, 1], [0, 1]).pooled(),
    ],
    ids=["no columns", "one user", "one class", "one image", "few labels", "no labels", "no locations", "pooled"],
)
@pytest.mark.usefixtures("without_png")
def test_an_unusual_population_is_shown(unusual: Population, tmp_path: Path, reader: Callable[[str], Any]) -> None:
    show(unusual, "unusual", tmp_path)
    read_page(tmp_path, reader)
    assert not (tmp_path / "locations.svg").exists()


@pytest.mark.usefixtures("without_png")
def test_only_images_with_coordinates_are_on_the_map(tmp_path: Path) -> None:
    show(make_population([0, 0, 0], [0, 0, 0], lat=[1.0, np.nan, 3.0], lon=[4.0, 5.0, 6.0]), "map", tmp_path)
    assert "2 of 3 images have coordinates" in (tmp_path / "locations.svg").read_text()


@pytest.mark.usefixtures("without_png")
def test_hostile_names_remain_text(tmp_path: Path, reader: Callable[[str], Any]) -> None:
    bad = "<script>alert(1)</script>\"'&$\\frac{$[red]\x1b[2J\n"
    split = [f"a{bad}", f"b{bad}"] * 2
    users = [f"1{bad}"] * 2 + [f"2{bad}"] * 2
    text = show(make_population([0, 1, 0, 1], users, classes=(f"x{bad}", f"y{bad}"), split=split), bad, tmp_path)
    read = read_page(tmp_path, reader)
    assert [script.get("type") for script in read.all("script")] == ["application/json", None, None]
    printed = bad.replace("\x1b", "�").replace("\n", "�")
    assert any(printed in image["alt"] for image in read.all("img"))
    assert "\x1b" not in text and "[red]" in text


def test_a_chart_that_cannot_be_drawn_leaves_no_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> str:
        raise OSError("no space left")

    monkeypatch.setattr(export, "render_svg", fail)
    with pytest.raises(OSError, match="no space left"):
        show(make_population([0, 1], [0, 1]), "x", tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_pooled_test_set_is_not_a_user() -> None:
    """CIFAR's test images are in one split with one user, which has the name of the split."""
    split = ["train", "train", "train", "test", "test"]
    cifar = make_population([0, 1, 1, 0, 1], ["u", "u", "v", "test", "test"], split=split)
    users, num_pooled = without_pooled(cifar)
    assert ([users.user_name(user) for user in range(len(users.user_ids))], num_pooled) == (["u", "v"], 2)


def test_users_in_both_splits_are_kept() -> None:
    split = ["train", "test", "train", "test"]
    assert without_pooled(make_population([0, 1, 1, 0], ["u", "u", "v", "v"], split=split))[1] == 0
