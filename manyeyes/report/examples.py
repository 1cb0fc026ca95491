"""Typical and misclassified images of a run, by class and by user."""

import base64
from typing import Any

from manyeyes.report.curves import Group
from manyeyes.report.overview import ranked
from manyeyes.report.page import Block, Image, ImageStrip, Section
from manyeyes.report.text import format_value
from manyeyes.training.run_record import RunRecord


def examples_section(groups: list[Group]) -> Section | None:
    """Return the images of the best run that has any; private runs have none."""
    runs = [run for group in ranked(groups) for run in group.finished]
    run = next((run for run in runs if run.example_images), None)
    if run is None:
        return None
    text = (
        f"A few images of the {run.settings.get('eval_split', 'evaluated')} split, with the prediction of the run {run.name} and "
        "its probability: of each class those that the model is most sure of, and those that it misses most; then of the "
        "users with the most mistakes. They are drawn from at most 256 images."
    )
    content: list[str | Block] = [text + _shown_classes(run)]
    for by in ("class", "user"):
        headings = dict.fromkeys(entry["heading"] for entry in run.example_images if entry["by"] == by)
        for heading in headings:
            entries = [entry for entry in run.example_images if (entry["by"], entry["heading"]) == (by, heading)]
            content.append(ImageStrip(heading, list(map(captioned_image, entries))))
    return Section("Images", content)


def _shown_classes(run: RunRecord) -> str:
    """Return how many of the classes have images, if not all do."""
    num_shown = len({entry["heading"] for entry in run.example_images if entry["by"] == "class"})
    num_classes = len(run.dataset_stats.get("classes", run.class_rows))
    return f" {num_shown} of {num_classes:,} classes shown." if num_shown < num_classes else ""


def captioned_image(entry: dict[str, Any]) -> Image:
    """Return an image of a run, with its label, the prediction and its probability."""
    probability = format_value(entry["probability"], percent=True)
    label, prediction = f"labeled {entry['class']}", f"predicted {entry['predicted']}"
    caption = [f"✓ {label}"] if entry["is_correct"] else [f"✗ {label}", prediction]
    data = base64.b64decode(entry["data"])
    return Image(
        data, entry["format"], f"{label}, {prediction} ({probability})", entry["width"], [*caption, probability]
    )
