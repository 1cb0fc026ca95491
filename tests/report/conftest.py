"""A reader of HTML, and run folders without training."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import yaml

VOID = {"meta", "img", "link", "br", "hr", "input", "source"}


class Reader(HTMLParser):
    """Collects every start tag with its attributes, and the text; unbalanced tags fail."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.open: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


@pytest.fixture
def reader() -> type[Reader]:
    return Reader


@pytest.fixture
def make_run(tmp_path: Path) -> Callable[..., Path]:
    """Create a run folder with these values of a metric, and 4 batches, 60 images and half a second per round."""

    def make(
        name: str,
        settings: dict[str, Any],
        values: list[float],
        finished: bool = True,
        classes: Sequence[str] = (),
        metric: str = "accuracy",
    ) -> Path:
        folder = tmp_path / name
        folder.mkdir(parents=True)
        (folder / "config.yaml").write_text(yaml.safe_dump(settings))
        (folder / "environment.json").write_text(json.dumps({"command": ["manyeyes run", "rounds=2"], "cpus": 2}))
        costs = {"train_loss": 1.0, "update_norm": 0.5, "num_images": 60, "max_client_batches": 4, "seconds": 0.5}
        events = [{"round": r, **(costs if r else {}), metric: value} for r, value in enumerate(values)]
        (folder / "metrics.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
        if finished:
            (folder / "model.safetensors").touch()
        if classes:
            with (folder / "per_class.csv").open("w", newline="") as file:
                rows = csv.writer(file)
                rows.writerows([["class", "examples", "accuracy"], *([name, 2, 0.5] for name in classes)])
        return folder

    return make
