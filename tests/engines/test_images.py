"""Images on the device: the same images with the same labels, if they fit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from manyeyes.core.population import Ints, Population, SingleLabels, fetch
from manyeyes.engines.images import DeviceImages, image_bytes, load_to_device, place_images
from tests.engines.engine_runs import CPU

CUDA = torch.device("cuda")


def make_colored_images(count: int = 40) -> Population:
    """Return a view of images whose color is (row, label, owner)."""
    rng = np.random.default_rng(0)
    labels, owners = rng.integers(0, 4, count), rng.integers(0, 6, count)
    images = np.empty((count, 2, 3, 3), np.uint8)
    images[:] = np.stack([np.arange(count), labels, owners], 1)[:, None, None, :]
    population = Population.from_arrays(images, SingleLabels(labels, tuple("abcd")), owners)
    return population.filter(rng.random(count) < 0.6)


@pytest.mark.parametrize("chunk_bytes", [1, 100, 2**20])  # one image, five, all
def test_loaded_images_stay_with_their_labels_and_users(chunk_bytes: int) -> None:
    population = make_colored_images()
    loaded = load_to_device(population, CPU, chunk_bytes)
    assert isinstance(loaded.images, DeviceImages)
    examples = np.random.default_rng(1).integers(0, len(population), 30)
    images, targets = fetch(loaded, examples, CPU)
    assert images.dtype == torch.uint8
    assert images[:, 0, 0, 0].tolist() == population.image_indices[examples].tolist()
    assert images[:, 1, 2, 1].tolist() == targets.tolist()
    assert [loaded.user_name(u) for u in loaded.owners(examples)] == [
        str(owner) for owner in images[:, 0, 0, 2].tolist()
    ]


def test_only_the_images_of_a_view_are_loaded_each_once() -> None:
    population = make_colored_images()
    view = population.filter(np.arange(len(population)) < 3)
    loaded = load_to_device(replace(view, image_indices=view.image_indices[[0, 0, 1]]), CPU)
    assert loaded.images.shape == (2, 2, 3, 3)
    assert image_bytes(loaded) == 2 * 18


def test_loaded_images_are_indexed_as_an_array() -> None:
    population = make_colored_images()
    loaded = load_to_device(population, CPU)
    assert loaded.image_shape == population.image_shape
    np.testing.assert_array_equal(loaded.pixels(np.array([3, 0, 3])), population.pixels(np.array([3, 0, 3])))
    assert loaded.images[2:4].shape == (2, 2, 3, 3)


@pytest.mark.parametrize("storage", ["auto", "gpu", "cpu"])
def test_images_are_not_moved_if_training_runs_on_a_cpu(storage: str) -> None:
    population = make_colored_images()
    assert place_images([population], storage, CPU) == [population]


@pytest.fixture
def set_free_bytes(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Set the free memory of a GPU that loads images as a tuple (device type, population)."""
    monkeypatch.setattr("manyeyes.engines.images.load_to_device", lambda population, device: (device.type, population))

    def set_bytes(num_bytes: int) -> None:
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (num_bytes, 2 * num_bytes))

    return set_bytes


@pytest.mark.parametrize(
    ("populations_that_fit", "loaded"),
    [(3.4, [True, True]), (3.3, [True, False]), (1.7, [True, False]), (1.6, [False, False])],
)
def test_auto_loads_what_fits_into_60_percent_of_the_free_memory(
    set_free_bytes: Any, populations_that_fit: float, loaded: list[bool]
) -> None:
    population = make_colored_images()
    set_free_bytes(int(populations_that_fit * image_bytes(population)))
    assert [isinstance(placed, tuple) for placed in place_images([population, population], "auto", CUDA)] == loaded


def test_gpu_fills_the_free_memory_and_refuses_more(set_free_bytes: Any) -> None:
    population = make_colored_images()
    set_free_bytes(2 * image_bytes(population))
    placed: list[Any] = list(place_images([population, population], "gpu", CUDA))
    assert placed == [("cuda", population)] * 2
    set_free_bytes(2 * image_bytes(population) - 1)
    with pytest.raises(ValueError, match=r"^engine.image_storage=gpu needs 0.0 GiB .* 0.0 GiB free: choose auto or"):
        place_images([population, population], "gpu", CUDA)


def test_cpu_loads_nothing_to_the_gpu(set_free_bytes: Any) -> None:
    population = make_colored_images()
    set_free_bytes(10**9)
    assert place_images([population], "cpu", CUDA) == [population]


def test_images_of_a_users_own_source_are_taken_from_it() -> None:
    class Source:
        shape, dtype = (5, 2, 2, 3), np.dtype(np.uint8)

        def __len__(self) -> int:
            return 5

        def take(self, rows: Ints, device: torch.device | None = None) -> torch.Tensor:
            return torch.from_numpy(rows.astype(np.uint8))[:, None, None, None].expand(-1, 2, 2, 3).to(device)

    population = Population.from_arrays(Source(), SingleLabels(np.zeros(5, int), ("a", "b")), np.zeros(5, int))
    assert population.pixels(np.array([3, 1]))[:, 0, 0, 0].tolist() == [3, 1]
    images, _ = fetch(population, np.array([4, 2]), torch.device("cpu"))
    assert images[:, 1, 1, 2].tolist() == [4, 2]
