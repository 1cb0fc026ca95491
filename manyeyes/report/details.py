"""Below the averages: every class, every user, and the data that a run was trained on."""

import json
from typing import Any

import numpy as np

from manyeyes.report.chart import Axis, Chart, Mark, Series
from manyeyes.report.curves import Group
from manyeyes.report.page import ChartGrid, Section
from manyeyes.report.table import Table
from manyeyes.report.users import ADAPTED, NAMES

FEW = 40  # classes that have bars and names of their own
STEPS = 200  # points of a curve over users


def classes(groups: list[Group]) -> Section | None:
    """Each class's score against how common it is (FLAIR, figure 4)."""
    series, measures, trained = [], set(), True
    for group in groups:
        run = next((run for run in group.runs if run.class_rows), None)
        if run is None:
            continue
        measure = "ap" if "ap" in run.class_rows[0] else "accuracy"
        seen = [row for row in run.class_rows if int(row["examples"])]
        counts = _trained(run.dataset_stats)
        trained = trained and bool(counts)
        x = [counts.get(row["class"], 0) if counts else int(row["examples"]) for row in seen]
        y = [float(row[measure]) for row in seen]
        names = [row["class"] for row in seen]
        series.append(Series(group.name, x, y, kind="points", color=group.color, labels=names))
        measures.add(NAMES[measure])
    if not series:
        return None
    score = " or ".join(sorted(measures))
    axis = Axis("training images with the class" if trained else "evaluated images with the class", log=True)
    caption = "A point is a class that the evaluated part has" + _first_seed(groups) + "."
    title = f"{score[0].upper()}{score[1:]} of each class against how common it is"
    chart = Chart("classes", title, axis, Axis(score, percent=True, low=0, high=1), series, caption, height=340)
    return Section("Classes", [_extremes(series), ChartGrid([chart])])


def _extremes(series: list[Series]) -> str:
    """The best and the worst class of the first run, in words."""
    one = series[0]
    order = np.argsort([value or 0 for value in one.y], kind="stable")
    best, worst = int(order[-1]), int(order[0])
    return (
        f"With {one.name}, {one.labels[best]} does best ({one.y[best]:.1%}) and {one.labels[worst]} worst "
        f"({one.y[worst]:.1%}) of {len(one.x)} classes."
    )


def users(groups: list[Group]) -> Section | None:
    """Each user's own score, in order (FLAIR, figure 5)."""
    series, rows = [], []
    for group in groups:
        run = next((run for run in group.runs if run.user_rows), None)
        for column, scores in (run.user_scores() if run else {}).items():
            which = ADAPTED if column == "personalized" else ""
            values = np.sort(scores.values_U)
            place = (np.arange(len(values)) + 0.5) / max(1, len(values))
            at = np.unique(np.linspace(0, len(values) - 1, min(len(values), STEPS)).round().astype(int))
            name = group.name + which
            x, y = (100 * place[at]).tolist(), values[at].tolist()
            series.append(Series(name, x, y, dashed=bool(which), color=group.color))
            found = scores.summary()
            shown = ("mean", "weighted_mean", "worst_decile", "q05", "q25", "q50", "q75", "q95")
            rows.append([name, f"{len(values):,}", *(f"{found[key]:.3f}" for key in shown)])
    if not series:
        return None
    head = ["", "users", "mean", "by images", "worst tenth", "5 %", "25 %", "median", "75 %", "95 %"]
    x = Axis("% of users, the worst first", low=0, high=100)
    caption = "Each evaluated user's own score, users in order of it" + _first_seed(groups) + "."
    y = Axis("a user's own score", percent=True, low=0, high=1.02)
    marks = [Mark("worst tenth", x=10)]
    chart = Chart("users", "How the model serves each user", x, y, series, caption, marks)
    table = Table("Users' own scores; by images: users weighted by their images", head, rows)
    return Section("Users", [ChartGrid([chart]), table])


def data(groups: list[Group]) -> Section | None:
    """How many images users and classes have, and how unlike users are; once for every population."""
    found: dict[str, tuple[dict[str, Any], list[str]]] = {}
    for group in groups:
        for run in group.runs:
            if run.dataset_stats.get("parts"):
                known = found.setdefault(json.dumps(run.dataset_stats, sort_keys=True), (run.dataset_stats, []))
                known[1].append(run.name)
    if not found:
        return None
    content: list[Any] = []
    for number, (census, names) in enumerate(found.values()):
        if len(found) > 1:
            content.append(f"The population of {', '.join(dict.fromkeys(names))}:")
        content += _population(census, f"{number + 1}" if len(found) > 1 else "")
    return Section("Data", content)


def _population(census: dict[str, Any], mark: str) -> list[Any]:
    parts: dict[str, dict[str, Any]] = census["parts"]
    names, several = tuple(map(str, census["classes"])), census["labels"].startswith("several")
    numbers = {
        "users": lambda part: f"{part['users']:,}",
        "images": lambda part: f"{part['images']:,}",
        "images of a user, median": lambda part: _quantile(part["size_percentiles"], 50),
        "images of the largest user": lambda part: _quantile(part["size_percentiles"], 100),
        "classes of a user, median": lambda part: _quantile(part["class_percentiles"], 50),
        "classes without an image": lambda part: f"{sum(not count for count in part['class_images']):,}",
        "mean EMD between a user's classes and everyone's, 0 to 2": lambda part: f"{part['mean_emd']:.3f}",
    }
    rows = [[name, *(count(part) for part in parts.values())] for name, count in numbers.items()]
    height, width = census["pixels"]
    kind = "any number of classes an image" if several else "one class an image"
    caption = f"{len(names):,} classes, {kind}, stored at {width} x {height} pixels"
    table = Table(caption, ["", *parts], rows)
    return [table, ChartGrid([_class_counts(names, parts, mark), _sizes(parts, mark), _skew(parts, mark)])]


def _class_counts(names: tuple[str, ...], parts: dict[str, dict[str, Any]], mark: str) -> Chart:
    first = next(iter(parts.values()))["class_images"]
    order = np.argsort(first, kind="stable")[::-1].tolist()
    few = len(names) <= FEW
    series = [
        Series(
            name,
            list(range(len(order))),
            [part["class_images"][c] for c in order],
            kind="bars" if few else "line",
            color=number,
            labels=() if few else [names[c] for c in order],
        )
        for number, (name, part) in enumerate(parts.items())
    ]
    x = Axis(
        "classes" if few else "classes, the most common first", names=tuple(names[c] for c in order) if few else ()
    )
    title = "Images with each class"
    return Chart(f"class_counts{mark}", title, x, Axis("images", log=not few), series, "The most common class first.")


def _sizes(parts: dict[str, dict[str, Any]], mark: str) -> Chart:
    title, y = "Images of each user", Axis("images of a user", log=True)
    caption = "Users in order of how many images they hold."
    x = Axis("% of users, by images", low=0, high=100)
    return Chart(f"user_sizes{mark}", title, x, y, _percentiles(parts, "size_percentiles"), caption)


def _skew(parts: dict[str, dict[str, Any]], mark: str) -> Chart:
    caption = "The distance |q - p| of each user's class distribution from everyone's (Hsu et al. 2020, section 6.1)."
    x, y = Axis("% of users, by EMD", low=0, high=100), Axis("EMD", low=0, high=2)
    return Chart(f"skew{mark}", "Skew of each user", x, y, _percentiles(parts, "emd_percentiles"), caption)


def _percentiles(parts: dict[str, dict[str, Any]], key: str) -> list[Series]:
    return [
        Series(name, np.linspace(0, 100, len(part[key])).tolist(), part[key], color=number)
        for number, (name, part) in enumerate(parts.items())
    ]


def _quantile(percentiles: list[float], percent: int) -> str:
    return f"{percentiles[percent * (len(percentiles) - 1) // 100]:,.0f}" if percentiles else ""


def _trained(census: dict[str, Any]) -> dict[str, int]:
    part = census.get("parts", {}).get("train")
    return dict(zip(census["classes"], part["class_images"], strict=True)) if part else {}


def _first_seed(groups: list[Group]) -> str:
    return ", with the first seed of several" if any(len(group.runs) > 1 for group in groups) else ""
