"""Every kind of image file that people have: what is read of it, and what it is called."""

from __future__ import annotations

import io
import struct
import zlib
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from PIL import Image

from manyeyes.data.decode import UnreadableImage, decode, fit

RED, BLUE = (200, 30, 40), (20, 40, 210)


def picture(width: int = 32, height: int = 32) -> Image.Image:
    """Red above, blue below."""
    image = Image.new("RGB", (width, height), RED)
    image.paste(BLUE, (0, height // 2, width, height))
    return image


def saved(image: Image.Image, format: str = "JPEG", **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, format, **options)
    return file.getvalue()


def photo() -> bytes:
    """A JPEG with enough in it to be cut in two."""
    return saved(Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8)))


def colours(pixels: np.ndarray[Any, Any]) -> tuple[Any, Any]:
    """The colour in the middle of the upper and of the lower half."""
    side = len(pixels)
    return pixels[side // 4, side // 2], pixels[3 * side // 4, side // 2]


def assert_red_above_blue(pixels: np.ndarray[Any, Any], tolerance: int = 6) -> None:
    for found, wanted in zip(colours(pixels), (RED, BLUE), strict=True):
        np.testing.assert_allclose(found.astype(int), wanted, atol=tolerance)


@pytest.mark.parametrize("format", ["JPEG", "PNG", "BMP", "TIFF", "WEBP", "PPM"])
def test_a_plain_image_is_read_without_a_note(format: str) -> None:
    found = decode(saved(picture(), format), 32)
    assert found.notes == ()
    assert (found.pixels_HWC.shape, found.pixels_HWC.dtype) == ((32, 32, 3), np.uint8)
    assert_red_above_blue(found.pixels_HWC)


def test_an_image_that_has_the_size_is_not_changed() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (16, 16, 3), np.uint8)
    np.testing.assert_array_equal(decode(saved(Image.fromarray(pixels), "PNG"), 16).pixels_HWC, pixels)
    assert fit(pixels, 16) is pixels


def test_without_a_size_an_image_keeps_its_own() -> None:
    assert decode(saved(picture(20, 10)), None).pixels_HWC.shape == (10, 20, 3)


def test_an_image_of_another_shape_is_squeezed_not_cropped() -> None:
    wide = Image.new("RGB", (64, 32), RED)
    wide.paste(BLUE, (32, 0, 64, 32))
    pixels = decode(saved(wide, "PNG"), 16).pixels_HWC
    np.testing.assert_array_equal(pixels[8, [2, 13]], [RED, BLUE])


def test_a_fine_pattern_becomes_its_mean_when_it_shrinks() -> None:
    board = np.indices((64, 64)).sum(0) % 2 * np.uint8(255)
    pixels = decode(saved(Image.fromarray(board.astype(np.uint8)).convert("RGB"), "PNG"), 8).pixels_HWC
    np.testing.assert_allclose(pixels.astype(int), 127.5, atol=2)


def test_a_large_jpeg_shrinks_as_it_does_at_full_size() -> None:
    waves = np.sin(np.indices((600, 800)).sum(0) / 40)[..., None] * [90, 60, 30] + 128
    data = saved(Image.fromarray(waves.astype(np.uint8)), quality=95)
    whole = Image.open(io.BytesIO(data)).resize((32, 32), Image.Resampling.LANCZOS)
    np.testing.assert_allclose(decode(data, 32).pixels_HWC.astype(int), np.asarray(whole).astype(int), atol=3)


def test_cmyk_is_converted() -> None:
    found = decode(saved(picture().convert("CMYK"), quality=95), 32)
    assert found.notes == ("cmyk",)
    assert_red_above_blue(found.pixels_HWC)


@pytest.mark.parametrize(("format", "mode"), [("JPEG", "L"), ("PNG", "L"), ("PNG", "1")])
def test_greyscale_has_three_equal_channels(format: str, mode: str) -> None:
    found = decode(saved(picture().convert(mode), format), 32)
    assert found.notes == ("greyscale",)
    assert np.ptp(found.pixels_HWC, axis=2).max() == 0


def test_16_bits_keep_their_upper_8() -> None:
    ramp = (np.arange(256, dtype=np.uint16) * 256 + 77).reshape(16, 16)
    found = decode(saved(Image.fromarray(ramp), "PNG"), 16)
    assert found.notes == ("16-bit", "greyscale")
    np.testing.assert_array_equal(found.pixels_HWC[..., 0].ravel(), np.arange(256))


def test_a_palette_is_looked_up() -> None:
    found = decode(saved(picture().convert("P", palette=Image.Palette.ADAPTIVE), "PNG"), 32)
    assert found.notes == ("palette",)
    assert_red_above_blue(found.pixels_HWC)


def test_what_is_transparent_is_white() -> None:
    image = picture().convert("RGBA")
    image.putalpha(Image.fromarray(np.repeat(np.uint8([255, 0]), 16)[:, None].repeat(32, 1)))
    found = decode(saved(image, "PNG"), 32)
    assert found.notes == ("alpha",)
    np.testing.assert_array_equal(colours(found.pixels_HWC), [RED, (255, 255, 255)])


@pytest.mark.parametrize(
    ("orientation", "stored"),  # how a camera held so stores the upright picture: the inverse of what turns it upright
    [
        (2, Image.Transpose.FLIP_LEFT_RIGHT),
        (3, Image.Transpose.ROTATE_180),
        (4, Image.Transpose.FLIP_TOP_BOTTOM),
        (5, Image.Transpose.TRANSPOSE),
        (6, Image.Transpose.ROTATE_90),
        (7, Image.Transpose.TRANSVERSE),
        (8, Image.Transpose.ROTATE_270),
    ],
)
@pytest.mark.parametrize("format", ["JPEG", "PNG"])
def test_a_turned_camera_gives_an_upright_picture(format: str, orientation: int, stored: Image.Transpose) -> None:
    upright = picture(48, 32)
    upright.paste((240, 240, 240), (0, 0, 16, 8))  # so that no two orientations look alike
    exif = Image.Exif()
    exif[0x0112] = orientation
    found = decode(saved(upright.transpose(stored), format, exif=exif), None)
    assert found.notes == ("rotated",)
    np.testing.assert_allclose(found.pixels_HWC.astype(int), np.asarray(upright).astype(int), atol=60)


def test_broken_exif_costs_nothing() -> None:
    data = saved(picture(), exif=b"Exif\0\0nonsense that is no TIFF header")
    assert_red_above_blue(decode(data, 32).pixels_HWC)


def test_an_animation_gives_its_first_frame() -> None:
    frames = [picture(), Image.new("RGB", (32, 32), "green")]
    found = decode(saved(frames[0], "WEBP", save_all=True, append_images=frames[1:], lossless=True), 32)
    assert found.notes == ("animated",)
    assert_red_above_blue(found.pixels_HWC)


@pytest.mark.parametrize(
    ("format", "name", "notes"),
    [
        ("PNG", "a/b.jpg", ("wrong extension",)),
        ("JPEG", "b.PNG", ("wrong extension",)),
        ("JPEG", "b.JPG", ()),
        ("JPEG", "b", ()),
        ("PNG", "1234.jpg_original", ()),
    ],
)
def test_what_a_file_holds_counts_not_its_name(format: str, name: str, notes: tuple[str, ...]) -> None:
    found = decode(saved(picture(), format), 32, name)
    assert found.notes == notes
    assert_red_above_blue(found.pixels_HWC)


def test_a_jpeg_without_its_end_marker_is_whole() -> None:
    found = decode(photo()[:-2], None)
    assert found.notes == ("no end marker",)
    np.testing.assert_array_equal(found.pixels_HWC, decode(photo(), None).pixels_HWC)


def test_bytes_after_the_image_cost_nothing() -> None:
    np.testing.assert_array_equal(decode(photo() + b"more", None).pixels_HWC, decode(photo(), None).pixels_HWC)


def corrupt(data: bytes) -> bytes:
    """Noise in the middle."""
    half = len(data) // 2
    return data[:half] + np.random.default_rng(1).bytes(60) + data[half + 60 :]


def bomb(width: int, height: int) -> bytes:
    """A PNG of a few bytes that says it is huge."""

    def part(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + part(b"IHDR", head) + part(b"IDAT", zlib.compress(bytes(1000))) + part(b"IEND", b"")


def huge_jpeg() -> bytes:
    """A JPEG whose header says 60,000 x 60,000."""
    data = bytearray(photo())
    at = data.index(b"\xff\xc0")
    data[at + 5 : at + 9] = struct.pack(">HH", 60_000, 60_000)
    return bytes(data)


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (b"", "empty"),
        (b"<html>404 Not Found</html>" * 20, "not an image"),
        (bytes(1000), "not an image"),
        (photo()[: len(photo()) // 2], "truncated"),
        (photo()[:-40], "truncated"),
        (photo()[:100], "truncated"),
        (saved(Image.open(io.BytesIO(photo())), "PNG")[:2000], "truncated"),
        (saved(Image.open(io.BytesIO(photo())), "BMP")[:2000], "truncated"),
        (corrupt(photo()), "corrupt"),
        (corrupt(saved(Image.open(io.BytesIO(photo())), "PNG")), "corrupt"),
        (saved(picture(), "GIF")[:30], "corrupt"),
        (bomb(60_000, 60_000), "too large"),
        (huge_jpeg(), "too large"),
        (saved(Image.new("F", (8, 8)), "TIFF"), "float pixels"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "not an image"),
    ],
    ids=lambda value: value if isinstance(value, str) else str(len(value)),
)
def test_a_bad_file_is_refused_by_the_name_of_its_problem(data: bytes, kind: str) -> None:
    with pytest.raises(UnreadableImage, match=f"^{kind}$"):
        decode(data, 32)


def test_no_bytes_whatever_make_it_fail_otherwise() -> None:
    chance = np.random.default_rng(0)
    whole = [photo(), *(saved(picture(), format) for format in ("PNG", "GIF", "WEBP", "TIFF"))]
    for number in range(300):
        data = bytearray(whole[number % len(whole)])
        for at in chance.integers(len(data), size=chance.integers(1, 6)):
            data[at] = chance.integers(256)
        with suppress(UnreadableImage):
            assert decode(bytes(data[: chance.integers(1, 2 * len(data))]), 8).pixels_HWC.shape == (8, 8, 3)
