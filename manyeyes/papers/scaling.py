"""Runs that are smaller or on synthetic images, each with a sentence that says how it differs from the paper's."""

import math
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise

from manyeyes.papers.exhibit import DatasetRecipe, RunRecipe
from manyeyes.papers.metric import shrink
from manyeyes.papers.printed import printed_table, read_paper

SCALED_BY_FACTOR, SCALED_BY_ROOT = read_paper("scaling")["by_factor"], read_paper("scaling")["by_root"]
EPOCH_SETTINGS = ("rounds", "evaluate_every")  # which count epochs in centralized training
MIN_IMAGE_SIZE = 32  # pixels per side
TRAIN_FRACTION = 0.8  # of FLAIR's users
SYNTHETIC_SENTENCE = "Synthetic images replace the dataset"


def scale(run: RunRecipe, factor: float) -> RunRecipe:
    """Return a smaller run: rounds and clients times the factor, images per client and pixels times its root.

    The rounds of a centralized run, which are epochs, are multiplied by the root too: its dataset is already smaller.
    Learning rates, batch sizes and local epochs stay. The cohort whose noise is simulated keeps its ratio to the
    cohort, as long as there are enough users.
    """
    if not 0 < factor <= 1:
        raise ValueError(f"scale is {factor}: it must be above 0 and at most 1.")
    root, is_centralized = math.sqrt(factor), run.setting("algorithm") == "centralized"
    shrunk, changes = {}, []
    for name, (title, minimum) in (SCALED_BY_FACTOR | SCALED_BY_ROOT).items():
        uses_root = name in SCALED_BY_ROOT or (is_centralized and name in EPOCH_SETTINGS)
        before = run.count(name)
        if (after := shrink(before, root if uses_root else factor, minimum)) != before:
            shrunk[name] = after
            changes += [f"{title} {before} to {after}"] if title else []
    if not changes:
        return run
    small = with_settings(run, shrunk)
    if noise_cohort_size := run.count("privacy.noise_cohort_size"):
        ratio = noise_cohort_size / run.count("sampler.cohort_size")
        max_size = int(TRAIN_FRACTION * small.count("data.users")) or noise_cohort_size  # of synthetic users
        size = min(round(ratio * small.count("sampler.cohort_size")), max_size)
        small = with_settings(small, {"privacy.noise_cohort_size": size})
        changes.append(f"cohort whose noise is simulated {noise_cohort_size} to {size}")
    if run.dataset is not None:
        dataset = _scale_dataset(run.dataset, root)
        small = replace(with_settings(small, {"data.path": dataset.path}), dataset=dataset)
    return replace(small, changes=(*run.changes, f"Scaled by {factor:g}: {', '.join(changes)}."))


def on_synthetic_data(run: RunRecipe) -> RunRecipe:
    """Return the run on synthetic images with the same kind of labels, users, images per user, image size and split.

    Where the paper divides the same images in several ways, these are too, by Dirichlet distributions. Pretrained
    weights are left out, and with them frozen batch statistics, which mean nothing without them.
    """
    settings = dict(override.split("=", 1) for override in run.settings)
    name, _, task = (settings.pop(key, "") for key in ("data", "data.path", "data.task"))
    arguments = run.dataset.arguments if run.dataset is not None else ()
    options = {option.removeprefix("--"): value for option, value in pairwise(arguments) if option.startswith("--")}
    data = {"data": "synthetic", "data.task": task or ("rating" if name == "flickr_aes" else "single")}
    kind = settings.get("partitioner", options.get("split", "-"))
    data |= _synthetic_options(name, kind)
    if "alpha" in options:
        data["partitioner.alpha"] = options["alpha"]
    if "partitioner.alpha" in data:
        data = {"partitioner": "dirichlet", **data}
    sentence = SYNTHETIC_SENTENCE
    if settings.pop("model.pretrained", ""):
        settings["model.norm"] = "group"
        sentence += ", and random weights the pretrained ones"
    overrides = tuple(f"{name}={value}" for name, value in (data | settings).items())
    return replace(run, settings=overrides, dataset=None, changes=(*run.changes, f"{sentence}."))


def cut(run: RunRecipe, max_rounds: int) -> RunRecipe:
    """Return the run with at most this many rounds (epochs of a centralized run); 0: with all of its rounds."""
    if not 0 < max_rounds < run.count("rounds"):
        return run
    changes = (*run.changes, f"Cut at {max_rounds} rounds of {run.count('rounds')}.")
    return replace(with_settings(run, {"rounds": max_rounds}), changes=changes)


def with_settings(run: RunRecipe, values: Mapping[str, object]) -> RunRecipe:
    """Return the run with other values of settings that it has."""
    pairs = (override.split("=", 1) for override in run.settings)
    return replace(run, settings=tuple(f"{name}={values.get(name, value)}" for name, value in pairs))


def _scale_dataset(dataset: DatasetRecipe, root: float) -> DatasetRecipe:
    """Return the dataset with smaller images, in a folder of its own; unchanged if its images cannot be smaller."""
    if "--size" not in dataset.arguments:
        return dataset
    index = dataset.arguments.index("--size") + 1
    size = str(shrink(int(dataset.arguments[index]), root, MIN_IMAGE_SIZE))
    arguments = (*dataset.arguments[:index], size, *dataset.arguments[index + 1 :])
    path = dataset.path if arguments == dataset.arguments else f"{dataset.path}_{size}px"
    return replace(dataset, path=path, arguments=arguments)


def _synthetic_options(name: str, kind: str) -> dict[str, str]:
    header, *rows = printed_table("synthetic", "datasets")
    values = {(row[0], row[1]): row[2:] for row in rows}
    sizes = zip(header[2:], values.get((name, kind)) or values[name, "-"], strict=True)
    return {name if "." in name else f"data.{name}": value for name, value in sizes if value != "-"}
