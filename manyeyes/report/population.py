"""`manyeyes data show`: what a population holds, and how unlike its users are, as the papers show it of their data."""

import io
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table as TerminalTable

from manyeyes.core import rng as chance
from manyeyes.core.population import Ints, Population
from manyeyes.io.files import write_bytes, write_text
from manyeyes.report import population_figures as figures
from manyeyes.report.figures import CaptionedFigure, Charts, render
from manyeyes.report.page import Image, Section, page
from manyeyes.report.table import Table
from manyeyes.report.text import printable
from manyeyes.training.dataset_stats import Doubles, SplitStats, split_stats

LARGEST = 0.023  # the share of users that FLAIR's section 4.2 speaks of
MOST_IMAGES, MOST_EACH = 4000, 32  # whose pixels are read: in all, and of one user
SEED = 0  # of what is drawn at random
DEALS = 10  # how often a split is simulated
SHOWN_LABELS = 30  # rows of the table of labels


@dataclass(frozen=True, eq=False)
class PixelSkew:
    """How far users' average pixel histograms are from everyone's, on a sample of the images with one label."""

    label: str
    users: int
    images: int
    actual: Doubles
    real_sizes: Doubles  # the same images dealt at random, each user keeping its number of them
    equal_sizes: Doubles  # dealt at random, to every user as many


def parts(population: Population) -> list[SplitStats]:
    """Of the whole, then of each split where there are several."""
    column = population.columns.get("split")
    names = [] if column is None else sorted(map(str, np.unique(np.asarray(column))), key=_usual_order)
    return [
        split_stats("everyone", population),
        *(split_stats(printable(name), population.split(name)) for name in names if len(names) > 1),
    ]


def cumulative_share(sizes_U: Ints) -> Doubles:
    """The share of all images that the largest 0, 1, 2, ... users hold."""
    return np.concatenate([[0], np.cumsum(np.sort(sizes_U)[::-1])]) / sizes_U.sum()


def held_by_largest(sizes_U: Ints, share: float = LARGEST) -> float:
    """The share of all images that this share of users hold, the largest ones."""
    curve = cumulative_share(sizes_U)
    return float(np.interp(share, np.linspace(0, 1, len(curve)), curve))


def holders_of_half(sizes_U: Ints) -> float:
    """The least share of users who together hold half of all images."""
    return float(np.searchsorted(cumulative_share(sizes_U), 0.5) / len(sizes_U))


def pixel_skew(population: Population, seed: int = SEED) -> PixelSkew | None:
    """FLAIR, figure 2 right: on images of the most common label only, so that the labels' skew plays no part."""
    if not population.class_counts.any():
        return None
    label = int(population.class_counts.argmax())
    g = chance.make_rng(seed, "data show/pixels")
    examples, sizes_U = _sample(population, label, g)
    curves_NB = np.concatenate(
        [_intensities(population, some) for some in np.array_split(examples, len(examples) // 64 + 1)]
    )
    equal_U = np.diff(np.arange(len(sizes_U) + 1) * len(examples) // len(sizes_U))
    deals = (curves_NB[g.permutation(len(examples))] for _ in range(DEALS))
    real_sizes, equal_sizes = zip(*((pixel_emd(d, sizes_U), pixel_emd(d, equal_U)) for d in deals), strict=True)
    return PixelSkew(
        printable(population.classes[label]),
        len(sizes_U),
        len(examples),
        pixel_emd(curves_NB, sizes_U),
        np.concatenate(real_sizes),
        np.concatenate(equal_sizes),
    )


def pixel_emd(curves_NB: NDArray[np.float32], sizes_U: Ints) -> Doubles:
    """Earth mover's distance of each user's mean histogram from the mean of all, in grey levels, channels averaged.

    Rows are cumulative histograms, user by user, since on a line EMD(q, p) = sum_b |Q(b) - P(b)|.
    """
    starts = np.cumsum(sizes_U) - sizes_U
    mean_UB = np.add.reduceat(curves_NB, starts, dtype=np.float64) / sizes_U[:, None]
    return np.asarray(np.abs(mean_UB - curves_NB.mean(axis=0, dtype=np.float64)).sum(axis=1) / 3)


def _sample(population: Population, label: int, g: np.random.Generator) -> tuple[Ints, Ints]:
    """Examples with the label, user by user, of users in random order; and how many of each user."""
    example, classes = population.labels.nonzero()
    held = g.permutation(example[classes == label])
    _, user, counts = np.unique(population.owners(held), return_inverse=True, return_counts=True)
    turn = g.permutation(len(counts))
    order = np.argsort(turn[user], kind="stable")
    counts = counts[np.argsort(turn)]
    place = np.arange(len(held)) - np.repeat(np.cumsum(counts) - counts, counts)
    sizes = np.minimum(counts, MOST_EACH)
    sizes = sizes[np.cumsum(sizes) <= MOST_IMAGES]
    return held[order][place < MOST_EACH][: sizes.sum()], sizes


def _intensities(population: Population, examples: Ints) -> NDArray[np.float32]:
    """Cumulative histogram of each image's red, green and blue [B, 3 * 256]."""
    pixels_BNC = population.pixels(examples).reshape(len(examples), -1, 3)
    counts = [[np.bincount(pixels_NC[:, c], minlength=256) for c in range(3)] for pixels_NC in pixels_BNC]
    return (np.cumsum(counts, axis=2) / pixels_BNC.shape[1]).astype(np.float32).reshape(len(examples), -1)


def show(population: Population, name: str, out: Path) -> str:
    """Write the pictures and `index.html` into the folder `out`; the text is for the terminal."""
    name, found, pixels = printable(name), parts(population), pixel_skew(population)
    out.mkdir(parents=True, exist_ok=True)
    charts = {}
    for stem, drawing in _drawings(population, found, pixels).items():
        svg, png = (render(drawing.figure, kind) for kind in ("svg", "png"))
        write_bytes(out / f"{stem}.svg", svg)
        write_bytes(out / f"{stem}.png", png)
        charts[stem] = (Image(svg, "svg+xml", f"Chart: {drawing.title}."), drawing.caption)
    height, width, _ = population.image_shape
    kind = "any number of classes an image" if population.labels.multi else "one class an image"
    lead = (
        f"{len(population.user_ids):,} users, {len(population):,} images of {width} x {height} pixels, "
        f"{len(population.classes):,} classes, {kind}."
    )
    write_text(out / "index.html", page(f"What {name} holds", lead, _sections(population, found, charts)))
    return _terminal(f"{name}: {lead}", found, pixels, out)


def _drawings(population: Population, found: list[SplitStats], pixels: PixelSkew | None) -> dict[str, CaptionedFigure]:
    """The figures by the names of their files."""
    whole, users = found[0], len(population.user_ids)
    classes = [printable(c) for c in population.classes]
    about = "A user's distribution is how often each label occurs in its images. " if population.labels.multi else ""
    if len(found) > 1:
        about += "The users of a split are compared with that split. "
    if len(whole.emd_U) < users:
        about += f"{users - len(whole.emd_U):,} users without any label are left out."
    drawings = {
        "quantity": figures.draw_quantity({p.name: cumulative_share(p.sizes_U) for p in found}, LARGEST),
        "images_by_rank": figures.draw_images_by_rank({p.name: p.sizes_U for p in found}),
        "labels": figures.draw_labels(classes, whole.labels_C, whole.holders_C / users, len(population)),
        "classes_by_rank": figures.draw_classes_by_rank({p.name: p.classes_U for p in found}, len(classes)),
        "label_emd": figures.draw_label_emd(
            {p.name: p.emd_U for p in found}, {p.name: p.mean_emd for p in found}, about
        ),
    }
    if pixels is not None:
        about = (
            f"Measured on the most common label, {pixels.label}: {pixels.images:,} images of {pixels.users:,} users "
            f"drawn at random with seed {SEED} (at most {MOST_EACH} a user and {MOST_IMAGES:,} in all), which are then "
            f"dealt at random {DEALS} times; red, green and blue are averaged."
        )
        drawings["pixel_emd"] = figures.draw_pixel_emd(pixels.actual, pixels.real_sizes, pixels.equal_sizes, about)
    place_N2 = _places(population)
    if len(place_N2):
        drawings["places"] = figures.draw_places(place_N2[:, 0], place_N2[:, 1], len(population))
    return drawings


def _places(population: Population) -> Doubles:
    """Latitude and longitude of the images that have them [N, 2]."""
    for pair in (("latitude", "longitude"), ("lat", "lon")):
        if all(name in population.columns for name in pair):
            place: Doubles = np.stack([np.asarray(population.columns[name], np.float64) for name in pair], axis=1)
            return place[np.isfinite(place).all(axis=1)]
    return np.empty((0, 2))


def _sections(population: Population, found: list[SplitStats], charts: dict[str, tuple[Image, str]]) -> list[Section]:
    glance, labels = _glance(found), _labels(population, found[0])
    chosen = [
        Section("At a glance", [Table("The population and its splits", ["", *(p.name for p in found)], glance)]),
        Section("How much each user has", [Charts([charts["quantity"], charts["images_by_rank"]])]),
        Section("Labels, and who has them", [Charts([charts["labels"], charts["classes_by_rank"]]), labels]),
        Section("How unlike the users are", [Charts([charts[c] for c in ("label_emd", "pixel_emd") if c in charts])]),
    ]
    if "places" in charts:
        chosen.append(Section("Where", [Charts([charts["places"]])]))
    return [*chosen, Section("Images of some users", figures.contact_sheet(population, SEED))]


def _glance(found: list[SplitStats]) -> list[list[str]]:
    """A row a number, a column a part."""
    images = found[0].sizes_U.sum()
    rows: dict[str, Callable[[SplitStats], str]] = {
        "users": lambda p: f"{len(p.sizes_U):,}",
        "images": lambda p: f"{p.sizes_U.sum():,}",
        "share of the images": lambda p: f"{p.sizes_U.sum() / images:.1%}",
        "classes that occur": lambda p: f"{np.count_nonzero(p.labels_C):,} of {len(p.labels_C):,}",
        "labels an image, mean": lambda p: f"{p.labels_C.sum() / p.sizes_U.sum():.2f}",
        "images a user, quartiles": lambda p: " / ".join(f"{q:g}" for q in np.percentile(p.sizes_U, [25, 50, 75])),
        "images a user, mean": lambda p: f"{p.sizes_U.mean():.2f}",
        "images a user, most": lambda p: f"{p.sizes_U.max():,}",
        f"held by the largest {LARGEST:.1%}": lambda p: f"{held_by_largest(p.sizes_U):.1%}",
        "users who hold half": lambda p: f"{holders_of_half(p.sizes_U):.1%}",
        "classes a user, median": lambda p: f"{np.median(p.classes_U):g}",
        "mean EMD of labels": lambda p: f"{p.mean_emd:.3f}",
    }
    return [[name, *map(cell, found)] for name, cell in rows.items()]


def _labels(population: Population, whole: SplitStats) -> Table:
    order = np.argsort(-whole.labels_C, kind="stable")
    caption = "Labels by how common they are"
    if len(order) > SHOWN_LABELS:
        caption = f"The {SHOWN_LABELS - 10} most common labels and the 10 least common, of {len(order):,}"
        order = np.concatenate([order[: SHOWN_LABELS - 10], order[-10:]])
    rows = [
        [
            population.classes[c],
            f"{whole.labels_C[c]:,}",
            f"{whole.labels_C[c] / len(population):.2%}",
            f"{whole.holders_C[c]:,}",
            f"{whole.holders_C[c] / len(population.user_ids):.2%}",
        ]
        for c in order
    ]
    return Table(caption, ["label", "images", "of images", "users", "of users"], rows)


def _terminal(head: str, found: list[SplitStats], pixels: PixelSkew | None, out: Path) -> str:
    table = TerminalTable("", *(p.name for p in found))
    for column in table.columns[1:]:
        column.justify = "right"
    for row in _glance(found):
        table.add_row(*row)
    lines = [f"pictures and page: {out / 'index.html'}"]
    if pixels is not None:
        sample = f"{pixels.images:,} images of {pixels.users:,} users"
        medians = f"{np.median(pixels.actual):.1f} grey levels, {np.median(pixels.real_sizes):.1f} if dealt at random"
        lines.insert(0, f"median EMD of users' pixels in images of {pixels.label}: {medians} ({sample})")
    console = Console(file=io.StringIO(), width=max(80, 36 + 16 * len(found)), markup=False, highlight=False)
    with console.capture() as captured:
        console.print(table, markup=False)
    return "\n".join([head, captured.get().rstrip("\n"), *lines])


def _usual_order(split: str) -> tuple[int, str]:
    usual = ("train", "val", "test")
    return (usual.index(split) if split in usual else len(usual)), split
