"""Charts and example images of a population: how much each user has of what, and how heterogeneous users are."""

import io
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray
from PIL import Image as Pillow

from manyeyes.core.population import Ints, Population
from manyeyes.core.rng import make_rng
from manyeyes.metrics.arrays import Floats
from manyeyes.metrics.heterogeneity import SplitStats
from manyeyes.report.chart import Axis, Chart, Kind, ReferenceLine, Series, make_series
from manyeyes.report.page import Image, ImageStrip

LARGEST_FRACTION = 0.023  # of the users, as in FLAIR's section 4.2, or one user of few
MAX_NAMED_LABELS = 40  # with bars; more are a line
LOG_RATIO = 20  # of the largest to the smallest value, from which an axis is logarithmic
LOG_USERS = 100  # from which ranks are logarithmic
MIN_LOG_COUNT = 0.8  # so that a count of 1 is visible
MAX_LOCATIONS = 5_000
NUM_EMD_BINS, MAX_EMD = 60, 2.0
GRAY = 6  # index into the palette
USERS_PER_THIRD, IMAGES_PER_USER = 4, 6  # of the example images
THUMBNAIL_PIXELS, PNG_PIXELS = 192, 64  # longer side; up to the second, a JPEG would show its blocks


def cumulative_share(sizes_U: Ints) -> Floats:
    """Return the share of all images that the largest 0, 1, 2, ... users have."""
    return np.concatenate([[0], np.cumsum(np.sort(sizes_U)[::-1])]) / sizes_U.sum()


def share_of_largest(sizes_U: Ints, fraction: float = LARGEST_FRACTION) -> float:
    """Return the share of all images that this fraction of users has, the largest ones."""
    share_U = cumulative_share(sizes_U)
    return float(np.interp(fraction, np.linspace(0, 1, len(share_U)), share_U))


def largest_users(num_users: int) -> tuple[str, float]:
    """Return which users are the largest, in words and as a fraction: one user where that is more."""
    if num_users * LARGEST_FRACTION < 1:
        return "largest user", 1 / num_users
    return f"largest {100 * LARGEST_FRACTION:.1f} % of users", LARGEST_FRACTION


def quantity_chart(splits: Sequence[SplitStats]) -> Chart:
    """Return the cumulative share of images over users in descending order (FLAIR, figure 2 left)."""
    shares = {split.name: cumulative_share(split.sizes_U) for split in splits}
    series = make_series({name: (np.linspace(0, 1, len(share_U)), share_U) for name, share_U in shares.items()})
    series.append(Series("users of equal size", [0, 1], [0, 1], dashed=True, color=GRAY))
    largest, fraction = largest_users(len(splits[0].sizes_U))
    share = 100 * share_of_largest(splits[0].sizes_U, fraction)
    title = f"Share of images held by the {largest}: {share:.0f} %"
    x_axis = Axis("users, the largest first", percent=True, low=0, high=1)
    y_axis = Axis("share of all images", percent=True, low=0, high=1.02)
    caption = "Cumulative share of images over users in descending order, as in figure 2 (left) of FLAIR."
    return Chart(
        "quantity",
        title,
        x_axis,
        y_axis,
        series,
        caption,
        [ReferenceLine(largest.removesuffix(" of users"), x=fraction)],
    )


def images_chart(splits: Sequence[SplitStats]) -> Chart:
    """Return the number of images of each user (Hsu et al. 2020, figures 2 and 3)."""
    sizes_U = splits[0].sizes_U
    title = f"Users have from {sizes_U.min():,} to {sizes_U.max():,} images"
    if sizes_U.min() == sizes_U.max():
        title = f"Every user has {sizes_U.max():,} images"
    caption = "Images of each user, the largest first, as in figures 2 and 3 of Hsu et al. (2020)."
    return _rank_chart("images_by_rank", title, "images of the user", {s.name: s.sizes_U for s in splits}, caption)


def classes_chart(splits: Sequence[SplitStats]) -> Chart:
    """Return the number of different classes of each user (Hsu et al. 2020, figures 2, 3 and 10)."""
    median, num_classes = np.median(splits[0].classes_U), len(splits[0].labels_C)
    title = f"Half of the users have {median:g} or fewer of the {num_classes:,} classes"
    if splits[0].classes_U.min() == splits[0].classes_U.max():
        title = f"Every user has {median:g} of the {num_classes:,} classes"
    elif median == num_classes:
        title = f"Half of the users or more have all {num_classes:,} classes"
    caption = "Different classes of each user, the most varied first, as in figures 2, 3 and 10 of Hsu et al. (2020)."
    counts = {split.name: split.classes_U for split in splits}
    return _rank_chart("classes_by_rank", title, "different classes of the user", counts, caption)


def label_charts(split: SplitStats, classes: Sequence[str]) -> list[Chart]:
    """Return the frequency of each label, and the share of users who have it (FLAIR, figure 3)."""
    order = np.argsort(-split.labels_C, kind="stable")
    names, counts_C = tuple(classes[c] for c in order), split.labels_C[order]
    users_C = split.holders_C[order] / len(split.sizes_U)
    images_axis = _count_axis("images with the label", counts_C)
    users_axis = Axis("users with the label", percent=True, log=len(names) > MAX_NAMED_LABELS)
    images_title = f"Most common class: {names[0]} ({100 * counts_C[0] / split.sizes_U.sum():.0f} % of images)"
    users_title = f"Users who have {names[0]}: {100 * users_C[0]:.0f} %"
    caption = "The most common label first, as in figure 3 of FLAIR."
    return [
        label_chart("labels", images_title, names, images_axis, {"images": counts_C}, "line", caption),
        label_chart("label_users", users_title, names, users_axis, {"users": users_C}, "points", caption),
    ]


def label_chart(
    name: str, title: str, labels: tuple[str, ...], y: Axis, columns: Mapping[str, ArrayLike], kind: Kind, caption: str
) -> Chart:
    """Return one or more values of each label: as bars or, if there are many labels, as series of this kind."""
    is_named = len(labels) <= MAX_NAMED_LABELS
    x = Axis("", names=labels) if is_named else Axis("labels, the most common first")
    points = {key: (range(len(labels)), values) for key, values in columns.items()}
    series = make_series(points, "bars") if is_named else make_series(points, kind, labels)
    return Chart(name, title, x, y, series, caption)


def label_emd_chart(splits: Sequence[SplitStats], note: str) -> Chart:
    """Return the distribution of the users' EMD, and its weighted mean (Hsu et al. 2020, figure 4 top)."""
    edges, columns = np.linspace(0, MAX_EMD, NUM_EMD_BINS + 1), {}
    for split in splits:
        fractions = np.histogram(split.emd_U, edges)[0] / max(1, len(split.emd_U))
        columns[f"{split.name} ({len(split.emd_U):,} users)"] = (edges, np.append(fractions, fractions[-1]))
    reference_lines = [ReferenceLine(f"{split.name}: mean {split.mean_emd:.2f}", x=split.mean_emd) for split in splits]
    title = f"Mean distance of users' labels: {splits[0].mean_emd:.2f} of at most 2"
    x_axis = Axis("EMD of a user's labels from those of all (0: the same, 2: disjoint)", low=0, high=MAX_EMD)
    y_axis = Axis(f"share of users, in bins of {MAX_EMD / NUM_EMD_BINS:.2g}", percent=True, low=0)
    caption = (
        "Earth mover's distance |q - p| between the label distribution of a user and that of all; dashed: its mean, "
        f"weighted by users' numbers of labels, as in figure 4 (top) of Hsu et al. (2020). {note}"
    )
    return Chart("label_emd", title, x_axis, y_axis, make_series(columns, "steps"), caption.strip(), reference_lines)


def pixel_emd_chart(actual_U: Floats, real_sizes: Floats, equal_sizes: Floats, note: str) -> Chart:
    """Return the cumulative distribution of the distance of users' pixels from those of all (FLAIR, figure 2 right)."""
    actual, random = np.median(actual_U), np.median(real_sizes)
    title = f"Users' pixels differ by {actual:.1f} gray levels, and by {random:.1f} if assigned at random (medians)"
    values = {
        "actual users": actual_U,
        "random assignment, real sizes": real_sizes,
        "random assignment, equal sizes": equal_sizes,
    }
    series = make_series({name: (np.sort(e), (np.arange(len(e)) + 1) / len(e)) for name, e in values.items()})
    x_axis = Axis("EMD of a user's pixels from those of all, in gray levels", low=0)
    y_axis = Axis("share of users with at most this EMD", percent=True, low=0, high=1.01)
    return Chart("pixel_emd", title, x_axis, y_axis, series, f"As in figure 2 (right) of FLAIR. {note}")


def location_chart(latitude_N: Floats, longitude_N: Floats, num_images: int, seed: int) -> Chart:
    """Return where the images were taken, on degrees of longitude and latitude."""
    title = f"{len(latitude_N):,} of {num_images:,} images have coordinates"
    caption = "A dot for each image."
    if len(latitude_N) > MAX_LOCATIONS:
        sample = make_rng(seed, "data inspect/locations").choice(len(latitude_N), MAX_LOCATIONS, replace=False)
        latitude_N, longitude_N = latitude_N[sample], longitude_N[sample]
        caption = f"A dot for each of {MAX_LOCATIONS:,} images drawn at random."
    x_axis = Axis("longitude, degrees", low=-180, high=180, ticks=tuple(range(-180, 181, 60)))
    y_axis = Axis("latitude, degrees", low=-90, high=90, ticks=tuple(range(-90, 91, 30)))
    series = Series("images", longitude_N.tolist(), latitude_N.tolist(), kind="points")
    return Chart("locations", title, x_axis, y_axis, [series], caption)


def example_images(population: Population, seed: int) -> list[str | ImageStrip]:
    """Return images of users with few, a medium number of, and many images; of few users, those of all."""
    rng = make_rng(seed, "data show/contact sheet")
    thirds = np.array_split(np.argsort(population.num_examples, kind="stable"), 3)
    thirds[2] = thirds[2][-USERS_PER_THIRD:]
    amounts = (", few images", ", a medium number of images", ", many images")
    content: list[str | ImageStrip] = [
        "Users drawn at random from the third with the fewest images and from the middle third, and the largest users."
    ]
    if len(population.user_ids) <= 3 * USERS_PER_THIRD:
        content, amounts = ["All users, those with the fewest images first."], ("", "", "")
    for third, amount in zip(thirds, amounts, strict=True):
        for user in rng.choice(third, min(USERS_PER_THIRD, len(third)), replace=False):
            examples = population.examples(user)
            sample = np.sort(rng.choice(examples, min(IMAGES_PER_USER, len(examples)), replace=False))
            name = population.user_name(user)
            images = [
                _thumbnail(pixels, f"{_label_names(population, example)} by user {name}")
                for example, pixels in zip(sample, population.rgb_pixels(sample), strict=True)
            ]
            content.append(ImageStrip(f"User {name}{amount}: {len(sample)} of {len(examples):,} shown", images))
    return content


def _rank_chart(name: str, title: str, label: str, counts: Mapping[str, Ints], caption: str) -> Chart:
    series = make_series({key: (np.arange(len(c)) + 1, np.sort(c)[::-1]) for key, c in counts.items()})
    x_axis = Axis("rank of the user", log=max(map(len, counts.values())) > LOG_USERS, integer=True)
    return Chart(name, title, x_axis, _count_axis(label, np.concatenate(list(counts.values()))), series, caption)


def _count_axis(label: str, counts: Ints) -> Axis:
    is_log = bool(counts.max() > LOG_RATIO * max(1, counts.min()))
    return Axis(label, log=is_log, integer=True, low=MIN_LOG_COUNT if is_log else 0)


def _label_names(population: Population, example: int) -> str:
    classes = population.labels.nonzero(np.array([example]))[1]
    return ", ".join(population.classes[c] for c in classes) or "no label"


def _thumbnail(pixels_HWC: NDArray[np.uint8], alt: str) -> Image:
    picture, buffer = Pillow.fromarray(pixels_HWC), io.BytesIO()
    picture.thumbnail((THUMBNAIL_PIXELS, THUMBNAIL_PIXELS))
    format = "png" if max(picture.size) <= PNG_PIXELS else "jpeg"
    picture.save(buffer, format, quality=85)
    return Image(buffer.getvalue(), format, alt, picture.width)
