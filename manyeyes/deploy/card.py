"""The model card of a run: a README in the format of the Hugging Face hub, from the files of the run."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from manyeyes.deploy.formats import input_size
from manyeyes.training.run_reader import read_run
from manyeyes.training.run_record import RunRecord
from manyeyes.training.trained_model import TrainedModel

LIBRARY = "manyeyes"
TASK = "image-classification"
PERCENT = ("accuracy", "macro_accuracy", "user_mean", "macro_ap", "micro_ap", "macro_f1", "micro_f1")  # ends of names


def model_card(folder: Path, model: TrainedModel, user: str | None = None) -> str:
    """Return the card of the model of a run folder, or of the personal model of one of its users."""
    run = read_run(folder)
    caveats = ", ".join(model.info.caveats)
    warning = [f"> **Not a result on real data**: {caveats}.\n"] if caveats else []
    if user is not None:
        warning.append("> The personal model of one user. The metrics below are those of the whole run.\n")
    paragraphs = [
        f"# {_title(run)}\n",
        *warning,
        *_use(model),
        *_training(run),
        *_metrics(model),
        *_privacy(model, run),
    ]
    return f"---\n{yaml.safe_dump(_front_matter(model, run), sort_keys=False)}---\n\n" + "\n".join(paragraphs)


def _title(run: RunRecord) -> str:
    return f"{_name(run, 'model')} trained with {_name(run, 'algorithm')}"


def _name(run: RunRecord, group: str) -> str:
    return str(run.settings.get(f"{group}.name") or "a custom " + group)


def _front_matter(model: TrainedModel, run: RunRecord) -> dict[str, Any]:
    metrics = [
        {"type": name, "name": name, "value": round(value, 4)}
        for name, value in _card_metrics(model.info.metrics).items()
    ]
    dataset = {"name": _dataset(model, run), "type": str(run.settings.get("data.name") or "custom")}
    result = {"task": {"type": TASK}, "dataset": dataset, "metrics": metrics}
    return {
        "library_name": LIBRARY,
        "pipeline_tag": TASK,
        "tags": ["federated-learning", *(["differential-privacy"] if model.info.privacy else [])],
        "model-index": [{"name": _title(run), "results": [result]}],
    }


def _dataset(model: TrainedModel, run: RunRecord) -> str:
    name = str(run.settings.get("data.name") or "custom")
    return f"{name} ({', '.join(model.info.caveats)})" if model.info.caveats else name


def _use(model: TrainedModel) -> Iterator[str]:
    height, width = input_size(model)
    kind = "several labels per image" if model.info.is_multi_label else "one class per image"
    color = "grey" if model.info.channels == 1 else "RGB"
    yield f"{len(model.info.classes)} classes, {kind}; {color} images of {height} x {width} pixels.\n"
    yield "```python\nimport manyeyes as me\n"
    yield 'model = me.load_model("model.safetensors")\nmodel.predict("photo.jpg")[0].top(5)\n```\n'


def _training(run: RunRecord) -> Iterator[str]:
    yield "## Training data\n"
    train = (run.dataset_stats.get("splits") or {}).get("train")
    if not train:
        yield "The run records no statistics of its training data.\n"
        return
    median = float(np.median(train["size_percentiles"]))
    yield f"{train['users']:,} users with {train['images']:,} images, {median:g} images per user (median).\n"
    skew = "0: every user has the mix of all users; 2: no class in common"
    yield f"The class mix of a user differs from that of all users by {train['mean_emd']:.2f} on average ({skew}).\n"


def _metrics(model: TrainedModel) -> Iterator[str]:
    yield f"## Metrics after {model.info.rounds} rounds\n"
    metrics = _card_metrics(model.info.metrics)
    if not metrics:
        yield "The model was not evaluated.\n"
        return
    yield "\n".join(["| metric | value |", "|---|---|", *(f"| {n} | {v:.4f} |" for n, v in metrics.items())]) + "\n"


def _card_metrics(metrics: Mapping[str, float]) -> dict[str, float]:
    return {name: value for name, value in metrics.items() if name.endswith(PERCENT)}


def _privacy(model: TrainedModel, run: RunRecord) -> Iterator[str]:
    yield "## Privacy\n"
    if model.info.privacy is None:
        yield "Trained without differential privacy: the model may reveal training images.\n"
        return
    yield f"{model.info.privacy['guarantee']}; epsilon spent: {model.info.privacy['epsilon']:.4g}.\n"
