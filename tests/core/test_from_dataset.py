"""Populations from the datasets of other libraries: the same pixels, labels and users as in the source."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from torch import nn
from torch.utils.data import Dataset, TensorDataset

import manyeyes as me
from manyeyes.core.from_dataset import LazyImages, as_pixels
from manyeyes.core.labels import make_labels

COUNT = 12
PIXELS = np.random.default_rng(0).integers(0, 256, (COUNT, 8, 8, 3), np.uint8)
LABELS = np.arange(COUNT) % 3
USERS = np.arange(COUNT) % 2
ORDER = np.argsort(USERS, kind="stable")  # of a population: by user


class Pictures(Dataset[Any]):
    """Tuples of a Pillow image and a class, with torchvision's attributes."""

    classes = ("a", "b", "c")

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, row: int) -> tuple[Any, int]:
        return Image.fromarray(PIXELS[row]), int(LABELS[row])


def assert_same(population: me.Population, classes: tuple[str, ...]) -> None:
    assert np.array_equal(population.pixels(np.arange(COUNT)), PIXELS[ORDER])
    assert isinstance(population.labels, me.SingleLabels)
    assert population.labels.ids.tolist() == LABELS[ORDER].tolist()
    assert population.num_examples.tolist() == [6, 6]
    assert population.classes == classes


@pytest.mark.parametrize("lazy", [None, True])
def test_a_dataset_of_pytorch(lazy: bool | None) -> None:
    assert_same(me.Population.from_dataset(Pictures(), user=USERS, lazy=lazy), ("a", "b", "c"))


def test_tensors_of_pytorch_with_channels_first() -> None:
    images = torch.from_numpy(PIXELS).permute(0, 3, 1, 2).float() / 255
    dataset = TensorDataset(images, torch.from_numpy(LABELS), torch.from_numpy(USERS))
    assert_same(me.Population.from_dataset(dataset, user=2, label=1), ("0", "1", "2"))


def test_a_dataset_of_the_hugging_face_hub_with_its_class_names_and_split() -> None:
    features = datasets.Features(
        {
            "img": datasets.Image(),
            "label": datasets.ClassLabel(names=["x", "y", "z"]),
            "writer": datasets.Value("int64"),
        }
    )
    images = [Image.fromarray(pixels) for pixels in PIXELS]
    dataset = datasets.Dataset.from_dict({"img": images, "label": LABELS, "writer": USERS}, features)
    population = me.Population.from_dataset(dataset, user="writer", split=["train", "test"] * 6)
    assert_same(population, ("x", "y", "z"))
    assert np.asarray(population.columns["split"]).tolist() == ["train"] * 6 + ["test"] * 6


def test_a_mapping_of_arrays() -> None:
    arrays = {"image": PIXELS, "label": LABELS, "user": USERS}
    assert_same(me.Population.from_dataset(arrays, user="user"), ("0", "1", "2"))
    assert_same(me.Population.from_dataset(PIXELS, user=USERS, label=LABELS), ("0", "1", "2"))


@pytest.mark.parametrize("lazy", [None, True])
def test_a_data_frame_of_paths_in_three_lines(tmp_path: Path, lazy: bool | None) -> None:
    for row, pixels in enumerate(PIXELS):
        Image.fromarray(pixels).save(tmp_path / f"{row}.png")
    paths = [str(tmp_path / f"{row}.png") for row in range(COUNT)]
    frame = pd.DataFrame({"path": paths, "label": [*"abc"] * 4, "user": USERS})
    population = me.Population.from_dataset(frame, user="user", load=me.read_image, lazy=lazy)
    assert isinstance(population.images, LazyImages) == bool(lazy)
    assert_same(population, ("a", "b", "c"))
    result = me.train(population, "linear", me.fedavg(cohort_size=2), rounds=1, engine="reference")
    assert result.events[-1]["num_clients"] == 2


def test_lazy_images_are_read_when_they_are_used() -> None:
    read: list[int] = []

    def load(row: int) -> Any:
        read.append(row)
        return PIXELS[row]

    rows = {"image": np.arange(COUNT), "label": LABELS}
    population = me.Population.from_dataset(rows, user=USERS, load=load, lazy=True)
    assert read == [0]  # for the size
    population.pixels(np.array([1]))
    assert read == [0, 2]  # the second example of the first user


def test_grey_images_are_repeated_or_have_one_channel() -> None:
    grey = PIXELS[..., 0]
    arrays = {"image": grey, "label": LABELS}
    repeated = me.Population.from_dataset(arrays, user=USERS)
    assert np.array_equal(repeated.pixels(np.arange(COUNT)), np.repeat(grey[ORDER][..., None], 3, axis=3))
    population = me.Population.from_dataset(arrays, user=USERS, channels=1)
    assert np.array_equal(population.pixels(np.arange(COUNT)), grey[ORDER][..., None])


@pytest.mark.parametrize("engine", ["reference", "multiprocess"])
def test_a_model_of_one_channel_trains_on_grey_images(engine: str) -> None:
    population = me.Population.from_dataset(
        {"image": PIXELS[..., 0], "label": LABELS}, user=USERS, channels=1, split=["train"] * 8 + ["test"] * 4
    )
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Flatten(), nn.Linear(4 * 36, 3))
    result = me.train(population, model, me.fedavg(cohort_size=2), rounds=1, engine=engine, workers=1)
    assert result.events[-1]["num_clients"] == 2
    with pytest.raises(ValueError, match="the model expects 3 input channels and the images have 1"):
        me.train(population, "resnet18", me.fedavg(cohort_size=2), rounds=1)


def test_color_becomes_grey_by_its_luminance_as_in_pillow() -> None:
    expected = np.asarray(Image.fromarray(PIXELS[0]).convert("L"))
    np.testing.assert_allclose(as_pixels(PIXELS[0], channels=1)[..., 0].astype(int), expected.astype(int), atol=1)


def test_images_of_several_sizes_are_resized_or_refused() -> None:
    images = [PIXELS[0], np.full((6, 10, 3), 7, np.uint8)]
    rows = {"image": images, "label": ["a", "b"]}
    population = me.Population.from_dataset(rows, user=[0, 1], size=4)
    assert np.array_equal(population.pixels(np.array([1])), np.full((1, 4, 4, 3), 7))
    with pytest.raises(ValueError, match=r"image 1 of the dataset has 6 x 10 and others 8 x 8 pixels: give .* a size"):
        me.Population.from_dataset(rows, user=[0, 1])


def test_labels_are_names_numbers_lists_or_multi_hot_rows() -> None:
    assert make_labels(["b", "a"]).classes == ("a", "b")
    names, hot = make_labels([["b", "a"], ["b"]]), make_labels(np.array([[0, 1, 1], [1, 0, 0]]))
    assert (names.classes, names.counts().tolist()) == (("a", "b"), [1, 2])
    assert (hot.classes, hot.counts().tolist()) == (("0", "1", "2"), [1, 1, 1])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"user": "owner"}, r"no column 'owner' for user: choose from image, label, user$"),
        ({"label": "kind"}, r"no column 'kind' for label: choose from image, label, user$"),
        ({"image": ["a.png"] * COUNT}, r"is 'a.png': give load=manyeyes.read_image to read files"),
        ({"image": PIXELS - 0.5}, r"float64 values from -0.5 to 248.5: give uint8, or floats from 0 to 1"),
        ({"image": np.zeros((COUNT, 8, 8, 4), np.uint8)}, r"has shape \[8, 8, 4\]: give \[H, W\], \[H, W, 3\]"),
        ({"channels": 2}, r"channels is 2: give 3, or 1"),
        ({"classes": ["a"], "label": ["a", "b"] * 6}, r"labels have 'b', which is not one of the 1 classes"),
        ({"user": USERS[:3]}, r"images has 12 entries and users has 3"),
    ],
)
def test_a_mistake_is_one_sentence(changes: dict[str, Any], message: str) -> None:
    arguments = {"user": "user", **changes}
    arrays = {"image": list(PIXELS), "label": LABELS, "user": USERS}
    with pytest.raises(ValueError, match=message):
        me.Population.from_dataset(arrays, **arguments)
