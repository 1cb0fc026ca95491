"""`manyeyes data inspect`: a population and how heterogeneous its users are, with the charts that papers have of datasets."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from manyeyes.core.population import CAVEAT_SEPARATOR, Ints, Population
from manyeyes.core.rng import make_rng
from manyeyes.metrics.arrays import Floats
from manyeyes.metrics.heterogeneity import SplitStats, split_stats
from manyeyes.report import population_charts as charts
from manyeyes.report.chart import Chart
from manyeyes.report.export import write_page_folder
from manyeyes.report.page import ChartGrid, Section
from manyeyes.report.population_charts import cumulative_share, largest_users, share_of_largest
from manyeyes.report.table import Table, table_of
from manyeyes.report.text import format_value, printable
from manyeyes.training.run_files import with_caveats

MAX_SAMPLED_IMAGES, MAX_IMAGES_PER_USER = 4000, 32  # whose pixels are read
SEED = 0  # of everything that is drawn at random
NUM_SIMULATIONS = 10  # of a random assignment of images to users
BATCH_IMAGES = 64  # whose pixels are in memory
MAX_LABEL_ROWS, NUM_RARE_LABELS = 30, 10  # of the table of labels
SPLIT_ORDER = ("train", "val", "test")
QUARTILES = (0.25, 0.5, 0.75)


@dataclass(frozen=True, eq=False)
class PixelSkew:
    """How far users' average pixel histograms are from that of all, on a sample of the images with one label."""

    label: str
    users: int
    images: int
    actual: Floats
    real_sizes: Floats  # images assigned at random, each user keeping its number of them
    equal_sizes: Floats  # assigned at random, the same number to every user


def population_stats(population: Population) -> list[SplitStats]:
    """Return the statistics of all users, then those of each split if there are several."""
    unsorted = map(str, np.unique(np.asarray(population.columns.get("split", ()))))
    names = sorted(unsorted, key=lambda name: ([*SPLIT_ORDER, name].index(name), name))
    splits = [split_stats(printable(name), population.split(name)) for name in names if len(names) > 1]
    return [split_stats("all", population), *splits]


def without_pooled(population: Population) -> tuple[Population, int]:
    """Return the examples of users, and how many others there are: a split with one user of its own name is pooled."""
    split_N = np.asarray(population.columns.get("split", ()))
    names = [name for name in np.unique(split_N) if _is_pooled(population.split(name), str(name))]
    if not names or len(names) == len(np.unique(split_N)):
        return population, 0
    is_pooled_N = np.isin(split_N, names)
    return population.filter(~is_pooled_N), int(is_pooled_N.sum())


def _is_pooled(split: Population, name: str) -> bool:
    return len(split.user_ids) == 1 and split.user_name(0) == name


def users_with_half(sizes_U: Ints) -> float:
    """Return the smallest fraction of users who together have half of all images."""
    return float(np.searchsorted(cumulative_share(sizes_U), 0.5) / len(sizes_U))


def pixel_skew(population: Population, seed: int = SEED) -> PixelSkew | None:
    """Measure FLAIR's figure 2 (right): only images with the most common label, to leave out the skew of labels."""
    if not population.class_counts.any():
        return None
    label = int(population.class_counts.argmax())
    rng = make_rng(seed, "data show/pixels")
    examples, sizes_U = _sample(population, label, rng)
    batches = np.array_split(examples, len(examples) // BATCH_IMAGES + 1)
    histograms_NB = np.concatenate([_cumulative_histograms(population, batch) for batch in batches])
    equal_U = np.diff(np.arange(len(sizes_U) + 1) * len(examples) // len(sizes_U))
    shuffles = (histograms_NB[rng.permutation(len(examples))] for _ in range(NUM_SIMULATIONS))
    simulated = [(pixel_emd(shuffle, sizes_U), pixel_emd(shuffle, equal_U)) for shuffle in shuffles]
    real_sizes, equal_sizes = map(np.concatenate, zip(*simulated, strict=True))
    name = printable(population.classes[label])
    return PixelSkew(name, len(sizes_U), len(examples), pixel_emd(histograms_NB, sizes_U), real_sizes, equal_sizes)


def pixel_emd(histograms_NB: NDArray[np.float32], sizes_U: Ints) -> Floats:
    """Return the earth mover's distance of each user's mean histogram from that of all, in gray levels.

    It is the mean over red, green and blue. Rows are cumulative histograms in the order of users: on a line,
    EMD(q, p) = sum_b |Q(b) - P(b)|.
    """
    starts = np.cumsum(sizes_U) - sizes_U
    mean_UB = np.add.reduceat(histograms_NB, starts, dtype=np.float64) / sizes_U[:, None]
    return np.asarray(np.abs(mean_UB - histograms_NB.mean(axis=0, dtype=np.float64)).sum(axis=1) / 3)


def _sample(population: Population, label: int, rng: np.random.Generator) -> tuple[Ints, Ints]:
    """Return examples with the label, in the order of randomly sorted users, and how many each user has."""
    example, classes = population.labels.nonzero()
    shuffled = rng.permutation(example[classes == label])
    _, user, counts = np.unique(population.owners(shuffled), return_inverse=True, return_counts=True)
    rank = rng.permutation(len(counts))
    order = np.argsort(rank[user], kind="stable")
    counts = counts[np.argsort(rank)]
    index_within_user = np.arange(len(shuffled)) - np.repeat(np.cumsum(counts) - counts, counts)
    sizes = np.minimum(counts, MAX_IMAGES_PER_USER)
    sizes = sizes[np.cumsum(sizes) <= MAX_SAMPLED_IMAGES]
    return shuffled[order][index_within_user < MAX_IMAGES_PER_USER][: sizes.sum()], sizes


def _cumulative_histograms(population: Population, examples: Ints) -> NDArray[np.float32]:
    """Return the cumulative histogram of each image's red, green and blue [N, 3 * 256]."""
    pixels_NPC = population.rgb_pixels(examples).reshape(len(examples), -1, 3)
    counts = [[np.bincount(pixels_PC[:, c], minlength=256) for c in range(3)] for pixels_PC in pixels_NPC]
    return (np.cumsum(counts, axis=2) / pixels_NPC.shape[1]).astype(np.float32).reshape(len(examples), -1)


def show(population: Population, name: str, out: Path) -> str:
    """Write the page and its charts into the folder `out`, and return a summary for a terminal."""
    population, num_pooled = without_pooled(population)
    name, splits = with_caveats(printable(name), population.caveats), population_stats(population)
    pixels = pixel_skew(population)
    height, width, _ = population.image_shape
    labels = "several labels per image" if population.labels.multi else "one label per image"
    lead = (
        f"{len(population.user_ids):,} users, {len(population):,} images of {width} x {height} pixels, "
        f"{len(population.classes):,} classes, {labels}."
    )
    lead += f" {num_pooled:,} more images, such as a pooled test set, belong to no user and are left out." * (
        num_pooled > 0
    )
    overview, caveat = _overview(splits), CAVEAT_SEPARATOR.join(population.caveats)
    sections = [section.with_caveat(caveat) for section in _sections(population, splits, pixels, overview)]
    write_page_folder(out, f"Dataset {name}", lead, sections)
    lines = [f"{name}: {lead}", overview.terminal(width=max(80, 36 + 16 * len(splits)))]
    if pixels is not None:
        lines.append(
            f"median EMD of users' pixels in images of {pixels.label}: {np.median(pixels.actual):.1f} gray levels, "
            f"{np.median(pixels.real_sizes):.1f} if assigned at random "
            f"({pixels.images:,} images of {pixels.users:,} users)"
        )
    return "\n".join([*lines, f"charts and page: {out / 'index.html'}"])


def _sections(population: Population, splits: list[SplitStats], skew: PixelSkew | None, table: Table) -> list[Section]:
    labels = charts.label_charts(splits[0], [printable(name) for name in population.classes])
    sections = [
        Section("Overview", [table]),
        Section("Images of users", [ChartGrid([charts.quantity_chart(splits), charts.images_chart(splits)])]),
        Section("Labels", [ChartGrid([*labels, charts.classes_chart(splits)]), _label_table(population, splits[0])]),
        Section("Heterogeneity of users", [ChartGrid(_heterogeneity_charts(population, splits, skew))]),
    ]
    locations_N2 = _locations(population)
    if len(locations_N2):
        chart = charts.location_chart(locations_N2[:, 0], locations_N2[:, 1], len(population), SEED)
        sections.append(Section("Locations", [ChartGrid([chart])]))
    return [*sections, Section("Example images", charts.example_images(population, SEED))]


def _heterogeneity_charts(population: Population, splits: list[SplitStats], pixels: PixelSkew | None) -> list[Chart]:
    num_unlabeled = len(population.user_ids) - len(splits[0].emd_U)
    notes = {
        "A user's distribution is how often each label occurs in its images.": population.labels.multi,
        "The users of a split are compared with that split.": len(splits) > 1,
        f"{num_unlabeled:,} users without any label are left out.": num_unlabeled > 0,
    }
    chart = charts.label_emd_chart(splits, " ".join(note for note, applies in notes.items() if applies))
    if pixels is None:
        return [chart]
    note = (
        f"Measured on the most common label, {pixels.label}: {pixels.images:,} images of {pixels.users:,} users "
        f"drawn at random with seed {SEED} (at most {MAX_IMAGES_PER_USER} per user and {MAX_SAMPLED_IMAGES:,} in all), "
        f"which are then assigned at random {NUM_SIMULATIONS} times; the mean over red, green and blue."
    )
    return [chart, charts.pixel_emd_chart(pixels.actual, pixels.real_sizes, pixels.equal_sizes, note)]


def _locations(population: Population) -> Floats:
    """Return the latitude and longitude of the images that have them [N, 2]."""
    for names in (("latitude", "longitude"), ("lat", "lon")):
        if all(name in population.columns for name in names):
            columns = [np.asarray(population.columns[name], np.float64) for name in names]
            locations_N2: Floats = np.stack(columns, axis=1)
            return locations_N2[np.isfinite(locations_N2).all(axis=1)]
    return np.empty((0, 2))


def _overview(splits: list[SplitStats]) -> Table:
    num_images, (largest, fraction) = splits[0].sizes_U.sum(), largest_users(len(splits[0].sizes_U))
    columns: dict[str, Callable[[SplitStats], object]] = {
        "users": lambda split: len(split.sizes_U),
        "images": lambda split: split.sizes_U.sum(),
        "share of the images": lambda split: format_value(split.sizes_U.sum() / num_images, percent=True),
        "classes that occur": lambda split: f"{np.count_nonzero(split.labels_C):,} of {len(split.labels_C):,}",
        "labels per image, mean": lambda split: f"{split.labels_C.sum() / split.sizes_U.sum():.2f}",
        "images per user, quartiles": lambda split: "{:g} / {:g} / {:g}".format(*np.quantile(split.sizes_U, QUARTILES)),
        "images per user, mean": lambda split: f"{split.sizes_U.mean():.2f}",
        "images per user, maximum": lambda split: split.sizes_U.max(),
        f"share of the {largest}": lambda split: format_value(share_of_largest(split.sizes_U, fraction), percent=True),
        "users who have half of the images": lambda split: format_value(users_with_half(split.sizes_U), percent=True),
        "classes per user, median": lambda split: f"{np.median(split.classes_U):g}",
        "mean EMD of labels": lambda split: f"{split.mean_emd:.3f}",
    }
    return table_of("The population and its splits", [(split.name, split) for split in splits], columns).transposed()


def _label_table(population: Population, stats: SplitStats) -> Table:
    order = np.argsort(-stats.labels_C, kind="stable")
    caption = "Labels by frequency"
    if len(order) > MAX_LABEL_ROWS:
        num_common = MAX_LABEL_ROWS - NUM_RARE_LABELS
        caption = f"The {num_common} most common labels and the {NUM_RARE_LABELS} rarest, of {len(order):,}"
        order = np.concatenate([order[:num_common], order[-NUM_RARE_LABELS:]])
    rows = []
    for c in order:
        images, users = stats.labels_C[c], stats.holders_C[c]
        cells = [
            f"{images:,}",
            format_value(images / len(population), percent=True),
            f"{users:,}",
            format_value(users / len(stats.sizes_U), percent=True),
        ]
        rows.append([population.classes[c], *cells])
    return Table(caption, ["label", "images", "of images", "users", "of users"], rows)
