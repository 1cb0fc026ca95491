"""Crops, flips, padding and resizing, compared with plain loops over images and pixels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from manyeyes.data.preprocess import Preprocess

MEAN, STD = np.array([0.5, 0.4, 0.3]), np.array([0.25, 0.2, 0.1])
MAX_UNIFORM = np.nextafter(np.float32(1), np.float32(0))  # the largest number that a generator returns


def random_images(seed: int, count: int, height: int, width: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, height, width, 3), dtype=np.uint8)


def reference_crop(augment: Preprocess, images: np.ndarray, uniforms: np.ndarray) -> np.ndarray:
    """Preprocess one image after another: pad, crop at (top, left), flip, normalize, channels first."""
    out = []
    for image, (top, left, horizontal, vertical) in zip(images, uniforms.astype(np.float64), strict=True):
        black = np.zeros((image.shape[0] + 2 * augment.pad, image.shape[1] + 2 * augment.pad, 3))
        black[augment.pad : augment.pad + image.shape[0], augment.pad : augment.pad + image.shape[1]] = image
        height, width = (augment.crop, augment.crop) if augment.crop else image.shape[:2]
        y, x = int(top * (black.shape[0] - height + 1)), int(left * (black.shape[1] - width + 1))
        window = black[y : y + height, x : x + width]
        if augment.flip_horizontal and horizontal < 0.5:
            window = window[:, ::-1]
        if augment.flip_vertical and vertical < 0.5:
            window = window[::-1]
        out.append(((window / 255 - MEAN) / STD).transpose(2, 0, 1))
    return np.array(out)


@settings(deadline=None, max_examples=80)
@given(
    st.integers(0, 9999), st.integers(1, 6), st.integers(1, 9), st.integers(1, 9), st.integers(0, 9),
    st.integers(0, 3), st.booleans(), st.booleans(),
)  # fmt: skip
def test_training_equals_a_loop_over_images(
    seed: int, count: int, height: int, width: int, crop: int, pad: int, horizontal: bool, vertical: bool
) -> None:
    crop = min(crop, height + 2 * pad, width + 2 * pad)
    augment = Preprocess(crop, pad, horizontal, vertical, mean=tuple(MEAN), std=tuple(STD))
    augment.check(height, width)
    images = random_images(seed, count, height, width)
    uniforms = np.random.default_rng(seed).random((count, 4), np.float32)
    output = augment.augment(torch.from_numpy(images), torch.from_numpy(uniforms) if augment.num_uniforms else None)
    np.testing.assert_allclose(output.numpy(), reference_crop(augment, images, uniforms), atol=1e-5)


def reference_resized_crop(augment: Preprocess, image: np.ndarray, uniforms: np.ndarray) -> np.ndarray:
    """Interpolate the first of ten windows that fits, else the center one, pixel by pixel."""
    image = np.pad(image, ((augment.pad, augment.pad), (augment.pad, augment.pad), (0, 0))).astype(np.float64)
    assert augment.scale is not None, "the crop is resized"
    (height, width), (low, high) = image.shape[:2], augment.ratio
    rows, columns = min(height, max(1, round(width / low))), min(width, max(1, round(height * high)))
    top, left = (height - rows) // 2, (width - columns) // 2
    for area_uniform, ratio_uniform in zip(uniforms[4:14], uniforms[14:24], strict=True):
        area = height * width * (augment.scale[0] + area_uniform * (augment.scale[1] - augment.scale[0]))
        ratio = low * (high / low) ** ratio_uniform
        h, w = round((area / ratio) ** 0.5), round((area * ratio) ** 0.5)
        if 1 <= h <= height and 1 <= w <= width:
            rows, columns = h, w
            top, left = int(uniforms[0] * (height - h + 1)), int(uniforms[1] * (width - w + 1))
            break
    window = image[top : top + rows, left : left + columns]
    sides = [augment.crop or length - 2 * augment.pad for length in (height, width)]
    out = np.empty((*sides, 3))
    for i, j in np.ndindex(*sides):
        y = min(max((i + 0.5) * rows / sides[0] - 0.5, 0), rows - 1)
        x = min(max((j + 0.5) * columns / sides[1] - 0.5, 0), columns - 1)
        a, b, c, d = int(y), min(int(y) + 1, rows - 1), int(x), min(int(x) + 1, columns - 1)
        above = (1 - (x - c)) * window[a, c] + (x - c) * window[a, d]
        below = (1 - (x - c)) * window[b, c] + (x - c) * window[b, d]
        out[i, j] = (1 - (y - a)) * above + (y - a) * below
    out = out[:, ::-1] if augment.flip_horizontal and uniforms[2] < 0.5 else out
    out = out[::-1] if augment.flip_vertical and uniforms[3] < 0.5 else out
    return ((out / 255 - MEAN) / STD).transpose(2, 0, 1)


SCALES = st.sampled_from([(0.05, 1.0), (0.08, 0.3), (0.9, 1.0), (1.0, 1.0)])
RATIOS = st.sampled_from([(3 / 4, 4 / 3), (1.0, 1.0), (0.2, 0.5), (3.0, 3.0)])


@settings(deadline=None, max_examples=80)
@given(
    st.integers(0, 9999), st.integers(1, 5), st.integers(1, 12), st.integers(1, 12), st.integers(0, 14),
    st.integers(0, 2), st.booleans(), st.booleans(), SCALES, RATIOS,
)  # fmt: skip
def test_a_random_resized_crop_equals_a_loop_over_images_and_pixels(
    seed: int, count: int, height: int, width: int, crop: int, pad: int, horizontal: bool, vertical: bool,
    scale: tuple[float, float], ratio: tuple[float, float],
) -> None:  # fmt: skip
    augment = Preprocess(crop, pad, horizontal, vertical, scale, ratio, mean=tuple(MEAN), std=tuple(STD))
    augment.check(height, width)
    images = random_images(seed, count, height, width)
    uniforms = np.random.default_rng(seed).random((count, augment.num_uniforms), np.float32)
    uniforms[0, :2] = MAX_UNIFORM
    output = augment.augment(torch.from_numpy(images), torch.from_numpy(uniforms))
    rows = uniforms.astype(np.float64)
    expected = [reference_resized_crop(augment, image, row) for image, row in zip(images, rows, strict=True)]
    np.testing.assert_allclose(output.numpy(), np.array(expected), atol=1e-5)


def test_a_window_of_the_whole_image_is_the_image() -> None:
    images = torch.from_numpy(random_images(3, 2, 6, 6))
    augment = Preprocess(crop=6, scale=(1.0, 1.0), ratio=(1.0, 1.0))
    torch.testing.assert_close(augment.augment(images, torch.rand(2, augment.num_uniforms)), augment.evaluate(images))


def test_without_a_window_that_fits_the_center_is_cropped_with_an_allowed_ratio() -> None:
    """1 x 8 pixels and squares only: none of half the area fits, and the center is the fourth pixel."""
    images = torch.arange(8, dtype=torch.uint8).view(1, 1, 8, 1).expand(1, 1, 8, 3)
    augment = Preprocess(crop=1, scale=(0.5, 0.5), ratio=(1.0, 1.0), mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0))
    assert (augment.augment(images, torch.full((1, 24), 0.9)) * 255).flatten().tolist() == pytest.approx([3, 3, 3])


def test_areas_and_log_ratios_are_uniform() -> None:
    """Windows that always fit have a mean area of 0.3 and a mean log ratio of 0, measured on a ramp."""
    uniforms = torch.from_numpy(np.random.default_rng(0).random((4000, 24), np.float32))
    steps = torch.arange(101)
    ramp = torch.stack([*torch.meshgrid(steps, steps, indexing="ij"), steps.expand(101, 101)], 2).to(torch.uint8)
    augment = Preprocess(crop=2, scale=(0.1, 0.5), mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0))
    output = 255 * augment.augment(ramp.expand(4000, 101, 101, 3), uniforms).double()
    height, width = 2 * (output[:, 0, 1, 0] - output[:, 0, 0, 0]), 2 * (output[:, 1, 0, 1] - output[:, 1, 0, 0])
    area, ratio = height * width / 101**2, width / height
    assert area.mean().item() == pytest.approx(0.3, abs=5 * 0.4 / 12**0.5 / 4000**0.5)
    assert area.min() > 0.09 and area.max() < 0.51
    assert ratio.log().mean().item() == pytest.approx(0, abs=5 * 0.575 / 12**0.5 / 4000**0.5)
    assert ratio.min() > 0.72 and ratio.max() < 1.39


def test_the_largest_random_number_stays_inside_the_image() -> None:
    for length in range(1, 600):
        images = torch.zeros(1, 1, length, 3, dtype=torch.uint8)
        images[..., -1, :] = 255
        pixel = Preprocess(crop=1).augment(images, torch.full((1, 4), float(MAX_UNIFORM)))
        assert pixel.flatten().tolist() == [2, 2, 2], length


def test_every_position_and_both_flips_are_equally_likely() -> None:
    """20,000 draws within 5 sigma: nine positions of a 3-pixel crop in 5 x 5, and half of them flipped."""
    uniforms = torch.from_numpy(np.random.default_rng(0).random((20_000, 4), np.float32))
    image = torch.arange(25, dtype=torch.uint8).view(1, 5, 5, 1).expand(20_000, 5, 5, 3)
    first_row = Preprocess(crop=3, flip_horizontal=True).augment(image, uniforms)[:, 0, 0]
    corner = ((first_row * 0.25 + 0.5) * 255).round().long()
    is_flipped = corner[:, 0] > corner[:, 2]
    counts = torch.bincount(torch.where(is_flipped, corner[:, 2], corner[:, 0]))
    counts = counts[counts > 0].double()
    assert len(counts) == 9
    assert ((counts - 20_000 / 9).abs() < 5 * (20_000 / 9 * 8 / 9) ** 0.5).all()
    assert abs(int(is_flipped.sum()) - 10_000) < 5 * 5000**0.5


def test_the_number_of_uniforms_is_0_without_random_operations() -> None:
    assert Preprocess().num_uniforms == 0
    for augment in (
        Preprocess(crop=2),
        Preprocess(pad=1),
        Preprocess(flip_horizontal=True),
        Preprocess(flip_vertical=True),
    ):
        assert augment.num_uniforms == 4
    assert Preprocess(scale=(0.1, 1.0)).num_uniforms == 24


def test_evaluation_uses_the_full_image_without_a_crop() -> None:
    images = random_images(0, 2, 4, 6)
    expected = ((images / 255 - 0.5) / 0.25).transpose(0, 3, 1, 2)
    for augment in (Preprocess(), Preprocess(pad=2, flip_horizontal=True)):
        np.testing.assert_allclose(augment.evaluate(torch.from_numpy(images)).numpy(), expected, atol=1e-6)
    square = Preprocess(crop=4).evaluate(torch.from_numpy(images[:, :, :4]))
    np.testing.assert_allclose(square.numpy(), expected[..., :4], atol=1e-6)


def resize_weights(length: int, size: int) -> np.ndarray:
    """Return the weights [size, length] of bilinear resizing; shrinking widens the triangle."""
    ratio = length / size
    reach = max(ratio, 1.0)
    centers = (np.arange(size) + 0.5) * ratio
    weights = np.maximum(0, 1 - np.abs(np.arange(length) + 0.5 - centers[:, None]) / reach)
    return weights / weights.sum(1, keepdims=True)


@pytest.mark.parametrize(("height", "width", "crop"), [(8, 8, 4), (9, 7, 4), (3, 3, 5), (6, 10, 6)])
def test_evaluation_resizes_the_full_image_to_the_crop(height: int, width: int, crop: int) -> None:
    images = random_images(1, 2, height, width)
    pixels = ((images / 255 - 0.5) / 0.25).transpose(0, 3, 1, 2)
    expected = resize_weights(height, crop) @ pixels @ resize_weights(width, crop).T
    output = Preprocess(crop=crop).evaluate(torch.from_numpy(images))
    np.testing.assert_allclose(output.numpy(), expected, atol=1e-5)


def test_a_crop_that_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match=r"preprocess\.crop is 6: set it to at most 5 for images of 3 x 8 pixels"):
        Preprocess(crop=6, pad=1).check(3, 8)
    Preprocess(crop=5, pad=1).check(3, 8)
    Preprocess(crop=6, scale=(0.1, 1.0)).check(3, 8)  # the image is enlarged


@pytest.mark.parametrize(
    "options",
    [
        {"crop": -1}, {"pad": -1}, {"std": (0.0, 1.0, 1.0)}, {"std": (1.0,)}, {"mean": (0.5, 0.5)},
        {"scale": (0.0, 1.0)}, {"scale": (0.5, 0.4)}, {"scale": (0.5, 1.1)}, {"ratio": (0.0, 1.0)}, {"ratio": (2.0, 1)},
    ],
)  # fmt: skip
def test_values_out_of_bounds_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=rf"preprocess\.{next(iter(options))} is"):
        Preprocess(**options).check(8, 8)
