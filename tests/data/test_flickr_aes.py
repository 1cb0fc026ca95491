"""FLICKR-AES: filters, choice of raters, stable splits, and images with several raters."""

from __future__ import annotations

import io
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from manyeyes.data.datasets import flickr_aes
from manyeyes.data.manifest import Manifest
from manyeyes.data.synthetic.dataset import SyntheticImages

Ratings = list[tuple[str, str, int]]


def scored(rater: str, counts: tuple[int, ...], start: int = 0) -> Ratings:
    """Return `counts` ratings of each score from 1 to 5, of images from `start` on."""
    scores = [score for score, count in enumerate(counts, 1) for _ in range(count)]
    return [(rater, f"img{start + k}.jpg", score) for k, score in enumerate(scores)]


def write(raw: Path, ratings: Ratings, folder: str = "40K", without: tuple[str, ...] = ()) -> Path:
    """Write the CSV with its leading spaces, and image k of color (k // 256, k % 256, 0)."""
    (raw / folder).mkdir(parents=True)
    lines = "".join(f"{rater}, {image}, {score}\n" for rater, image, score in ratings)
    (raw / "FLICKR-AES_image_labeled_by_each_worker.csv").write_text("worker, imagePair, score\n" + lines)
    for image in {image for _, image, _ in ratings} - set(without):
        number = int(image.removeprefix("img").removesuffix(".jpg"))
        Image.new("RGB", (1, 1), (number // 256, number % 256, 0)).save(raw / folder / image, "PNG")
    return raw


def splits(manifest: Manifest) -> dict[tuple[str, str], str]:
    """Return the split of each (rater, image)."""
    return {
        (str(rater), str(image)): str(split)
        for rater, image, split in zip(manifest.users, manifest.columns["image_id"], manifest.split, strict=True)
    }


def test_raters_pass_with_60_to_290_ratings_and_four_of_each_score(tmp_path: Path) -> None:
    ratings = [
        *scored("too few", (20, 20, 10, 5, 4)),  # 59
        *scored("minimum", (4, 20, 20, 12, 4)),  # 60
        *scored("maximum", (4, 100, 100, 82, 4)),  # 290
        *scored("too many", (5, 100, 100, 82, 4)),  # 291
        *scored("three of a score", (3, 20, 20, 20, 20)),
        *scored("none of a score", (0, 30, 30, 30, 30)),
    ]
    raw = write(tmp_path / "raw", ratings)
    manifest = flickr_aes.read_manifest(raw, raters=2)
    assert Counter(manifest.users.tolist()) == {"minimum": 60, "maximum": 290}
    assert manifest.notes["raters"] == {"all": 6, "pass the filters": 2, "chosen": 2, "seed": 0}
    with pytest.raises(ValueError, match=r"raters is 3, and 2 of 6 .*: set raters to 1 to 2"):
        flickr_aes.read_manifest(raw, raters=3)
    with pytest.raises(ValueError, match=r"raters is 1, and 0 of 6 .*: lower min_ratings or min_per_score"):
        flickr_aes.read_manifest(raw, raters=1, min_per_score=50)


def test_every_rating_has_its_own_image_and_score_and_an_image_is_in_the_source_once(tmp_path: Path) -> None:
    ratings = [*scored("ann", (5, 5, 5, 5, 5)), *scored("bob", (6, 6, 6, 6, 6), start=10)]
    manifest = flickr_aes.read_manifest(write(tmp_path / "raw", ratings), raters=2, min_ratings=20)
    ratings_read = []
    for k in range(len(manifest)):
        data = manifest.source.read(int(manifest.image[k]))
        assert isinstance(data, bytes)
        red, green, _ = np.asarray(Image.open(io.BytesIO(data)))[0, 0].tolist()
        label = manifest.labels["rating"]
        ratings_read.append(
            (str(manifest.users[k]), f"img{256 * red + green}.jpg", int(label.classes[label.nonzero()[1][k]]))
        )
    assert sorted(ratings_read) == sorted(ratings)
    assert len(manifest.source) == 40  # images 0 to 39, of which 10 to 24 are rated twice
    assert manifest.labels["rating"].classes == ("1", "2", "3", "4", "5")


def test_a_fifth_of_each_score_of_each_rater_is_for_testing(tmp_path: Path) -> None:
    ratings = scored("ann", (4, 10, 1, 25, 2))
    manifest = flickr_aes.read_manifest(write(tmp_path / "raw", ratings), raters=1, min_ratings=1, min_per_score=1)
    score = manifest.labels["rating"].nonzero()[1] + 1
    assert Counter(score[manifest.split == "test"].tolist()) == {1: 1, 2: 2, 4: 5, 5: 1}
    assert set(manifest.split.tolist()) == {"train", "test"}


RATINGS = [rating for w in range(12) for rating in scored(f"w{w:02d}", (15, 15, 15, 15, 15), start=20 * w)]


def test_raters_and_splits_depend_on_the_seed_only(tmp_path: Path) -> None:
    raw = write(tmp_path / "raw", RATINGS)
    first, repeated, other_seed = (flickr_aes.read_manifest(raw, raters=6, seed=seed) for seed in (0, 0, 1))
    assert splits(first) == splits(repeated)
    assert set(first.users.tolist()) != set(other_seed.users.tolist())
    seed_0, seed_1 = (splits(flickr_aes.read_manifest(raw, raters=12, seed=seed)) for seed in (0, 1))
    assert seed_0 != seed_1


def test_a_split_depends_on_neither_the_order_of_the_file_nor_the_other_raters(tmp_path: Path) -> None:
    complete = splits(flickr_aes.read_manifest(write(tmp_path / "complete", RATINGS), raters=12))
    shuffled = [RATINGS[k] for k in np.random.default_rng(0).permutation(len(RATINGS))]
    assert splits(flickr_aes.read_manifest(write(tmp_path / "shuffled", shuffled), raters=12)) == complete
    single = [rating for rating in RATINGS if rating[0] == "w03"]
    alone = splits(flickr_aes.read_manifest(write(tmp_path / "alone", single), raters=1))
    assert alone == {key: split for key, split in complete.items() if key[0] == "w03"}


def test_fewer_raters_are_a_subset_of_more(tmp_path: Path) -> None:
    raw = write(tmp_path / "raw", RATINGS)
    three, five = (set(flickr_aes.read_manifest(raw, raters=n).users.tolist()) for n in (3, 5))
    assert three < five


def test_images_without_a_file_are_left_out_and_named_and_change_no_split(tmp_path: Path) -> None:
    complete = splits(flickr_aes.read_manifest(write(tmp_path / "complete", RATINGS), raters=12))
    manifest = flickr_aes.read_manifest(write(tmp_path / "part", RATINGS, without=("img3.jpg", "img70.jpg")), raters=12)
    assert manifest.notes["images without a file, left out"] == {"count": 2, "first": ["img3.jpg", "img70.jpg"]}
    assert splits(manifest) == {key: s for key, s in complete.items() if key[1] not in ("img3.jpg", "img70.jpg")}


def test_a_duplicate_rating_is_left_out_and_named(tmp_path: Path) -> None:
    ratings = [*scored("ann", (5, 5, 5, 5, 5)), ("ann", "img0.jpg", 5)]
    manifest = flickr_aes.read_manifest(write(tmp_path / "raw", ratings), raters=1, min_ratings=20)
    assert len(manifest) == 25
    assert manifest.notes["duplicate ratings, left out"]["first"] == ["img0.jpg"]


def test_images_are_found_in_any_folder(tmp_path: Path) -> None:
    raw = write(tmp_path / "raw", scored("ann", (5, 5, 5, 5, 5)), folder="FLICKR-AES-001/40K")
    manifest = flickr_aes.read_manifest(raw, raters=1, min_ratings=20)
    assert manifest.source.name(0).startswith("FLICKR-AES-001/40K/img")


def test_images_are_found_in_a_linked_folder(tmp_path: Path) -> None:
    raw = write(tmp_path / "raw", scored("ann", (20,) * 5))
    (raw / "40K").rename(tmp_path / "disk")
    (raw / "40K").symlink_to(tmp_path / "disk")
    assert len(flickr_aes.read_manifest(raw, raters=1)) == 100


def test_missing_ratings_and_missing_images_raise_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"each_worker\.csv is not below .* download it from"):
        flickr_aes.read_manifest(tmp_path)
    ratings = scored("ann", (5, 5, 5, 5, 5))
    raw = write(tmp_path / "raw", ratings, without=tuple(image for _, image, _ in ratings))
    with pytest.raises(ValueError, match=r"None of the rated images .* extract FLICKR-AES-001\.zip"):
        flickr_aes.read_manifest(raw, raters=1, min_ratings=20)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has no column 'worker', only none"),
        ("user, picture, stars\n", "has no column 'worker', only user, picture, stars"),
        ("worker, imagePair, score\n", "contains no ratings"),
        (
            "worker, imagePair, score\nann, a.jpg, 6\n",
            "line 2 is 'ann,a.jpg,6': give worker, image and a score of 1 to 5",
        ),
        (
            "worker, imagePair, score\nann, a.jpg, 3\nann, b.jpg\n",
            "line 3: the line does not have one cell for each of worker, imagePair, score",
        ),
    ],
)
def test_an_invalid_file_of_ratings_raises_one_sentence(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "FLICKR-AES_image_labeled_by_each_worker.csv").write_text(text)
    with pytest.raises(ValueError, match=message):
        flickr_aes.read_manifest(tmp_path)


@pytest.mark.slow
def test_synthetic_raters_pass_the_filters_and_share_images(tmp_path: Path) -> None:
    flickr_aes.write_synthetic(SyntheticImages(users=6, size=32, images_per_user=120), tmp_path)
    manifest = flickr_aes.read_manifest(tmp_path, raters=3)
    assert set(Counter(manifest.users.tolist()).values()) == {132}
    all_raters = flickr_aes.read_manifest(tmp_path, raters=manifest.notes["raters"]["pass the filters"])
    assert len(all_raters.source) < len(all_raters)
