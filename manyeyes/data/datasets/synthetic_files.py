"""Files of synthetic datasets: images and tables as a published dataset has them."""

import csv
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import simplejpeg

from manyeyes.core.population import Population

JPEG_QUALITY = 95


def write_images(population: Population, paths: Iterable[Path | None]) -> None:
    """Write the image of each example as a JPEG file; None leaves one out, as downloads do."""
    for example, path in enumerate(paths):
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            pixels = population.pixels(np.array([example]))[0]
            path.write_bytes(simplejpeg.encode_jpeg(pixels, JPEG_QUALITY))


def write_table(path: Path, header: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([header, *rows])
