"""The pixels of synthetic images: objects have their position and their class's appearance, and cameras differ."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn

from manyeyes.data.synthetic.dataset import SyntheticImages, make_synthetic
from manyeyes.data.synthetic.renderer import RenderedObjects, Scene, render, select
from manyeyes.data.synthetic.shapes import MAX_COARSE_CLASSES, appearances, silhouette_depth, texture, to_local
from manyeyes.data.synthetic.users import taxonomy


def gray_scene(num_images: int) -> Scene:
    """Return gray images by a perfect camera."""

    def flat(value: float, *shape: int) -> NDArray[Any]:
        return np.full((num_images, *shape), value, np.float32)

    return Scene(
        user=np.zeros(num_images, np.int64), number=np.arange(num_images), sky=flat(0.5, 3), ground=flat(0.5, 3),
        horizon=flat(0.5), relief=flat(0), light=flat(0, 2), gain=flat(1, 3), contrast=flat(1), vignette=flat(0),
        blur=flat(0), noise=flat(0),
    )  # fmt: skip


def white_objects(image: list[int], coarse: int = 0, x: float = 0.5, radius: float = 0.2) -> RenderedObjects:
    """Return white objects on the middle line of their images."""

    def flat(value: float, *shape: int) -> NDArray[Any]:
        return np.full((len(image), *shape), value, np.float32)

    return RenderedObjects(
        image=np.array(image, np.int64), coarse=np.full(len(image), coarse), appearance=flat(0.5, 4), x=flat(x),
        y=flat(0.5), radius=flat(radius), aspect_ratio=flat(1), rotation=flat(0), color=flat(1, 3),
        texture_color=flat(1, 3),
    )  # fmt: skip


def changed_pixels(scene: Scene, objects: RenderedObjects, size: int = 64) -> NDArray[Any]:
    """Return where the images differ from those without the objects [N, H, W]."""
    none = select(objects, np.zeros(0, np.int64))
    pair = [render(scene, o, size, seed=0).astype(int) for o in (objects, none)]
    return np.abs(pair[0] - pair[1]).max(3) > 40


def test_an_object_is_drawn_in_its_image_at_its_position() -> None:
    is_changed = changed_pixels(gray_scene(3), white_objects([1], x=0.7))
    assert not is_changed[0].any()
    assert not is_changed[2].any()
    rows, columns = np.nonzero(is_changed[1])
    assert columns.mean() / 64 == pytest.approx(0.7, abs=0.03)
    assert rows.mean() / 64 == pytest.approx(0.5, abs=0.03)


@pytest.mark.parametrize("size", [32, 64, 256])
def test_an_object_covers_the_same_fraction_of_the_image_at_every_size(size: int) -> None:
    fraction = changed_pixels(gray_scene(1), white_objects([0], coarse=2, radius=0.3), size).mean()
    assert fraction == pytest.approx(np.pi * (0.74 * 0.3) ** 2, rel=0.15)  # a pebble is nearly a disc of 0.74 radii


def test_an_object_across_the_border_is_cut_off() -> None:
    is_changed = changed_pixels(gray_scene(1), white_objects([0], x=0.0))
    assert is_changed[0, :, :12].any()
    assert not is_changed[0, :, 20:].any()


def test_later_objects_cover_earlier_ones() -> None:
    white_then_black = np.array([[1, 1, 1], [0, 0, 0]], np.float32)
    both = replace(white_objects([0, 0], coarse=2), color=white_then_black, texture_color=white_then_black)
    assert render(gray_scene(1), both, 64, seed=0)[0, 32, 32].tolist() == [0, 0, 0]


def test_an_image_does_not_depend_on_the_others_in_its_batch() -> None:
    scene, objects = gray_scene(5), white_objects([0, 1, 2, 3, 4])
    noisy = replace(scene, noise=np.full(5, 0.1, np.float32), relief=np.full(5, 0.1, np.float32))
    fourth = replace(select(objects, np.array([3])), image=np.array([0]))
    alone = render(select(noisy, slice(3, 4)), fourth, 64, seed=0)
    assert np.array_equal(render(noisy, objects, 64, seed=0)[3], alone[0])


def test_no_two_classes_have_the_same_silhouette_and_texture() -> None:
    ticks = np.linspace(-1.2, 1.2, 24, dtype=np.float32)
    u, v = np.meshgrid(ticks, ticks)
    at = to_local(u[None], v[None], np.full((1, 4), 0.5, np.float32))
    drawn = {(np.where(silhouette_depth(c, at) > 0, texture(c, at), -1)).tobytes() for c in range(MAX_COARSE_CLASSES)}
    assert len(drawn) == MAX_COARSE_CLASSES


def test_a_silhouette_stays_within_its_radius_and_fills_part_of_it() -> None:
    ticks = np.linspace(-1.5, 1.5, 96, dtype=np.float32)
    u, v = np.meshgrid(ticks, ticks)
    at = to_local(np.repeat(u[None], 50, 0), np.repeat(v[None], 50, 0), appearances(np.arange(50)))
    for coarse in range(17):
        solid = silhouette_depth(coarse, at) > 0
        assert not solid[:, u**2 + v**2 > 1.2**2].any(), coarse
        assert 0.15 < solid.mean() * 9 / 4 < 0.8, coarse


def test_fine_classes_of_a_coarse_class_look_different() -> None:
    classes = taxonomy(17, 1628, class_imbalance=1)
    pairs = np.column_stack([classes.parent, classes.appearance])
    assert len(np.unique(pairs, axis=0)) == 1628


def test_users_cameras_differ_more_than_one_users_images() -> None:
    population = make_synthetic(SyntheticImages(users=60, size=32, images_per_user=8), processes=1)
    color = population.pixels(np.arange(len(population))).mean((1, 2))
    warmth = (color[:, 0] - color[:, 2]).reshape(60, 8)
    chance_level = warmth.var(axis=1, ddof=1).mean() / 8
    assert warmth.mean(axis=1).var(ddof=1) > 3 * chance_level


@pytest.mark.slow
def test_a_convolution_tells_classes_apart_where_a_linear_model_does_not() -> None:
    population = make_synthetic(
        SyntheticImages(users=500, size=32, coarse=4, fine=8, images_per_user=7, alpha=1e6, class_imbalance=0),
        processes=1,
    )
    pixels = torch.from_numpy(population.pixels(np.arange(len(population)))).permute(0, 3, 1, 2).float() / 64 - 2
    labels = torch.from_numpy(population.labels.targets(np.arange(len(population))))

    def accuracy(model: nn.Module, rate: float) -> float:
        step = torch.optim.SGD(model.parameters(), rate, momentum=0.9)
        for epoch in range(3):
            order = torch.randperm(2800, generator=torch.Generator().manual_seed(epoch))
            for batch in order.split(32):
                step.zero_grad()
                nn.functional.cross_entropy(model(pixels[batch]), labels[batch]).backward()
                step.step()
        with torch.no_grad():
            return float((model(pixels[2800:]).argmax(1) == labels[2800:]).float().mean())

    torch.manual_seed(0)
    linear = accuracy(nn.Sequential(nn.Flatten(), nn.Linear(3072, 4)), 0.001)
    convolution = nn.Sequential(
        nn.Conv2d(3, 16, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 16, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(400, 64), nn.ReLU(), nn.Linear(64, 4),
    )  # fmt: skip
    assert accuracy(convolution, 0.02) > linear + 0.15
