"""From the bytes of an image file to upright RGB pixels, or to the name of what is wrong with it.

A file with missing or wrong pixels (truncated, corrupt) is left out, since its label would be wrong; only a JPEG that
lacks nothing but its end marker is used. Color profiles are not applied.
"""

import io
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import simplejpeg
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from manyeyes.io.packages import install_command

MAX_PIXELS = 2 * 89_478_485  # where Pillow refuses: more is taken for a decompression bomb
EXTENSIONS = {
    "JPEG": (".jpg", ".jpeg", ".jpe", ".jfif"), "MPO": (".jpg", ".jpeg", ".mpo"), "PNG": (".png", ".apng"),
    "GIF": (".gif",), "WEBP": (".webp",), "BMP": (".bmp", ".dib"), "TIFF": (".tif", ".tiff"),
    "PPM": (".ppm", ".pgm", ".pbm", ".pnm"), "HEIF": (".heic", ".heif"),
}  # fmt: skip
OPENED_OTHERWISE = ("MPO", "HEIF")  # MPO as JPEG, HEIF by another package
FORMATS = [format for format in EXTENSIONS if format not in OPENED_OTHERWISE]  # some others start Ghostscript
KNOWN_EXTENSIONS = {extension for extensions in EXTENSIONS.values() for extension in extensions}
MAGIC = (b"\xff\xd8\xff", b"\x89PNG", b"GIF8", b"RIFF", b"BM", b"II*\0", b"MM\0*")
HEIF_BRANDS = (b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1")  # after "ftyp"
EXIF_ORIENTATION = 0x0112
TURNED = (5, 6, 7, 8)  # orientations in which height and width change places
T = Image.Transpose
TRANSPOSITIONS = {  # that turn an image of this EXIF orientation upright
    2: T.FLIP_LEFT_RIGHT, 3: T.ROTATE_180, 4: T.FLIP_TOP_BOTTOM, 5: T.TRANSPOSE, 6: T.ROTATE_270, 7: T.TRANSVERSE,
    8: T.ROTATE_90,
}  # fmt: skip

OpenedImage = tuple[Image.Image, str, list[str]]  # in RGB, its format, notes


class UnreadableImage(Exception):
    """The reason why an image is left out: empty, not an image, truncated, corrupt, too large, float pixels."""


@dataclass(frozen=True)
class DecodedImage:
    """Pixels, and properties of the file: grayscale, cmyk, palette, alpha, 16-bit, rotated, animated, ..."""

    pixels_HWC: NDArray[np.uint8]
    notes: tuple[str, ...] = ()
    is_plain_jpeg: bool = False  # decoded without a warning, as a store decodes its JPEGs


def decode(data: bytes, size: int | None, name: str = "") -> DecodedImage:
    """Decode an image file by its content, not by its name, and resize both sides to `size`."""
    if not data:
        raise UnreadableImage("empty")
    plain_jpeg = _decode_jpeg(data, size)
    image, format, notes = plain_jpeg or _decode_any(data)
    orientation = _orientation(data)
    if orientation in TRANSPOSITIONS:
        image = image.transpose(TRANSPOSITIONS[orientation])
        notes.append("rotated")
    extension = name[name.rfind(".") :].lower() if "." in name else ""
    if extension in KNOWN_EXTENSIONS and extension not in EXTENSIONS[format]:
        notes.append("wrong extension")
    return DecodedImage(fit(image, size), tuple(notes), plain_jpeg is not None)


def read_image(path: Path | str, size: int | None = None) -> NDArray[np.uint8]:
    """Return the upright RGB pixels [H, W, 3] of an image file, with both sides resized to `size`."""
    try:
        return decode(Path(path).read_bytes(), size, str(path)).pixels_HWC
    except UnreadableImage as problem:
        raise ValueError(f"{path} cannot be used ({problem}): replace it, or leave it out") from None


def image_shape(data: bytes) -> tuple[int, int]:
    """Return the height and width of an upright image from the header of its file."""
    if not data:
        raise UnreadableImage("empty")
    image = _open_heif(data) if _is_heif(data) else _open(data)
    width, height = image.size
    return (width, height) if _orientation(data) in TURNED else (height, width)


def fit(image: Image.Image | NDArray[np.uint8], size: int | None) -> NDArray[np.uint8]:
    """Resize both sides to `size` with an antialiasing filter; an image of that size is returned unchanged."""
    if isinstance(image, np.ndarray):
        if size is None or image.shape[:2] == (size, size):
            return image
        image = Image.fromarray(image)
    if size is not None and image.size != (size, size):
        image = image.resize((size, size), Image.Resampling.LANCZOS)
    return np.asarray(image)


def _decode_jpeg(data: bytes, size: int | None) -> OpenedImage | None:
    """Decode a plain JPEG quickly; return None for a file that needs Pillow."""
    if not data.startswith(b"\xff\xd8\xff"):
        return None
    try:
        height, width, color_space, _ = simplejpeg.decode_jpeg_header(data, strict=False)
    except (ValueError, KeyError):  # KeyError: an unknown color space
        return None
    if color_space not in ("YCbCr", "RGB", "Gray"):
        return None
    if height * width > MAX_PIXELS:
        raise UnreadableImage("too large")
    min_side = 2 * size if size else 0  # a large image is halved while it is decoded, down to twice the final size
    notes = ["grayscale"] if color_space == "Gray" else []
    try:
        pixels = simplejpeg.decode_jpeg(data, "RGB", min_height=min_side, min_width=min_side)
    except ValueError as error:
        if "Premature end of JPEG file" in str(error):
            notes.append("no end marker")
            try:
                pixels = simplejpeg.decode_jpeg(data + b"\xff\xd9", "RGB")
            except ValueError:
                raise UnreadableImage("truncated") from None
        elif "Corrupt JPEG data" in str(error) and "extraneous" not in str(error):
            raise UnreadableImage("corrupt") from None
        else:
            return None  # a warning about something that costs no pixels
    return Image.fromarray(pixels), "JPEG", notes


def _decode_any(data: bytes) -> OpenedImage:
    """Decode HEIF, or any format that is safe to open with Pillow."""
    image = _open_heif(data) if _is_heif(data) else _open(data)
    with _named_problems(data):
        notes = ["animated"] if getattr(image, "is_animated", False) and image.format != "MPO" else []
        image.load()
        return _to_rgb(image, notes), str(image.format or "HEIF"), notes


def _open(data: bytes) -> Image.Image:
    with _named_problems(data):
        return Image.open(io.BytesIO(data), formats=FORMATS)


def _is_heif(data: bytes) -> bool:
    return data[4:8] == b"ftyp" and data[8:12] in HEIF_BRANDS


def _open_heif(data: bytes) -> Image.Image:
    """Return the first image of an HEIF file, such as an iPhone's photo, which its library turns upright."""
    try:
        import pillow_heif
    except ImportError:
        raise UnreadableImage(f"HEIC, which needs: {install_command('pillow_heif')}") from None
    with _named_problems(data):
        image: Image.Image = pillow_heif.open_heif(data).to_pillow()
        return image


@contextmanager
def _named_problems(data: bytes) -> Iterator[None]:
    """Turn whatever a decoder raises into the reason why the image is left out."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except (MemoryError, UnreadableImage):
        raise
    except Image.DecompressionBombError:
        raise UnreadableImage("too large") from None
    except UnidentifiedImageError:
        raise UnreadableImage("corrupt" if data.startswith(MAGIC) else "not an image") from None
    except Exception as error:  # Pillow's decoders raise anything on a bad file
        raise UnreadableImage("truncated" if "truncated" in str(error).lower() else "corrupt") from None


def _to_rgb(image: Image.Image, notes: list[str]) -> Image.Image:
    """Convert any mode to RGB: transparent pixels over white, 16 bits by their upper ones."""
    mode = image.mode
    if mode == "F":
        raise UnreadableImage("float pixels")
    if mode.startswith("I"):
        notes.append("16-bit")
        image = Image.fromarray((np.asarray(image).astype(np.int64).clip(0, 65535) // 256).astype(np.uint8))
    kinds = {"1": "grayscale", "L": "grayscale", "LA": "grayscale", "P": "palette", "PA": "palette", "CMYK": "cmyk"}
    if kind := "grayscale" if mode.startswith("I") else kinds.get(mode):
        notes.append(kind)
    if image.has_transparency_data:
        notes.append("alpha")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image.convert("RGBA"))
    return image.convert("RGB")


def _orientation(data: bytes) -> int:
    """Return the EXIF orientation; 1, upright, if there is none."""
    if data.startswith(b"\xff\xd8\xff") and data.find(b"Exif\0\0", 0, 2**16) < 0:
        return 1
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return int(Image.open(io.BytesIO(data), formats=FORMATS).getexif().get(EXIF_ORIENTATION, 1))
    except Exception:  # a broken EXIF block costs no pixels, and an HEIF is upright
        return 1
