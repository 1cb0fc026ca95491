"""The images that a run keeps for its report."""

from __future__ import annotations

import base64
import io
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from manyeyes.algorithms import fedavg
from manyeyes.components import WeightUniformly
from manyeyes.core.population import Population, SingleLabels
from manyeyes.data.synthetic.dataset import SyntheticImages, make_synthetic
from manyeyes.privacy.mechanisms import CentralDP
from manyeyes.training.example_images import example_images
from manyeyes.training.run_files import EXAMPLE_IMAGES_FILE
from manyeyes.training.run_reader import read_run
from manyeyes.training.train import train

CLASSES = ("cat", "dog")


@pytest.fixture
def population() -> Population:
    """Return six images of one gray level each, 10 to 60, of two users: cat, cat, dog and dog, dog, cat."""
    images = np.repeat(np.arange(10, 70, 10), 4 * 4 * 3).astype(np.uint8).reshape(6, 4, 4, 3)
    return Population.from_arrays(
        images, SingleLabels(np.array([0, 0, 1, 1, 1, 0]), CLASSES), np.array([0, 0, 0, 1, 1, 1])
    )


def gray_level(entry: dict[str, object]) -> int:
    picture = Image.open(io.BytesIO(base64.b64decode(str(entry["data"]))))
    return int(np.asarray(picture)[0, 0, 0])


def test_typical_and_misclassified_images_of_a_class_are_those_with_the_most_and_least_probability(
    population: Population,
) -> None:
    """The margins of cat over dog; the probability of cat is its logistic function."""
    margins = np.array([3.0, 1.0, -2.0, 4.0, -1.0, -3.0])
    images = example_images(population, np.arange(6), np.stack([margins, np.zeros(6)], axis=1))["images"]
    of_class = [(e["heading"], e["is_correct"], gray_level(e)) for e in images if e["by"] == "class"]
    assert of_class == [
        ("cat", True, 10), ("cat", True, 20), ("cat", False, 60),
        ("dog", True, 30), ("dog", True, 50), ("dog", False, 40),
    ]  # fmt: skip
    assert images[0]["probability"] == pytest.approx(1 / (1 + np.exp(-3)), abs=1e-3)


def test_images_of_users_are_those_of_the_user_with_mistakes(population: Population) -> None:
    margins = np.array([3.0, 1.0, -2.0, 4.0, -1.0, -3.0])  # both mistakes are of the second user
    images = example_images(population, np.arange(6), np.stack([margins, np.zeros(6)], axis=1))["images"]
    of_user = [(e["heading"], e["predicted"], gray_level(e)) for e in images if e["by"] == "user"]
    assert of_user == [("user 1", "cat", 40), ("user 1", "dog", 60), ("user 1", "dog", 50)]


@pytest.fixture
def synthetic() -> Population:
    return make_synthetic(SyntheticImages(users=4, images_per_user=8, size=32, coarse=2, fine=4, seed=1))


def test_a_run_keeps_images_that_its_report_can_read(synthetic: Population, tmp_path: Path) -> None:
    train(synthetic, "linear", fedavg(cohort_size=2), rounds=1, folder=tmp_path / "run", threads=1)
    run = read_run(tmp_path / "run")
    assert run.problems == ()
    assert {entry["class"] for entry in run.example_images} <= set(synthetic.classes)
    assert len(run.example_images) > 0


def test_a_private_run_keeps_no_image(synthetic: Population, tmp_path: Path) -> None:
    private = CentralDP(epsilon=0, noise_multiplier=1.0, delta=1e-3)
    algorithm = replace(fedavg(cohort_size=2), privacy=private, client_weighting=WeightUniformly())
    train(synthetic, "linear", algorithm, rounds=1, folder=tmp_path / "run", threads=1)
    assert not (tmp_path / "run" / EXAMPLE_IMAGES_FILE).exists()


def test_a_run_can_be_told_to_keep_no_image(synthetic: Population, tmp_path: Path) -> None:
    train(
        synthetic, "linear", fedavg(cohort_size=2), rounds=1, folder=tmp_path / "run", threads=1, example_images=False
    )
    assert not (tmp_path / "run" / EXAMPLE_IMAGES_FILE).exists()


@pytest.mark.parametrize("damage", [{"data": "no base64"}, {"format": "svg"}, {"width": "wide"}, {"heading": 3}])
def test_a_damaged_image_is_left_out_and_named(damage: dict[str, object], tmp_path: Path) -> None:
    picture = io.BytesIO()
    Image.new("RGB", (2, 2)).save(picture, "png")
    data = base64.b64encode(picture.getvalue()).decode()
    texts = {"heading": "cat", "by": "class", "class": "cat", "predicted": "dog", "format": "png", "data": data}
    entry = {**texts, "width": 2, "probability": 0.5, "is_correct": False}
    (tmp_path / EXAMPLE_IMAGES_FILE).write_text(json.dumps({"images": [entry, entry | damage]}))
    run = read_run(tmp_path)
    assert run.example_images == [entry]
    assert run.problems == (f"{EXAMPLE_IMAGES_FILE} is damaged: some images are missing",)
