"""Figures of a population: who has how much of what, and how unlike the users are."""

import io
from collections.abc import Mapping, Sequence
from itertools import cycle
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator, PercentFormatter
from numpy.typing import NDArray
from PIL import Image as Pillow

from manyeyes.core import rng as chance
from manyeyes.core.population import Population
from manyeyes.report.figures import COLORS, CaptionedFigure, format_tick, logarithmic, new_axes, new_figure, wrap_title
from manyeyes.report.page import Image, ImageStrip

Array = NDArray[Any]
DASHES = ("-", "--", ":", "-.")  # lines are told apart without colour too
MOST_NAMED = 40  # classes whose names fit below the bars
SHOWN_USERS, SHOWN_IMAGES, SHOWN_SIDE = 4, 6, 192  # in each third of the users, of each user, pixels of the longer side
POINTS = 400  # of a line; more would not be seen and make the file large


def draw_quantity(shares: Mapping[str, Array], mark: float) -> CaptionedFigure:
    """Cumulative share of images against users in descending order (FLAIR, figure 2 left), `mark` of them marked."""
    first = next(iter(shares.values()))
    held = float(np.interp(mark, np.linspace(0, 1, len(first)), first))
    title = f"The largest {mark:.1%} of users hold {held:.0%} of the images"
    figure, axes = new_axes(title, "users, those with most images first", "share of all images")
    for (name, share_U), colour, dash in zip(shares.items(), cycle(COLORS), cycle(DASHES), strict=False):
        users = np.linspace(0, 1, len(share_U))
        few = _few(len(share_U))
        axes.plot(users[few], share_U[few], color=colour, linestyle=dash, label=name)
    axes.plot([0, 1], [0, 1], color="gray", linewidth=1, label="no skew")
    axes.plot([mark], [held], "o", color="black")
    axes.annotate(
        f"largest {mark:.1%} of users:\n{held:.0%} of images", (mark, held), (14, -4), textcoords="offset points",
        va="top", bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 1},
    )  # fmt: skip
    axes.set(xlim=(-0.01, 1), ylim=(0, 1.02))
    axes.xaxis.set_major_formatter(PercentFormatter(1.0))
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    _legend(axes, loc="lower right")
    caption = "Cumulative share of images over users in descending order, as in figure 2 (left) of FLAIR."
    return CaptionedFigure(title, figure, caption)


def draw_images_by_rank(sizes: Mapping[str, Array]) -> CaptionedFigure:
    """Images of each user (Hsu et al. 2020, figures 2 and 3)."""
    whole = next(iter(sizes.values()))
    title = f"Users hold from {whole.min():,} to {whole.max():,} images"
    caption = "Images of each user, the largest first, as in figures 2 and 3 of Hsu et al. (2020)."
    return CaptionedFigure(title, _ranks(sizes, "images of the user", title), caption)


def draw_classes_by_rank(counts: Mapping[str, Array], classes: int) -> CaptionedFigure:
    """Different classes of each user (Hsu et al. 2020, figures 2, 3 and 10)."""
    middle = np.median(next(iter(counts.values())))
    title = f"Half of the users have {middle:g} or fewer of the {classes:,} classes"
    caption = "Different classes of each user, the most varied first, as in figures 2, 3 and 10 of Hsu et al. (2020)."
    return CaptionedFigure(title, _ranks(counts, "different classes of the user", title), caption)


def _ranks(counts: Mapping[str, Array], y: str, title: str) -> Figure:
    figure, axes = new_axes(title, "rank of the user", y)
    for (name, count_U), colour, dash in zip(counts.items(), cycle(COLORS), cycle(DASHES), strict=False):
        few = _few(len(count_U))
        mark = "o" if len(count_U) == 1 else ""
        axes.plot(few + 1, np.sort(count_U)[::-1][few], color=colour, linestyle=dash, label=name, marker=mark)
    everything = np.concatenate(list(counts.values()))
    if max(map(len, counts.values())) > 100:
        logarithmic(axes, "x")
    if everything.max() > 20 * max(1, everything.min()):
        axes.set_ylim(bottom=0.8)
        logarithmic(axes, "y")
    else:
        axes.set_ylim(0, everything.max() * 1.08 + 0.1)
        axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    _legend(axes)
    return figure


def draw_labels(classes: Sequence[str], counts_C: Array, users_C: Array, images: int) -> CaptionedFigure:
    """Bars of how often each label occurs, and the share of users who have it (FLAIR, figure 3)."""
    order = np.argsort(-counts_C, kind="stable")
    most = order[0]
    title = f"{_short(classes[most])} is in {counts_C[most] / images:.0%} of images, with {users_C[most]:.0%} of users"
    named = len(order) <= MOST_NAMED
    figure, axes = new_axes(title, "" if named else "labels, the most common first", "images with the label (bars)")
    place = np.arange(len(order))
    if named:
        axes.bar(place, counts_C[order], color="#9ecae1")
        size = 8 if len(order) <= 20 else 6
        axes.set_xticks(place, [_short(classes[c]) for c in order], rotation=90, fontsize=size, parse_math=False)
    else:
        axes.fill_between(place, counts_C[order], step="mid", color="#9ecae1")
        axes.set_xlim(-1, len(order))
    if counts_C.max() > 100 * max(1, counts_C.min()):
        axes.set_ylim(0.8, counts_C.max() * 2)
        logarithmic(axes, "y")
    else:
        axes.yaxis.set_major_formatter(FuncFormatter(format_tick))
    axes.yaxis.label.set_color("#20669c")
    share = axes.twinx()
    if named:
        share.plot(place, users_C[order], color=COLORS[1], marker="o", markersize=3)
        share.set_ylim(0, max(float(users_C.max()) * 1.05, 1e-6))
        share.yaxis.set_major_formatter(PercentFormatter(1.0))
    else:
        share.plot(place, np.where(users_C > 0, users_C, np.nan)[order], color=COLORS[1], linewidth=0.8)
        share.set_yscale("log")
        share.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:g}%"))
    share.set_ylabel("share of users who have it (line)", color="#b34700")
    share.spines["top"].set_visible(False)
    caption = "How often each label occurs (bars), and the share of users who have it (line), as in figure 3 of FLAIR."
    return CaptionedFigure(title, figure, caption)


def draw_label_emd(emds: Mapping[str, Array], means: Mapping[str, float], about: str) -> CaptionedFigure:
    """How the users' EMD is distributed, a row a part, the weighted mean marked (Hsu et al. 2020, figure 4 top)."""
    title = f"Mean distance of users' labels: {next(iter(means.values())):.2f} of at most 2"
    figure = new_figure()
    figure.suptitle(wrap_title(title), fontsize=11, x=0.02, ha="left", parse_math=False)
    rows = figure.subplots(len(emds), 1, sharex=True, squeeze=False)[:, 0]
    for axes, (name, emd_U), colour in zip(rows, emds.items(), cycle(COLORS), strict=False):
        weights = np.full(len(emd_U), 1 / max(1, len(emd_U)))
        axes.hist(emd_U, bins=np.linspace(0, 2, 61), weights=weights, color=colour, alpha=0.6)
        axes.axvline(means[name], color="black", linestyle="--", linewidth=1.2)
        axes.set_ylabel(f"{name}\n{len(emd_U):,} users", rotation=0, ha="right", va="center", parse_math=False)
        axes.set_title(f"mean {means[name]:.2f}", loc="right", fontsize=9, pad=2)
        axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
        axes.yaxis.set_major_locator(MaxNLocator(2))
        axes.spines[["top", "right"]].set_visible(False)
    rows[-1].set(xlabel="EMD of a user's labels from everyone's (0: the same, 2: disjoint)", xlim=(0, 2))
    caption = (
        "Earth mover's distance |q - p| between the label distribution of a user and that of all; dashed: its mean, "
        f"weighted by users' numbers of labels, as in figure 4 (top) of Hsu et al. (2020). {about}"
    )
    return CaptionedFigure(title, figure, caption.rstrip())


def draw_pixel_emd(actual: Array, real_sizes: Array, equal_sizes: Array, about: str) -> CaptionedFigure:
    """Share of users whose pixels are at most so far from everyone's (FLAIR, figure 2 right)."""
    middle, dealt = np.median(actual), np.median(real_sizes)
    title = f"Users' pixels are {middle:.1f} grey levels from everyone's; by chance {dealt:.1f} (medians)"
    figure, axes = new_axes(title, "EMD of a user's pixels from everyone's, in grey levels", "share of users")
    grid = np.linspace(0, 1, POINTS)
    lines = {
        "the actual users": (actual, COLORS[3], "-"),
        "dealt at random, real sizes": (real_sizes, COLORS[2], ":"),
        "dealt at random, equal sizes": (equal_sizes, COLORS[0], "--"),
    }
    for name, (emd_U, colour, dash) in lines.items():
        axes.plot(np.quantile(emd_U, grid), grid, color=colour, linestyle=dash, linewidth=2, label=name)
    axes.set_xlim(left=0)
    axes.set_ylim(0, 1.01)
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    _legend(axes, loc="lower right")
    return CaptionedFigure(title, figure, f"As in figure 2 (right) of FLAIR. {about}")


def draw_places(latitude_N: Array, longitude_N: Array, images: int) -> CaptionedFigure:
    """Where the images were taken: a dot each, degrees as they are (equirectangular)."""
    title = f"{len(latitude_N):,} of {images:,} images say where they were taken"
    figure, axes = new_axes(title, "longitude", "latitude", height=3.4)
    size = 2.5 if len(latitude_N) < 20_000 else 1
    axes.plot(
        longitude_N, latitude_N, ".", color=COLORS[0], markersize=size, alpha=0.5, markeredgewidth=0, rasterized=True
    )
    axes.set(xlim=(-180, 180), ylim=(-90, 90), aspect="equal")
    axes.set_xticks(range(-180, 181, 60), [f"{abs(d)}°{'W' * (d < 0) or 'E' * (d > 0)}" for d in range(-180, 181, 60)])
    axes.set_yticks(range(-90, 91, 30), [f"{abs(d)}°{'S' * (d < 0) or 'N' * (d > 0)}" for d in range(-90, 91, 30)])
    axes.grid(color="0.85", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(True)
    return CaptionedFigure(title, figure, "A dot for each image, on degrees of longitude and latitude.")


def contact_sheet(population: Population, seed: int) -> list[str | ImageStrip]:
    """Images of users with few, middling and many."""
    g = chance.make_rng(seed, "data show/contact sheet")
    thirds = np.array_split(np.argsort(population.num_examples, kind="stable"), 3)
    thirds[2] = thirds[2][-SHOWN_USERS:]  # of those with many, the ones with most
    sheet: list[str | ImageStrip] = [
        "Users drawn at random from the third with fewest images and from the middle third, and the largest ones."
    ]
    for third, amount in zip(thirds, ("few", "a middling number of", "many"), strict=True):
        for user in g.choice(third, min(SHOWN_USERS, len(third)), replace=False):
            examples = population.examples(user)
            some = np.sort(g.choice(examples, min(SHOWN_IMAGES, len(examples)), replace=False))
            called = population.user_name(user)
            images = [
                _thumbnail(pixels, f"{_labels_of(population, example)} by user {called}")
                for example, pixels in zip(some, population.pixels(some), strict=True)
            ]
            title = f"User {called}, {amount} images: {len(some)} of {len(examples):,} shown"
            sheet.append(ImageStrip(title, images))
    return sheet


def _labels_of(population: Population, example: int) -> str:
    classes = population.labels.nonzero(np.array([example]))[1]
    return ", ".join(population.classes[c] for c in classes) or "no label"


def _thumbnail(pixels_HWC: NDArray[np.uint8], alt: str) -> Image:
    picture, buffer = Pillow.fromarray(pixels_HWC), io.BytesIO()
    picture.thumbnail((SHOWN_SIDE, SHOWN_SIDE))
    kind = "png" if max(picture.size) <= 64 else "jpeg"  # JPEG's blocks would be all that is seen of a small one
    picture.save(buffer, kind, quality=85)
    return Image(buffer.getvalue(), kind, alt, picture.width)


def _legend(axes: Axes, **where: Any) -> None:
    if len(axes.lines) > 1:
        for text in axes.legend(frameon=False, **where).get_texts():
            text.set_parse_math(False)


def _few(count: int) -> NDArray[np.int64]:
    """Places along a line of so many points that keep its shape, on even and on logarithmic axes."""
    spread = [np.linspace(0, count - 1, POINTS), np.geomspace(1, count, POINTS) - 1]
    return np.unique(np.concatenate(spread).round().astype(np.int64))


def _short(name: str) -> str:
    return name if len(name) <= 20 else f"{name[:19]}…"
