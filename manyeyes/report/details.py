"""Below the averages: the score of each class and of each user, and the data that a run was trained on."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from manyeyes.metrics import PERSONALIZED
from manyeyes.report.chart import Axis, Chart, Series, make_series
from manyeyes.report.curves import Group
from manyeyes.report.overview import ranked
from manyeyes.report.page import ChartGrid, Section
from manyeyes.report.population_charts import MAX_NAMED_LABELS, label_chart
from manyeyes.report.table import table_of
from manyeyes.report.text import format_value
from manyeyes.report.users import METRIC_LABELS, user_chart, user_scores, user_table
from manyeyes.training.run_record import RunRecord

LOG_RATIO = 3  # of the most to the fewest images of a class, from which an axis is logarithmic

Stats = dict[str, Any]  # of a population, or of one of its splits


def classes_section(groups: list[Group]) -> Section | None:
    """Return the score of each class against its number of images (FLAIR, figure 4)."""
    scored = list(_first_runs(groups, "class_rows"))
    if not scored:
        return None
    has_training_counts = all(_training_counts(run) for _, run in scored)
    series = [_class_series(group, run, has_training_counts) for group, run in scored]
    best = next((i for group in ranked(groups) for i, (other, _) in enumerate(scored) if other == group), 0)
    text = " or ".join(sorted({_class_label(run) for _, run in scored}))
    counts = [x for of_group in series for x in of_group.x if x > 0]
    is_log = bool(counts) and max(counts) >= LOG_RATIO * min(counts)
    label = f"{'training' if has_training_counts else 'evaluated'} images with the class"
    x_axis = Axis(label, log=is_log, integer=True)
    y_axis = Axis(text, percent=True, low=0, high=1)
    title = f"{text[0].upper()}{text[1:]} of each class by its number of images"
    caption = f"Each point is a class of the evaluated split{_seed_note(groups)}."
    chart = Chart("classes", title, x_axis, y_axis, series, caption, height=340)
    return Section("Classes", [_best_and_worst(series[best]), ChartGrid([chart])])


def users_section(groups: list[Group]) -> Section | None:
    """Return the score of each user, sorted (FLAIR, figure 5)."""
    runs = _first_runs(groups, "user_rows")
    scores = [scores for group, run in runs for scores in user_scores(run, group.name, group.color)]
    caption = f"The score of each evaluated user, in ascending order{_seed_note(groups)}."
    return Section("Users", [ChartGrid([user_chart(scores, caption)]), user_table(scores)]) if scores else None


def data_section(groups: list[Group]) -> Section | None:
    """Return how many images users and classes have, and how heterogeneous users are, once for each population."""
    names: dict[str, list[str]] = {}
    for run in (run for group in groups for run in group.runs if run.dataset_stats):
        names.setdefault(json.dumps(run.dataset_stats), []).append(run.name)
    content: list[Any] = []
    for number, (stats, run_names) in enumerate(names.items(), 1):
        if len(names) > 1:
            content.append(f"The population of {', '.join(run_names)}:")
        content += _population(json.loads(stats), f"{number}" if len(names) > 1 else "")
    return Section("Data", content) if content else None


def _first_runs(groups: list[Group], rows: str) -> Iterator[tuple[Group, RunRecord]]:
    """Yield the first run of each group that has these rows."""
    for group in groups:
        yield from [(group, run) for run in group.runs if getattr(run, rows)][:1]


def _class_metric(run: RunRecord) -> str:
    """Return the column of the scores that are shown: of personalized models if the run has them."""
    names = ("ap", "accuracy")
    return next(name for name in (*(PERSONALIZED + name for name in names), *names) if name in run.class_rows[0])


def _class_label(run: RunRecord) -> str:
    column = _class_metric(run)
    label = METRIC_LABELS[column.removeprefix(PERSONALIZED)]
    return f"{label} of personalized models" if column.startswith(PERSONALIZED) else label


def _class_series(group: Group, run: RunRecord, has_training_counts: bool) -> Series:
    evaluated = [row for row in run.class_rows if int(row["examples"])]
    counts = _training_counts(run) if has_training_counts else {}
    x = [counts.get(row["class"], 0) if counts else int(row["examples"]) for row in evaluated]
    y = [float(row[_class_metric(run)]) for row in evaluated]
    return Series(group.name, x, y, kind="points", color=group.color, labels=[row["class"] for row in evaluated])


def _training_counts(run: RunRecord) -> dict[str, int]:
    """Return the number of training images with each class; empty if the run does not know it."""
    split = run.dataset_stats.get("splits", {}).get("train")
    return dict(zip(run.dataset_stats["classes"], split["class_images"], strict=True)) if split else {}


def _best_and_worst(series: Series) -> str:
    order = np.argsort([value or 0 for value in series.y], kind="stable").tolist()
    if not order:
        return ""
    worst, best = (f"{series.labels[i]} ({format_value(series.y[i], percent=True)})" for i in (order[0], order[-1]))
    return f"{series.name}: highest for {best}, lowest for {worst}, of {len(order)} classes."


def _population(stats: Stats, suffix: str) -> list[Any]:
    splits: dict[str, Stats] = stats["splits"]
    columns: dict[str, Callable[[Stats], object]] = {
        "users": lambda split: split["users"],
        "images": lambda split: split["images"],
        "images per user, median": lambda split: _percentile(split["size_percentiles"], 50),
        "images of the largest user": lambda split: _percentile(split["size_percentiles"], 100),
        "classes per user, median": lambda split: _percentile(split["class_percentiles"], 50),
        "classes without an image": lambda split: split["class_images"].count(0),
        "mean EMD between the classes of a user and of all, 0 to 2": lambda split: f"{split['mean_emd']:.3f}",
    }
    height, width = stats["pixels"]
    caption = f"{len(stats['classes']):,} classes, {stats['labels']}, stored at {width} x {height} pixels"
    x = Axis("% of users, in ascending order", low=0, high=100)
    sizes, skew = (
        make_series({name: (np.linspace(0, 100, len(split[key])), split[key]) for name, split in splits.items()})
        for key in ("size_percentiles", "emd_percentiles")
    )
    y, emd_y = Axis("images of a user", log=True), Axis("EMD", low=0, high=2)
    emd = "The distance |q - p| of each user's class distribution from that of all (Hsu et al. 2020, section 6.1)."
    charts = [
        _class_counts(stats, suffix),
        Chart(f"user_sizes{suffix}", "Images of each user", x, y, sizes, "Users by their number of images."),
        Chart(f"skew{suffix}", "Heterogeneity of users", x, emd_y, skew, emd),
    ]
    return [table_of(caption, splits.items(), columns).transposed(), ChartGrid(charts)]


def _class_counts(stats: Stats, suffix: str) -> Chart:
    counts = {name: np.array(split["class_images"]) for name, split in stats["splits"].items()}
    are_numbers = all(name.isdecimal() for name in stats["classes"])
    keys = list(map(int, stats["classes"])) if are_numbers else -next(iter(counts.values()))
    order = np.argsort(keys, kind="stable")
    names = tuple(stats["classes"][c] for c in order)
    columns = {name: counts_C[order] for name, counts_C in counts.items()}
    axis = Axis("images", log=len(names) > MAX_NAMED_LABELS, integer=True)
    caption = "In the order of their numbers." if are_numbers else "The most common class first."
    return label_chart(f"class_counts{suffix}", "Images with each class", names, axis, columns, "line", caption)


def _percentile(percentiles: list[float], percent: int) -> str:
    return f"{percentiles[percent * (len(percentiles) - 1) // 100]:,.0f}" if percentiles else ""


def _seed_note(groups: list[Group]) -> str:
    return ", with the first of several seeds" if any(len(group.runs) > 1 for group in groups) else ""
