"""Images on the device: the same ones, with their labels, where they fit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from manyeyes.core.population import Population, SingleLabels
from manyeyes.engines.client_step import fetch
from manyeyes.engines.images import DeviceImages, image_bytes, load, place_images

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


def colored(count: int = 40) -> Population:
    """Photos whose color is (row, label, owner), and a view of some of them."""
    rng = np.random.default_rng(0)
    labels, owners = rng.integers(0, 4, count), rng.integers(0, 6, count)
    images = np.empty((count, 2, 3, 3), np.uint8)
    images[:] = np.stack([np.arange(count), labels, owners], 1)[:, None, None, :]
    population = Population.from_arrays(images, SingleLabels(labels, tuple("abcd")), owners)
    return population.filter(rng.random(count) < 0.6)


@pytest.mark.parametrize("chunk", [1, 100, 2**20])  # one image at a time, some, all
def test_loaded_images_stay_with_their_labels_and_users(chunk: int) -> None:
    population = colored()
    loaded = load(population, CPU, chunk)
    assert isinstance(loaded.images, DeviceImages)
    examples = np.random.default_rng(1).integers(0, len(population), 30)
    images, targets = fetch(loaded, examples, CPU)
    assert images.dtype == torch.uint8
    assert images[:, 0, 0, 0].tolist() == population.image_indices[examples].tolist()
    assert images[:, 1, 2, 1].tolist() == targets.tolist()
    assert [loaded.user_name(u) for u in loaded.owners(examples)] == [
        str(owner) for owner in images[:, 0, 0, 2].tolist()
    ]


def test_only_the_views_own_images_are_loaded_and_each_once() -> None:
    population = colored()
    twice = population.filter(np.arange(len(population)) < 3)
    loaded = load(replace(twice, image_indices=twice.image_indices[[0, 0, 1]]), CPU)
    assert loaded.images.shape == (2, 2, 3, 3)
    assert image_bytes(loaded) == 2 * 18


def test_resident_images_are_an_array_to_the_population() -> None:
    population = colored()
    loaded = load(population, CPU)
    assert loaded.image_shape == population.image_shape
    np.testing.assert_array_equal(loaded.pixels(np.array([3, 0, 3])), population.pixels(np.array([3, 0, 3])))
    assert loaded.images[2:4].shape == (2, 2, 3, 3)


@pytest.mark.parametrize("place", ["auto", "device", "host"])
def test_on_a_cpu_images_stay_where_they_are(place: str) -> None:
    population = colored()
    assert place_images([population], place, CPU) == [population]


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A GPU of so many free bytes; what is loaded to it is told."""
    monkeypatch.setattr("manyeyes.engines.images.load", lambda population, device: (device.type, population))

    def has(free: int) -> None:
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (free, 2 * free))

    return has


@pytest.mark.parametrize(
    ("shares", "loaded"), [(3.4, [True, True]), (3.3, [True, False]), (1.7, [True, False]), (1.6, [False, False])]
)
def test_auto_loads_what_fits_into_six_tenths_of_the_free_memory(gpu: Any, shares: float, loaded: list[bool]) -> None:
    population = colored()
    gpu(int(shares * image_bytes(population)))
    assert [isinstance(found, tuple) for found in place_images([population, population], "auto", CUDA)] == loaded


def test_device_fills_the_free_memory_and_refuses_more(gpu: Any) -> None:
    population = colored()
    gpu(2 * image_bytes(population))
    assert place_images([population, population], "device", CUDA) == [("cuda", population)] * 2
    gpu(2 * image_bytes(population) - 1)
    with pytest.raises(ValueError, match=r"^resident is device and the images take 0.0 GiB of 0.0 .*: choose auto or"):
        place_images([population, population], "device", CUDA)


def test_host_leaves_the_gpu_alone(gpu: Any) -> None:
    population = colored()
    gpu(10**9)
    assert place_images([population], "host", CUDA) == [population]
