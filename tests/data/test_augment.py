"""Crops, flips, padding and resizing against plain loops over images and pixels."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from manyeyes.data.augment import Augment

MEAN, STD = np.array([0.5, 0.4, 0.3]), np.array([0.25, 0.2, 0.1])
TOP = np.nextafter(np.float32(1), np.float32(0))  # the largest number that a generator gives


def photos(seed: int, count: int, height: int, width: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, height, width, 3), dtype=np.uint8)


def by_hand(augment: Augment, images: np.ndarray, dice: np.ndarray) -> np.ndarray:
    """One image after another: pad, crop at (top, left), mirror, normalise, channels first."""
    out = []
    for image, (top, left, across, down) in zip(images, dice.astype(np.float64), strict=True):
        black = np.zeros((image.shape[0] + 2 * augment.pad, image.shape[1] + 2 * augment.pad, 3))
        black[augment.pad : augment.pad + image.shape[0], augment.pad : augment.pad + image.shape[1]] = image
        height, width = (augment.crop, augment.crop) if augment.crop else image.shape[:2]
        y, x = int(top * (black.shape[0] - height + 1)), int(left * (black.shape[1] - width + 1))
        piece = black[y : y + height, x : x + width]
        if augment.flip_horizontal and across < 0.5:
            piece = piece[:, ::-1]
        if augment.flip_vertical and down < 0.5:
            piece = piece[::-1]
        out.append(((piece / 255 - MEAN) / STD).transpose(2, 0, 1))
    return np.array(out)


@settings(deadline=None, max_examples=80)
@given(
    st.integers(0, 9999), st.integers(1, 6), st.integers(1, 9), st.integers(1, 9), st.integers(0, 9),
    st.integers(0, 3), st.booleans(), st.booleans(),
)  # fmt: skip
def test_training_equals_a_loop_over_images(
    seed: int, count: int, height: int, width: int, crop: int, pad: int, across: bool, down: bool
) -> None:
    crop = min(crop, height + 2 * pad, width + 2 * pad)
    augment = Augment(crop, pad, across, down, mean=tuple(MEAN), std=tuple(STD))
    augment.check(height, width)
    images = photos(seed, count, height, width)
    dice = np.random.default_rng(seed).random((count, 4), np.float32)
    found = augment.train(torch.from_numpy(images), torch.from_numpy(dice) if augment.dice else None)
    np.testing.assert_allclose(found.numpy(), by_hand(augment, images, dice), atol=1e-5)


def test_the_largest_number_still_falls_inside_the_image() -> None:
    for length in range(1, 600):
        images = torch.zeros(1, 1, length, 3, dtype=torch.uint8)
        images[..., -1, :] = 255
        pixel = Augment(crop=1).train(images, torch.full((1, 4), float(TOP)))
        assert pixel.flatten().tolist() == [2, 2, 2], length


def test_every_place_and_both_mirrors_are_equally_likely() -> None:
    """5 sigma over 20,000 draws: nine places of a 3-pixel crop in 5 x 5, and half of them mirrored."""
    dice = torch.from_numpy(np.random.default_rng(0).random((20_000, 4), np.float32))
    image = torch.arange(25, dtype=torch.uint8).view(1, 5, 5, 1).expand(20_000, 5, 5, 3)
    seen = Augment(crop=3, flip_horizontal=True).train(image, dice)[:, 0, 0]
    corner = ((seen * 0.25 + 0.5) * 255).round().long()
    mirrored = corner[:, 0] > corner[:, 2]
    places = torch.bincount(torch.where(mirrored, corner[:, 2], corner[:, 0]))
    places = places[places > 0].double()
    assert len(places) == 9
    assert ((places - 20_000 / 9).abs() < 5 * (20_000 / 9 * 8 / 9) ** 0.5).all()
    assert abs(int(mirrored.sum()) - 10_000) < 5 * 5000**0.5


def test_nothing_random_needs_no_dice() -> None:
    assert Augment().dice == 0
    for augment in (Augment(crop=2), Augment(pad=1), Augment(flip_horizontal=True), Augment(flip_vertical=True)):
        assert augment.dice == 4


def test_evaluation_is_the_whole_image_where_training_sees_its_size() -> None:
    images = photos(0, 2, 4, 6)
    expected = ((images / 255 - 0.5) / 0.25).transpose(0, 3, 1, 2)
    for augment in (Augment(), Augment(pad=2, flip_horizontal=True)):
        np.testing.assert_allclose(augment.evaluate(torch.from_numpy(images)).numpy(), expected, atol=1e-6)
    square = Augment(crop=4).evaluate(torch.from_numpy(images[:, :, :4]))
    np.testing.assert_allclose(square.numpy(), expected[..., :4], atol=1e-6)


def triangle(length: int, size: int) -> np.ndarray:
    """The weights [size, length] of bilinear resizing, the triangle widened where it shrinks."""
    ratio = length / size
    reach = max(ratio, 1.0)
    centres = (np.arange(size) + 0.5) * ratio
    weights = np.maximum(0, 1 - np.abs(np.arange(length) + 0.5 - centres[:, None]) / reach)
    return weights / weights.sum(1, keepdims=True)


@pytest.mark.parametrize(("height", "width", "crop"), [(8, 8, 4), (9, 7, 4), (3, 3, 5), (6, 10, 6)])
def test_evaluation_resizes_the_whole_image_to_the_crop(height: int, width: int, crop: int) -> None:
    images = photos(1, 2, height, width)
    pixels = ((images / 255 - 0.5) / 0.25).transpose(0, 3, 1, 2)
    expected = triangle(height, crop) @ pixels @ triangle(width, crop).T
    found = Augment(crop=crop).evaluate(torch.from_numpy(images))
    np.testing.assert_allclose(found.numpy(), expected, atol=1e-5)


def test_refuses_a_crop_that_does_not_fit() -> None:
    with pytest.raises(ValueError, match="crop of 6"):
        Augment(crop=6, pad=1).check(3, 8)
    Augment(crop=5, pad=1).check(3, 8)


@pytest.mark.parametrize("numbers", [{"crop": -1}, {"pad": -1}, {"std": (0.0, 1.0, 1.0)}])
def test_refuses_a_number_out_of_bounds(numbers: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(numbers))):
        Augment(**numbers).check(8, 8)
