"""From the bytes of an image file to upright RGB pixels, or to the name of what is wrong with it.

A file of which pixels are missing or wrong (truncated, corrupt) is left out rather than half grey: its label would be a
lie. Only a JPEG that has lost no more than its end marker is kept. Colour profiles are not applied.
"""

import io
import warnings
from dataclasses import dataclass

import numpy as np
import simplejpeg
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

MOST_PIXELS = 2 * 89_478_485  # where Pillow refuses: more is taken for a decompression bomb
EXTENSIONS = {
    "JPEG": (".jpg", ".jpeg", ".jpe", ".jfif"),
    "MPO": (".jpg", ".jpeg", ".mpo"),
    "PNG": (".png", ".apng"),
    "GIF": (".gif",),
    "WEBP": (".webp",),
    "BMP": (".bmp", ".dib"),
    "TIFF": (".tif", ".tiff"),
    "PPM": (".ppm", ".pgm", ".pbm", ".pnm"),
}
FORMATS = [format for format in EXTENSIONS if format != "MPO"]  # which opens as JPEG; no others: some start Ghostscript
KNOWN = {extension for some in EXTENSIONS.values() for extension in some}
MAGIC = (b"\xff\xd8\xff", b"\x89PNG", b"GIF8", b"RIFF", b"BM", b"II*\0", b"MM\0*")
UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


class UnreadableImage(Exception):
    """An image that is left out, and why: empty, not an image, truncated, corrupt, too large, float pixels."""


@dataclass(frozen=True)
class Decoded:
    """Pixels, and what was noticed: greyscale, cmyk, palette, alpha, 16-bit, rotated, animated, wrong extension, ..."""

    pixels_HWC: NDArray[np.uint8]
    notes: tuple[str, ...] = ()
    quick: bool = False  # a JPEG that is read without a warning, as a store reads those that it keeps


def decode(data: bytes, size: int | None, name: str = "") -> Decoded:
    """The image of a file, with both sides brought to `size`; what the file holds counts, not what `name` ends in."""
    if not data:
        raise UnreadableImage("empty")
    quick = _jpeg(data, size)
    image, format, notes = quick or _any(data)
    orientation = _orientation(data)
    if orientation in UPRIGHT:
        image = image.transpose(UPRIGHT[orientation])
        notes.append("rotated")
    extension = name[name.rfind(".") :].lower() if "." in name else ""
    if extension in KNOWN and extension not in EXTENSIONS[format]:
        notes.append("wrong extension")
    return Decoded(fit(image, size), tuple(notes), quick is not None)


def fit(image: Image.Image | NDArray[np.uint8], size: int | None) -> NDArray[np.uint8]:
    """Both sides brought to `size` with an antialiasing filter, whatever the shape was; untouched if they have it."""
    if isinstance(image, np.ndarray):
        if size is None or image.shape[:2] == (size, size):
            return image
        image = Image.fromarray(image)
    if size is not None and image.size != (size, size):
        image = image.resize((size, size), Image.Resampling.LANCZOS)
    return np.asarray(image)


Opened = tuple[Image.Image, str, list[str]]  # RGB, its format, notes


def _jpeg(data: bytes, size: int | None) -> Opened | None:
    """The quick way, for a plain JPEG; None where Pillow must look at it."""
    if not data.startswith(b"\xff\xd8\xff"):
        return None
    try:
        height, width, colours, _ = simplejpeg.decode_jpeg_header(data, strict=False)
    except (ValueError, KeyError):  # KeyError: colours it has no name for
        return None
    if colours not in ("YCbCr", "RGB", "Gray"):
        return None
    if height * width > MOST_PIXELS:
        raise UnreadableImage("too large")
    least = 2 * size if size else 0  # a large photograph is halved while it is decoded, down to twice what is asked for
    notes = ["greyscale"] if colours == "Gray" else []
    try:
        pixels = simplejpeg.decode_jpeg(data, "RGB", min_height=least, min_width=least)
    except ValueError as error:
        if "Premature end of JPEG file" in str(error):
            pixels = _without_end(data)
            notes.append("no end marker")
        elif "Corrupt JPEG data" in str(error) and "extraneous" not in str(error):
            raise UnreadableImage("corrupt") from None
        else:
            return None  # a warning about something that costs no pixels
    return Image.fromarray(pixels), "JPEG", notes


def _without_end(data: bytes) -> NDArray[np.uint8]:
    """The pixels of a JPEG that ends too soon, if only its end marker is missing."""
    try:
        return simplejpeg.decode_jpeg(data + b"\xff\xd9", "RGB")
    except ValueError:
        raise UnreadableImage("truncated") from None


def _any(data: bytes) -> Opened:
    """The slow way, for everything that Pillow reads and that is safe to give to it."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what Pillow only warns of is read all the same
            image = Image.open(io.BytesIO(data), formats=FORMATS)
            notes = ["animated"] if getattr(image, "is_animated", False) and image.format != "MPO" else []
            image.load()
            return _rgb(image, notes), str(image.format), notes
    except (MemoryError, UnreadableImage):
        raise
    except Image.DecompressionBombError:
        raise UnreadableImage("too large") from None
    except UnidentifiedImageError:
        raise UnreadableImage("corrupt" if data.startswith(MAGIC) else "not an image") from None
    except Exception as error:  # Pillow's decoders raise anything on a bad file
        raise UnreadableImage("truncated" if "truncated" in str(error).lower() else "corrupt") from None


def _rgb(image: Image.Image, notes: list[str]) -> Image.Image:
    """Any kind of pixels as RGB: transparent ones over white, 16 bits by their upper ones."""
    mode = image.mode
    if mode == "F":
        raise UnreadableImage("float pixels")
    if mode.startswith("I"):
        notes.append("16-bit")
        image = Image.fromarray((np.asarray(image).astype(np.int64).clip(0, 65535) // 256).astype(np.uint8))
    if mode.startswith("I") or mode in ("1", "L", "LA"):
        notes.append("greyscale")
    if mode in ("P", "PA"):
        notes.append("palette")
    if mode == "CMYK":
        notes.append("cmyk")
    if image.has_transparency_data:
        notes.append("alpha")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image.convert("RGBA"))
    return image.convert("RGB")


def _orientation(data: bytes) -> int:
    """Which way up the camera was held; 1 where nobody can tell."""
    if data.startswith(b"\xff\xd8\xff") and data.find(b"Exif\0\0", 0, 2**16) < 0:
        return 1
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return int(Image.open(io.BytesIO(data), formats=FORMATS).getexif().get(0x0112, 1))
    except Exception:  # a broken EXIF block costs no pixels
        return 1
