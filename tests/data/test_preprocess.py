"""Crops, flips, padding and resizing against plain loops over images and pixels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from manyeyes.data.preprocess import Preprocess

MEAN, STD = np.array([0.5, 0.4, 0.3]), np.array([0.25, 0.2, 0.1])
TOP = np.nextafter(np.float32(1), np.float32(0))  # the largest number that a generator gives


def photos(seed: int, count: int, height: int, width: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, height, width, 3), dtype=np.uint8)


def by_hand(augment: Preprocess, images: np.ndarray, dice: np.ndarray) -> np.ndarray:
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
    augment = Preprocess(crop, pad, across, down, mean=tuple(MEAN), std=tuple(STD))
    augment.check(height, width)
    images = photos(seed, count, height, width)
    dice = np.random.default_rng(seed).random((count, 4), np.float32)
    found = augment.augment(torch.from_numpy(images), torch.from_numpy(dice) if augment.num_uniforms else None)
    np.testing.assert_allclose(found.numpy(), by_hand(augment, images, dice), atol=1e-5)


def zoomed_by_hand(augment: Preprocess, image: np.ndarray, dice: np.ndarray) -> np.ndarray:
    """One image: the first of ten windows that fits, else the middle one; then every pixel from the four around it."""
    image = np.pad(image, ((augment.pad, augment.pad), (augment.pad, augment.pad), (0, 0))).astype(np.float64)
    (height, width), (narrow, broad) = image.shape[:2], augment.ratio
    high, wide = min(height, max(1, round(width / narrow))), min(width, max(1, round(height * broad)))
    top, left = (height - high) // 2, (width - wide) // 2
    for share, shape in zip(dice[4:14], dice[14:24], strict=True):
        area = height * width * (augment.scale[0] + share * (augment.scale[1] - augment.scale[0]))
        ratio = narrow * (broad / narrow) ** shape
        h, w = round((area / ratio) ** 0.5), round((area * ratio) ** 0.5)
        if 1 <= h <= height and 1 <= w <= width:
            high, wide = h, w
            top, left = int(dice[0] * (height - h + 1)), int(dice[1] * (width - w + 1))
            break
    piece = image[top : top + high, left : left + wide]
    sides = [augment.crop or length - 2 * augment.pad for length in (height, width)]
    out = np.empty((*sides, 3))
    for i, j in np.ndindex(*sides):
        y = min(max((i + 0.5) * high / sides[0] - 0.5, 0), high - 1)
        x = min(max((j + 0.5) * wide / sides[1] - 0.5, 0), wide - 1)
        a, b, c, d = int(y), min(int(y) + 1, high - 1), int(x), min(int(x) + 1, wide - 1)
        above = (1 - (x - c)) * piece[a, c] + (x - c) * piece[a, d]
        below = (1 - (x - c)) * piece[b, c] + (x - c) * piece[b, d]
        out[i, j] = (1 - (y - a)) * above + (y - a) * below
    out = out[:, ::-1] if augment.flip_horizontal and dice[2] < 0.5 else out
    out = out[::-1] if augment.flip_vertical and dice[3] < 0.5 else out
    return ((out / 255 - MEAN) / STD).transpose(2, 0, 1)


SHARES = st.sampled_from([(0.05, 1.0), (0.08, 0.3), (0.9, 1.0), (1.0, 1.0)])
RATIOS = st.sampled_from([(3 / 4, 4 / 3), (1.0, 1.0), (0.2, 0.5), (3.0, 3.0)])


@settings(deadline=None, max_examples=80)
@given(
    st.integers(0, 9999), st.integers(1, 5), st.integers(1, 12), st.integers(1, 12), st.integers(0, 14),
    st.integers(0, 2), st.booleans(), st.booleans(), SHARES, RATIOS,
)  # fmt: skip
def test_a_random_resized_crop_equals_a_loop_over_images_and_pixels(
    seed: int, count: int, height: int, width: int, crop: int, pad: int, across: bool, down: bool,
    scale: tuple[float, float], ratio: tuple[float, float],
) -> None:  # fmt: skip
    augment = Preprocess(crop, pad, across, down, scale, ratio, mean=tuple(MEAN), std=tuple(STD))
    augment.check(height, width)
    images = photos(seed, count, height, width)
    dice = np.random.default_rng(seed).random((count, augment.num_uniforms), np.float32)
    dice[0, :2] = TOP
    found = augment.augment(torch.from_numpy(images), torch.from_numpy(dice))
    expected = [zoomed_by_hand(augment, image, row) for image, row in zip(images, dice.astype(np.float64), strict=True)]
    np.testing.assert_allclose(found.numpy(), np.array(expected), atol=1e-5)


def test_a_window_of_the_whole_image_is_the_image() -> None:
    images = torch.from_numpy(photos(3, 2, 6, 6))
    augment = Preprocess(crop=6, scale=(1.0, 1.0), ratio=(1.0, 1.0))
    torch.testing.assert_close(augment.augment(images, torch.rand(2, augment.num_uniforms)), augment.evaluate(images))


def test_an_image_without_a_window_that_fits_shows_the_middle_of_an_allowed_shape() -> None:
    """1 x 8 pixels and squares only: none of half the area fits, the middle one is the fourth pixel."""
    images = torch.arange(8, dtype=torch.uint8).view(1, 1, 8, 1).expand(1, 1, 8, 3)
    augment = Preprocess(crop=1, scale=(0.5, 0.5), ratio=(1.0, 1.0), mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0))
    assert (augment.augment(images, torch.full((1, 24), 0.9)) * 255).flatten().tolist() == pytest.approx([3, 3, 3])


def test_shares_of_the_area_and_ratios_are_drawn_uniformly() -> None:
    """Mean area 0.3 and mean log ratio 0 of windows that always fit, from the slopes of an image that is a ramp."""
    dice = torch.from_numpy(np.random.default_rng(0).random((4000, 24), np.float32))
    steps = torch.arange(101)
    ramp = torch.stack([*torch.meshgrid(steps, steps, indexing="ij"), steps.expand(101, 101)], 2).to(torch.uint8)
    augment = Preprocess(crop=2, scale=(0.1, 0.5), mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0))
    seen = 255 * augment.augment(ramp.expand(4000, 101, 101, 3), dice).double()
    high, wide = 2 * (seen[:, 0, 1, 0] - seen[:, 0, 0, 0]), 2 * (seen[:, 1, 0, 1] - seen[:, 1, 0, 0])
    share, ratio = high * wide / 101**2, wide / high
    assert share.mean().item() == pytest.approx(0.3, abs=5 * 0.4 / 12**0.5 / 4000**0.5)
    assert share.min() > 0.09 and share.max() < 0.51
    assert ratio.log().mean().item() == pytest.approx(0, abs=5 * 0.575 / 12**0.5 / 4000**0.5)
    assert ratio.min() > 0.72 and ratio.max() < 1.39


def test_the_largest_number_still_falls_inside_the_image() -> None:
    for length in range(1, 600):
        images = torch.zeros(1, 1, length, 3, dtype=torch.uint8)
        images[..., -1, :] = 255
        pixel = Preprocess(crop=1).augment(images, torch.full((1, 4), float(TOP)))
        assert pixel.flatten().tolist() == [2, 2, 2], length


def test_every_place_and_both_mirrors_are_equally_likely() -> None:
    """5 sigma over 20,000 draws: nine places of a 3-pixel crop in 5 x 5, and half of them mirrored."""
    dice = torch.from_numpy(np.random.default_rng(0).random((20_000, 4), np.float32))
    image = torch.arange(25, dtype=torch.uint8).view(1, 5, 5, 1).expand(20_000, 5, 5, 3)
    seen = Preprocess(crop=3, flip_horizontal=True).augment(image, dice)[:, 0, 0]
    corner = ((seen * 0.25 + 0.5) * 255).round().long()
    mirrored = corner[:, 0] > corner[:, 2]
    places = torch.bincount(torch.where(mirrored, corner[:, 2], corner[:, 0]))
    places = places[places > 0].double()
    assert len(places) == 9
    assert ((places - 20_000 / 9).abs() < 5 * (20_000 / 9 * 8 / 9) ** 0.5).all()
    assert abs(int(mirrored.sum()) - 10_000) < 5 * 5000**0.5


def test_nothing_random_needs_no_dice() -> None:
    assert Preprocess().num_uniforms == 0
    for augment in (
        Preprocess(crop=2),
        Preprocess(pad=1),
        Preprocess(flip_horizontal=True),
        Preprocess(flip_vertical=True),
    ):
        assert augment.num_uniforms == 4
    assert Preprocess(scale=(0.1, 1.0)).num_uniforms == 24


def test_evaluation_is_the_whole_image_where_training_sees_its_size() -> None:
    images = photos(0, 2, 4, 6)
    expected = ((images / 255 - 0.5) / 0.25).transpose(0, 3, 1, 2)
    for augment in (Preprocess(), Preprocess(pad=2, flip_horizontal=True)):
        np.testing.assert_allclose(augment.evaluate(torch.from_numpy(images)).numpy(), expected, atol=1e-6)
    square = Preprocess(crop=4).evaluate(torch.from_numpy(images[:, :, :4]))
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
    found = Preprocess(crop=crop).evaluate(torch.from_numpy(images))
    np.testing.assert_allclose(found.numpy(), expected, atol=1e-5)


def test_refuses_a_crop_that_does_not_fit() -> None:
    with pytest.raises(ValueError, match="crop of 6"):
        Preprocess(crop=6, pad=1).check(3, 8)
    Preprocess(crop=5, pad=1).check(3, 8)
    Preprocess(crop=6, scale=(0.1, 1.0)).check(3, 8)  # which is enlarged


@pytest.mark.parametrize(
    "numbers",
    [
        {"crop": -1}, {"pad": -1}, {"std": (0.0, 1.0, 1.0)}, {"std": (1.0,)}, {"mean": (0.5, 0.5)},
        {"scale": (0.0, 1.0)}, {"scale": (0.5, 0.4)}, {"scale": (0.5, 1.1)}, {"ratio": (0.0, 1.0)}, {"ratio": (2.0, 1)},
    ],
)  # fmt: skip
def test_refuses_a_number_out_of_bounds(numbers: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(numbers))):
        Preprocess(**numbers).check(8, 8)
