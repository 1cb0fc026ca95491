"""What is shown of a population: numbers by hand, and pages of odd populations."""

from __future__ import annotations

import io
import time
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
from manyeyes.report import population as report
from manyeyes.report.population import cumulative_share, held_by_largest, holders_of_half, pixel_skew, show, split_stats


def of(labels: list[Any], users: list[Any], classes: tuple[str, ...] = ("a", "b", "c"), **columns: Any) -> Population:
    images = np.random.default_rng(0).integers(0, 256, (len(users), 4, 4, 3), np.uint8)
    multi = isinstance(labels[0], list)
    made = MultiLabels.from_lists(labels, classes) if multi else SingleLabels(np.array(labels), classes)
    return Population.from_arrays(images, made, users, **{k: np.array(v) for k, v in columns.items()})


@pytest.fixture(scope="module")
def world() -> Population:
    return make_synthetic(SyntheticImages(users=60, size=32, images_per_user=0), processes=1)


def test_cumulative_share_starts_with_the_largest_user() -> None:
    np.testing.assert_allclose(cumulative_share(np.array([1, 6, 3])), [0, 0.6, 0.9, 1])


def test_the_largest_few_hold_half() -> None:
    lopsided = np.repeat([977, 23], [23, 977])  # 23 of 1,000 users hold as many as all others
    assert held_by_largest(lopsided) == pytest.approx(0.5)
    assert holders_of_half(lopsided) == pytest.approx(0.023)


def test_equal_users_show_no_skew() -> None:
    assert held_by_largest(np.full(100, 5)) == pytest.approx(0.023)
    assert holders_of_half(np.full(100, 5)) == 0.5


def test_counts_over_users_and_labels() -> None:
    # p = (1/2, 1/2, 0); the first user's q is (2/3, 1/3, 0), at 1/3; the second's (0, 1, 0), at 1.
    found = split_stats("", of([0, 0, 1, 1], [7, 7, 7, 9]))
    assert found.sizes_U.tolist() == [3, 1]
    assert found.labels_C.tolist() == [2, 2, 0]
    assert found.holders_C.tolist() == [1, 2, 0]
    assert found.classes_U.tolist() == [2, 1]
    np.testing.assert_allclose(found.emd_U, [1 / 3, 1])
    assert found.mean_emd == pytest.approx((3 * (1 / 3) + 1 * 1) / 4)


def test_of_several_labels_an_image_frequencies_count_and_users_without_any_are_left_out() -> None:
    # p = (2/3, 1/3, 0); q of user 0 is (1/2, 1/2, 0), at 1/3, with two labels; of user 1 (1, 0, 0), at 2/3, with one.
    found = split_stats("", of([[0, 1], [0], []], [0, 1, 2]))
    np.testing.assert_allclose(found.emd_U, [1 / 3, 2 / 3])
    assert found.mean_emd == pytest.approx((2 * (1 / 3) + 2 / 3) / 3)
    assert found.classes_U.tolist() == [2, 1, 0]


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 5), st.sets(st.integers(0, 6), min_size=1)), min_size=1, max_size=40))
def test_emd_of_pairs_is_that_of_the_whole_table(examples: list[tuple[int, set[int]]]) -> None:
    people = of([list(labels) for _, labels in examples], [user for user, _ in examples], tuple("abcdefg"))
    found = split_stats("", people)
    np.testing.assert_allclose(found.emd_U, emd(people.histograms()), atol=1e-12)
    assert found.mean_emd == pytest.approx(mean_emd(people.histograms()))


def test_splits_come_in_their_usual_order_after_the_whole() -> None:
    found = report.parts(of([0] * 5, [0, 1, 2, 3, 4], split=["test", "extra", "train", "val", "train"]))
    assert [(p.name, len(p.sizes_U)) for p in found] == [
        ("everyone", 5), ("train", 2), ("val", 1), ("test", 1), ("extra", 1),
    ]  # fmt: skip


def test_two_plain_users_are_half_their_difference_from_the_mean() -> None:
    images = np.full((2, 4, 4, 3), 10, np.uint8)
    images[1] = 30  # half of the mean histogram's mass must move 20 levels
    found = pixel_skew(Population.from_arrays(images, SingleLabels(np.zeros(2, int), ("a",)), [0, 1]))
    assert found is not None
    np.testing.assert_allclose(found.actual, [10, 10], rtol=1e-5)


def test_pixel_emd_is_scipys_on_the_most_common_label_only() -> None:
    people = of([0, 1, 1, 1, 1, 2], [0, 0, 0, 1, 1, 1])
    found = pixel_skew(people)
    assert found is not None
    assert (found.label, found.images, found.users) == ("b", 4, 2)
    pixels = people.pixels(np.array([1, 2, 3, 4]))
    everyone = [pixels[..., c].ravel() for c in range(3)]
    by_hand = [
        np.mean([wasserstein_distance(pixels[own][..., c].ravel(), everyone[c]) for c in range(3)])
        for own in ([0, 1], [2, 3])
    ]
    np.testing.assert_allclose(sorted(found.actual), sorted(by_hand), rtol=1e-4)


def test_dealing_at_random_keeps_the_sizes_or_makes_them_equal(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    real = report.pixel_emd
    monkeypatch.setattr(
        report, "pixel_emd", lambda curves, each: asked.append(sorted(each.tolist())) or real(curves, each)
    )
    found = pixel_skew(of([0] * 9, [0] * 7 + [1, 2]))
    assert found is not None
    assert sorted(asked) == [[1, 1, 7]] * (1 + report.DEALS) + [[3, 3, 3]] * report.DEALS
    assert len(found.real_sizes) == len(found.equal_sizes) == 3 * report.DEALS


def test_users_who_share_one_camera_look_as_if_dealt_at_random_and_others_do_not() -> None:
    rng = np.random.default_rng(0)
    users = np.repeat(np.arange(200), 5)
    labels = SingleLabels(np.zeros(1000, int), ("a",))
    noise = rng.integers(0, 100, (1000, 1, 1, 1)) + np.zeros((1000, 4, 4, 3), int)
    own = noise + rng.integers(0, 150, 200)[users][:, None, None, None]
    same, unlike = (pixel_skew(Population.from_arrays(i.astype(np.uint8), labels, users)) for i in (noise, own))
    assert same is not None and unlike is not None
    assert np.median(same.actual) == pytest.approx(np.median(same.real_sizes), rel=0.15)
    assert np.median(unlike.actual) > 1.5 * np.median(unlike.real_sizes)


class Lazy:
    """Images that are made when they are looked at, and counted."""

    dtype = np.dtype(np.uint8)

    def __init__(self, count: int, side: int) -> None:
        self.shape = (count, side, side, 3)
        self.made = 0

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: Any) -> np.ndarray[Any, Any]:
        self.made += len(rows)
        light = (np.asarray(rows) * 7919 % 251).astype(np.uint8)
        return np.broadcast_to(light[:, None, None, None], (len(rows), *self.shape[1:]))


def test_flair_sized_population_is_shown_within_a_minute_looking_at_few_images(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    each = sizes(51_414, 0)
    count = int(each.sum())
    classes = tuple(f"class {c}" for c in range(1628))
    four = (rng.random((count, 4)) ** 4 * 407).astype(int) * 4 + np.arange(4)  # different labels, some common
    labels = MultiLabels(np.arange(count + 1) * 4, four.ravel(), classes)
    images = Lazy(count, 64)
    split = np.repeat(rng.choice(["train", "val", "test"], len(each), p=[0.8, 0.1, 0.1]), each)
    people = Population.from_arrays(images, labels, np.repeat(np.arange(len(each)), each), split=split)
    start = time.perf_counter()
    show(people, "large", tmp_path)
    assert time.perf_counter() - start < 60
    assert images.made <= report.MOST_IMAGES + 3 * 4 * 6


def one_page(folder: Path, reader: Callable[[str], Any]) -> Any:
    """The page in a folder, once it is known to stand alone and to tell of every picture."""
    text = (folder / "index.html").read_text("utf-8")
    read = reader(text)
    links = [value for _, tag in read.tags for key, value in tag.items() if key in ("src", "href", "srcset", "action")]
    assert all(link.startswith(("#", "data:image/")) for link in links)
    assert "url(" not in text
    assert all(image["alt"] for image in read.all("img"))
    assert len(read.all("h1")) == 1
    assert read.all("html") == [{"lang": "en"}]
    return read


@pytest.mark.parametrize("task", ["single", "fine"])
def test_a_world_is_shown(world: Population, task: str, tmp_path: Path, reader: Callable[[str], Any]) -> None:
    text = show(world.task(task), "world", tmp_path / "new" / "folder")
    stems = {"quantity", "images_by_rank", "labels", "classes_by_rank", "label_emd", "pixel_emd", "places"}
    files = {f"{stem}.{kind}" for stem in stems for kind in ("svg", "png")} | {"index.html"}
    assert {path.name for path in (tmp_path / "new" / "folder").iterdir()} == files
    read = one_page(tmp_path / "new" / "folder", reader)
    assert f"{len(world):,} images" in text
    assert "train" in text and str(tmp_path / "new" / "folder" / "index.html") in text
    assert ("how often each label occurs" in " ".join(read.text)) == (task != "single")


def test_what_is_drawn_at_random_is_drawn_alike_each_time(world: Population) -> None:
    one, other = pixel_skew(world), pixel_skew(world)
    assert one is not None and other is not None
    np.testing.assert_array_equal(one.actual, other.actual)
    np.testing.assert_array_equal(one.real_sizes, other.real_sizes)


def test_the_contact_sheet_has_images_of_few_middling_and_many(world: Population) -> None:
    _, *strips = report.figures.contact_sheet(world, 0)
    titles = [strip.title for strip in strips if not isinstance(strip, str)]
    shown = [image for strip in strips if not isinstance(strip, str) for image in strip.images]
    assert [title.split(", ")[1].split(":")[0] for title in titles] == [
        *["few images"] * 4, *["a middling number of images"] * 4, *["many images"] * 4,
    ]  # fmt: skip
    assert any(title.endswith(f": 6 of {world.num_examples.max()} shown") for title in titles)
    assert shown[0].alt.split(" by user ")[0] in world.classes
    assert np.asarray(Pillow.open(io.BytesIO(shown[0].data))).shape == world.image_shape


@pytest.fixture
def svg_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out the PNGs, which take half of the time and show the same."""
    real = report.render
    monkeypatch.setattr(report, "rendered", lambda figure, kind: real(figure, "svg") if kind == "svg" else b"")


@pytest.mark.parametrize(
    "people",
    [
        of([0, 1, 0], [5, 5, 6]),
        of([0, 1, 2], ["me"] * 3),
        of([0, 0, 0], [0, 1, 2], classes=("only",)),
        of([0], [0], classes=("only",), split=["train"]),
        of([[], [], [1]], [0, 1, 2]),
        of([[], []], [0, 1]),
        of([0, 1], [0, 1], lat=[np.nan, np.nan], lon=[0.0, 1.0]),
        of([0, 1], [0, 1]).pooled(),
    ],
    ids=["no columns", "one user", "one class", "one image", "no labels", "no label at all", "no places", "pooled"],
)
@pytest.mark.usefixtures("svg_only")
def test_an_odd_population_is_shown(people: Population, tmp_path: Path, reader: Callable[[str], Any]) -> None:
    show(people, "odd", tmp_path)
    one_page(tmp_path, reader)
    assert not (tmp_path / "places.png").exists()


def test_places_are_those_that_are_known() -> None:
    people = of([0, 0, 0], [0, 0, 0], lat=[1.0, np.nan, 3.0], lon=[4.0, 5.0, 6.0])
    assert report._drawings(people, report.parts(people), None)["places"].title == (
        "2 of 3 images say where they were taken"
    )


@pytest.mark.usefixtures("svg_only")
def test_hostile_names_stay_text(tmp_path: Path, reader: Callable[[str], Any]) -> None:
    bad = "<script>alert(1)</script>\"'&$\\frac{$[red]\x1b[2J\n"
    split = [f"a{bad}", f"b{bad}"] * 2
    people = of([0, 1, 0, 1], [f"1{bad}"] * 2 + [f"2{bad}"] * 2, classes=(f"x{bad}", f"y{bad}"), split=split)
    text = show(people, bad, tmp_path)
    read = one_page(tmp_path, reader)
    assert read.all("script") == []
    seen = bad.replace("\x1b", "�").replace("\n", "�")
    assert any(seen in image["alt"] for image in read.all("img"))
    assert "\x1b" not in text and "[red]" in text


def test_a_failed_picture_leaves_no_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> bytes:
        raise OSError("no space left")

    monkeypatch.setattr(report, "rendered", fail)
    with pytest.raises(OSError, match="no space left"):
        show(of([0, 1], [0, 1]), "x", tmp_path)
    assert list(tmp_path.iterdir()) == []
