"""FLICKR-AES: filters, choice of workers, stable splits, and one image under several workers."""

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


def scored(worker: str, counts: tuple[int, ...], start: int = 0) -> Ratings:
    """So many ratings of each score from 1 to 5, of images from `start` on."""
    scores = [score for score, count in enumerate(counts, 1) for _ in range(count)]
    return [(worker, f"img{start + k}.jpg", score) for k, score in enumerate(scores)]


def write(raw: Path, ratings: Ratings, folder: str = "40K", without: tuple[str, ...] = ()) -> Path:
    """The CSV with its leading spaces, and image k of colour (k // 256, k % 256, 0)."""
    (raw / folder).mkdir(parents=True)
    lines = "".join(f"{worker}, {image}, {score}\n" for worker, image, score in ratings)
    (raw / "FLICKR-AES_image_labeled_by_each_worker.csv").write_text("worker, imagePair, score\n" + lines)
    for image in {image for _, image, _ in ratings} - set(without):
        number = int(image.removeprefix("img").removesuffix(".jpg"))
        Image.new("RGB", (1, 1), (number // 256, number % 256, 0)).save(raw / folder / image, "PNG")
    return raw


def parts(listing: Manifest) -> dict[tuple[str, str], str]:
    """The split of each (worker, image)."""
    return {
        (str(worker), str(image)): str(split)
        for worker, image, split in zip(listing.users, listing.columns["image_id"], listing.split, strict=True)
    }


def test_workers_pass_with_sixty_to_290_ratings_and_four_of_each_score(tmp_path: Path) -> None:
    ratings = [
        *scored("few", (20, 20, 10, 5, 4)),  # 59
        *scored("least", (4, 20, 20, 12, 4)),  # 60
        *scored("most", (4, 100, 100, 82, 4)),  # 290
        *scored("many", (5, 100, 100, 82, 4)),  # 291
        *scored("three", (3, 20, 20, 20, 20)),
        *scored("never", (0, 30, 30, 30, 30)),
    ]
    raw = write(tmp_path / "raw", ratings)
    listing = flickr_aes.read_manifest(raw, raters=2)
    assert Counter(listing.users.tolist()) == {"least": 60, "most": 290}
    assert listing.notes["workers"] == {"all": 6, "pass the filters": 2, "chosen": 2, "seed": 0}
    with pytest.raises(ValueError, match=r"3 workers were asked for and 2 of 6 .* ask for 1 to 2"):
        flickr_aes.read_manifest(raw, raters=3)
    with pytest.raises(ValueError, match=r"1 workers were asked for and 0 of 6 .*: lower least or least_per_score"):
        flickr_aes.read_manifest(raw, raters=1, min_per_score=50)


def test_every_rating_has_its_own_image_and_score_and_an_image_is_in_the_source_once(tmp_path: Path) -> None:
    ratings = [*scored("ann", (5, 5, 5, 5, 5)), *scored("bob", (6, 6, 6, 6, 6), start=10)]
    listing = flickr_aes.read_manifest(write(tmp_path / "raw", ratings), raters=2, min_ratings=20)
    found = []
    for k in range(len(listing)):
        data = listing.source.read(int(listing.image[k]))
        assert isinstance(data, bytes)
        red, green, _ = np.asarray(Image.open(io.BytesIO(data)))[0, 0].tolist()
        label = listing.labels["rating"]
        found.append((str(listing.users[k]), f"img{256 * red + green}.jpg", int(label.classes[label.nonzero()[1][k]])))
    assert sorted(found) == sorted(ratings)
    assert len(listing.source) == 40  # images 0 to 39, of which 10 to 24 are rated twice
    assert listing.labels["rating"].classes == ("1", "2", "3", "4", "5")


def test_a_fifth_of_each_score_of_each_worker_is_for_testing(tmp_path: Path) -> None:
    ratings = scored("ann", (4, 10, 1, 25, 2))
    listing = flickr_aes.read_manifest(write(tmp_path / "raw", ratings), raters=1, min_ratings=1, min_per_score=1)
    score = listing.labels["rating"].nonzero()[1] + 1
    assert Counter(score[listing.split == "test"].tolist()) == {1: 1, 2: 2, 4: 5, 5: 1}
    assert set(listing.split.tolist()) == {"train", "test"}


MANY = [rating for w in range(12) for rating in scored(f"w{w:02d}", (15, 15, 15, 15, 15), start=20 * w)]


def test_workers_and_splits_are_the_same_at_every_call_and_change_with_the_seed(tmp_path: Path) -> None:
    raw = write(tmp_path / "raw", MANY)
    once, again, other = (flickr_aes.read_manifest(raw, raters=6, seed=seed) for seed in (0, 0, 1))
    assert parts(once) == parts(again)
    assert set(once.users.tolist()) != set(other.users.tolist())
    all_once, all_other = (parts(flickr_aes.read_manifest(raw, raters=12, seed=seed)) for seed in (0, 1))
    assert all_once != all_other


def test_a_split_depends_on_neither_the_order_of_the_file_nor_the_other_workers(tmp_path: Path) -> None:
    whole = parts(flickr_aes.read_manifest(write(tmp_path / "whole", MANY), raters=12))
    shuffled = [MANY[k] for k in np.random.default_rng(0).permutation(len(MANY))]
    assert parts(flickr_aes.read_manifest(write(tmp_path / "shuffled", shuffled), raters=12)) == whole
    one = [rating for rating in MANY if rating[0] == "w03"]
    alone = parts(flickr_aes.read_manifest(write(tmp_path / "alone", one), raters=1))
    assert alone == {key: split for key, split in whole.items() if key[0] == "w03"}


def test_fewer_workers_are_some_of_more(tmp_path: Path) -> None:
    raw = write(tmp_path / "raw", MANY)
    three, five = (set(flickr_aes.read_manifest(raw, raters=n).users.tolist()) for n in (3, 5))
    assert three < five


def test_images_without_a_file_are_left_out_and_named_and_move_nobody(tmp_path: Path) -> None:
    whole = parts(flickr_aes.read_manifest(write(tmp_path / "whole", MANY), raters=12))
    listing = flickr_aes.read_manifest(write(tmp_path / "part", MANY, without=("img3.jpg", "img70.jpg")), raters=12)
    assert listing.notes["images without a file, left out"] == {"count": 2, "first": ["img3.jpg", "img70.jpg"]}
    assert parts(listing) == {key: s for key, s in whole.items() if key[1] not in ("img3.jpg", "img70.jpg")}


def test_a_rating_given_again_is_left_out_and_named(tmp_path: Path) -> None:
    ratings = [*scored("ann", (5, 5, 5, 5, 5)), ("ann", "img0.jpg", 5)]
    listing = flickr_aes.read_manifest(write(tmp_path / "raw", ratings), raters=1, min_ratings=20)
    assert len(listing) == 25
    assert listing.notes["ratings of an image by a worker who had rated it, left out"]["first"] == ["img0.jpg"]


def test_images_are_found_in_any_folder(tmp_path: Path) -> None:
    raw = write(tmp_path / "raw", scored("ann", (5, 5, 5, 5, 5)), folder="FLICKR-AES-001/40K")
    listing = flickr_aes.read_manifest(raw, raters=1, min_ratings=20)
    assert listing.source.name(0).startswith("FLICKR-AES-001/40K/img")


def test_images_are_found_in_a_folder_that_is_a_link(tmp_path: Path) -> None:
    raw = write(tmp_path / "raw", scored("ann", (20,) * 5))
    (raw / "40K").rename(tmp_path / "disk")
    (raw / "40K").symlink_to(tmp_path / "disk")
    assert len(flickr_aes.read_manifest(raw, raters=1)) == 100


def test_missing_ratings_and_missing_images_are_each_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"each_worker\.csv is not below .* download it from"):
        flickr_aes.read_manifest(tmp_path)
    ratings = scored("ann", (5, 5, 5, 5, 5))
    raw = write(tmp_path / "raw", ratings, without=tuple(image for _, image, _ in ratings))
    with pytest.raises(ValueError, match=r"none of the rated images .* extract FLICKR-AES-001\.zip"):
        flickr_aes.read_manifest(raw, raters=1, min_ratings=20)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "has columns none"),
        ("user, picture, stars\n", "has columns user, picture, stars"),
        ("worker, imagePair, score\n", "holds no ratings"),
        ("worker, imagePair, score\nann, a.jpg, 6\n", "line 2 of .* 'ann, a.jpg, 6'"),
        ("worker, imagePair, score\nann, a.jpg, 3\nann, b.jpg\n", "line 3 of .* a score of 1 to 5"),
    ],
)
def test_a_broken_file_of_ratings_is_named_in_one_sentence(tmp_path: Path, text: str, sentence: str) -> None:
    (tmp_path / "FLICKR-AES_image_labeled_by_each_worker.csv").write_text(text)
    with pytest.raises(ValueError, match=sentence):
        flickr_aes.read_manifest(tmp_path)


def test_a_standin_passes_fedpers_filters_and_shares_images(tmp_path: Path) -> None:
    flickr_aes.write_synthetic(SyntheticImages(users=6, size=32, images_per_user=120), tmp_path)
    listing = flickr_aes.read_manifest(tmp_path, raters=3)
    assert set(Counter(listing.users.tolist()).values()) == {132}
    everyone = flickr_aes.read_manifest(tmp_path, raters=listing.notes["workers"]["pass the filters"])
    assert len(everyone.source) < len(everyone)
