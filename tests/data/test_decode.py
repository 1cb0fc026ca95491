"""Decoding every kind of image file: its pixels, and the name of its problem."""

from __future__ import annotations

import io
import struct
import sys
import zlib
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from manyeyes.data.decode import UnreadableImage, decode, fit, image_shape, read_image

RED, BLUE = (200, 30, 40), (20, 40, 210)


def picture(width: int = 32, height: int = 32) -> Image.Image:
    """Return an image that is red above and blue below."""
    image = Image.new("RGB", (width, height), RED)
    image.paste(BLUE, (0, height // 2, width, height))
    return image


def encode(image: Image.Image, format: str = "JPEG", **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, format, **options)
    return file.getvalue()


def noise_jpeg() -> bytes:
    """Return a JPEG that is large enough to be cut in two."""
    return encode(Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8)))


def colors(pixels: np.ndarray[Any, Any]) -> tuple[Any, Any]:
    """Return the color in the middle of the upper and of the lower half."""
    side = len(pixels)
    return pixels[side // 4, side // 2], pixels[3 * side // 4, side // 2]


def assert_red_above_blue(pixels: np.ndarray[Any, Any], tolerance: int = 6) -> None:
    for color, expected in zip(colors(pixels), (RED, BLUE), strict=True):
        np.testing.assert_allclose(color.astype(int), expected, atol=tolerance)


@pytest.mark.parametrize("format", ["JPEG", "PNG", "BMP", "TIFF", "WEBP", "PPM"])
def test_a_plain_image_has_no_notes(format: str) -> None:
    image = decode(encode(picture(), format), 32)
    assert image.notes == ()
    assert image.pixels_HWC.shape == (32, 32, 3)
    assert image.pixels_HWC.dtype == np.uint8
    assert_red_above_blue(image.pixels_HWC)


def test_an_image_of_the_right_size_is_not_changed() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (16, 16, 3), np.uint8)
    np.testing.assert_array_equal(decode(encode(Image.fromarray(pixels), "PNG"), 16).pixels_HWC, pixels)
    assert fit(pixels, 16) is pixels


def test_without_a_size_an_image_keeps_its_size() -> None:
    assert decode(encode(picture(20, 10)), None).pixels_HWC.shape == (10, 20, 3)


def test_an_image_of_another_shape_is_stretched_not_cropped() -> None:
    wide = Image.new("RGB", (64, 32), RED)
    wide.paste(BLUE, (32, 0, 64, 32))
    pixels = decode(encode(wide, "PNG"), 16).pixels_HWC
    np.testing.assert_array_equal(pixels[8, [2, 13]], [RED, BLUE])


def test_a_fine_pattern_becomes_its_mean_when_it_shrinks() -> None:
    board = np.indices((64, 64)).sum(0) % 2 * np.uint8(255)
    pixels = decode(encode(Image.fromarray(board.astype(np.uint8)).convert("RGB"), "PNG"), 8).pixels_HWC
    np.testing.assert_allclose(pixels.astype(int), 127.5, atol=2)


def test_a_large_jpeg_shrinks_as_it_does_at_full_size() -> None:
    waves = np.sin(np.indices((600, 800)).sum(0) / 40)[..., None] * [90, 60, 30] + 128
    data = encode(Image.fromarray(waves.astype(np.uint8)), quality=95)
    expected = Image.open(io.BytesIO(data)).resize((32, 32), Image.Resampling.LANCZOS)
    np.testing.assert_allclose(decode(data, 32).pixels_HWC.astype(int), np.asarray(expected).astype(int), atol=3)


def test_cmyk_is_converted() -> None:
    image = decode(encode(picture().convert("CMYK"), quality=95), 32)
    assert image.notes == ("cmyk",)
    assert_red_above_blue(image.pixels_HWC)


@pytest.mark.parametrize(("format", "mode"), [("JPEG", "L"), ("PNG", "L"), ("PNG", "1")])
def test_grayscale_has_three_equal_channels(format: str, mode: str) -> None:
    image = decode(encode(picture().convert(mode), format), 32)
    assert image.notes == ("grayscale",)
    assert np.ptp(image.pixels_HWC, axis=2).max() == 0


def test_of_16_bits_the_upper_8_are_used() -> None:
    ramp = (np.arange(256, dtype=np.uint16) * 256 + 77).reshape(16, 16)
    image = decode(encode(Image.fromarray(ramp), "PNG"), 16)
    assert image.notes == ("16-bit", "grayscale")
    np.testing.assert_array_equal(image.pixels_HWC[..., 0].ravel(), np.arange(256))


def test_a_palette_is_converted() -> None:
    image = decode(encode(picture().convert("P", palette=Image.Palette.ADAPTIVE), "PNG"), 32)
    assert image.notes == ("palette",)
    assert_red_above_blue(image.pixels_HWC)


def test_transparent_pixels_become_white() -> None:
    half_transparent = picture().convert("RGBA")
    half_transparent.putalpha(Image.fromarray(np.repeat(np.array([255, 0], np.uint8), 16)[:, None].repeat(32, 1)))
    image = decode(encode(half_transparent, "PNG"), 32)
    assert image.notes == ("alpha",)
    np.testing.assert_array_equal(colors(image.pixels_HWC), [RED, (255, 255, 255)])


@pytest.mark.parametrize(
    ("orientation", "stored"),  # the inverse of the transposition that turns it upright
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
def test_a_rotated_image_is_turned_upright(format: str, orientation: int, stored: Image.Transpose) -> None:
    upright = picture(48, 32)
    upright.paste((240, 240, 240), (0, 0, 16, 8))  # so that no two orientations look alike
    exif = Image.Exif()
    exif[0x0112] = orientation
    image = decode(encode(upright.transpose(stored), format, exif=exif), None)
    assert image.notes == ("rotated",)
    np.testing.assert_allclose(image.pixels_HWC.astype(int), np.asarray(upright).astype(int), atol=60)


def test_broken_exif_is_ignored() -> None:
    data = encode(picture(), exif=b"Exif\0\0nonsense without a TIFF header")
    assert_red_above_blue(decode(data, 32).pixels_HWC)


def test_an_animation_gives_its_first_frame() -> None:
    frames = [picture(), Image.new("RGB", (32, 32), "green")]
    image = decode(encode(frames[0], "WEBP", save_all=True, append_images=frames[1:], lossless=True), 32)
    assert image.notes == ("animated",)
    assert_red_above_blue(image.pixels_HWC)


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
def test_a_file_is_decoded_by_its_content_not_its_name(format: str, name: str, notes: tuple[str, ...]) -> None:
    image = decode(encode(picture(), format), 32, name)
    assert image.notes == notes
    assert_red_above_blue(image.pixels_HWC)


def test_a_jpeg_without_its_end_marker_is_complete() -> None:
    image = decode(noise_jpeg()[:-2], None)
    assert image.notes == ("no end marker",)
    np.testing.assert_array_equal(image.pixels_HWC, decode(noise_jpeg(), None).pixels_HWC)


def test_bytes_after_the_image_are_ignored() -> None:
    np.testing.assert_array_equal(
        decode(noise_jpeg() + b"more", None).pixels_HWC, decode(noise_jpeg(), None).pixels_HWC
    )


def corrupt(data: bytes) -> bytes:
    """Replace the middle of a file by noise."""
    half = len(data) // 2
    return data[:half] + np.random.default_rng(1).bytes(60) + data[half + 60 :]


def bomb(width: int, height: int) -> bytes:
    """Return a PNG of a few bytes whose header says that it is huge."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(bytes(1000))) + chunk(b"IEND", b"")
    )


def huge_jpeg() -> bytes:
    """Return a JPEG whose header says 60,000 x 60,000."""
    data = bytearray(noise_jpeg())
    header = data.index(b"\xff\xc0")
    data[header + 5 : header + 9] = struct.pack(">HH", 60_000, 60_000)
    return bytes(data)


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (b"", "empty"),
        (b"<html>404 Not Found</html>" * 20, "not an image"),
        (bytes(1000), "not an image"),
        (noise_jpeg()[: len(noise_jpeg()) // 2], "truncated"),
        (noise_jpeg()[:-40], "truncated"),
        (noise_jpeg()[:100], "truncated"),
        (encode(Image.open(io.BytesIO(noise_jpeg())), "PNG")[:2000], "truncated"),
        (encode(Image.open(io.BytesIO(noise_jpeg())), "BMP")[:2000], "truncated"),
        (corrupt(noise_jpeg()), "corrupt"),
        (corrupt(encode(Image.open(io.BytesIO(noise_jpeg())), "PNG")), "corrupt"),
        (encode(picture(), "GIF")[:30], "corrupt"),
        (bomb(60_000, 60_000), "too large"),
        (huge_jpeg(), "too large"),
        (encode(Image.new("F", (8, 8)), "TIFF"), "float pixels"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "not an image"),
    ],
    ids=lambda value: value if isinstance(value, str) else str(len(value)),
)
def test_a_bad_file_raises_the_name_of_its_problem(data: bytes, kind: str) -> None:
    with pytest.raises(UnreadableImage, match=f"^{kind}$"):
        decode(data, 32)


def test_random_changes_raise_no_other_error() -> None:
    rng = np.random.default_rng(0)
    files = [noise_jpeg(), *(encode(picture(), format) for format in ("PNG", "GIF", "WEBP", "TIFF"))]
    for number in range(300):
        data = bytearray(files[number % len(files)])
        for index in rng.integers(len(data), size=rng.integers(1, 6)):
            data[index] = rng.integers(256)
        with suppress(UnreadableImage):
            assert decode(bytes(data[: rng.integers(1, 2 * len(data))]), 8).pixels_HWC.shape == (8, 8, 3)


def heic() -> bytes:
    pillow_heif = pytest.importorskip("pillow_heif")
    file = io.BytesIO()
    pillow_heif.from_pillow(picture(64, 48)).save(file, quality=95)
    return file.getvalue()


def test_a_photo_of_an_iphone_is_read_with_pillow_heif() -> None:
    image = decode(heic(), None, "IMG_1.HEIC")
    assert image.pixels_HWC.shape == (48, 64, 3)
    assert image.notes == ()
    assert_red_above_blue(image.pixels_HWC, tolerance=12)
    with pytest.raises(UnreadableImage, match="corrupt"):
        decode(heic()[:200], None)


def test_a_photo_of_an_iphone_without_pillow_heif_names_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    data = heic()
    monkeypatch.setitem(sys.modules, "pillow_heif", None)
    with pytest.raises(UnreadableImage, match=r"HEIC, which needs: pip install 'pillow.heif"):
        decode(data, None)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_the_header_has_the_size_of_the_upright_image(orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = encode(picture(40, 24), exif=exif)
    assert image_shape(data) == decode(data, None).pixels_HWC.shape[:2]


def test_an_image_file_is_read_by_its_path(tmp_path: Path) -> None:
    picture().save(tmp_path / "a.png")
    assert np.array_equal(read_image(tmp_path / "a.png"), np.asarray(picture()))
    assert read_image(tmp_path / "a.png", size=8).shape == (8, 8, 3)
    (tmp_path / "b.png").write_text("text")
    with pytest.raises(ValueError, match=r"b\.png cannot be used \(not an image\): replace it, or leave it out"):
        read_image(tmp_path / "b.png")
