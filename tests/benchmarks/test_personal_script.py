"""`benchmarks/personal.py`: finished runs are not repeated, and others continue."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

from manyeyes.config.compose import compose_config

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "personal.py"


@pytest.fixture
def personal(monkeypatch: pytest.MonkeyPatch) -> Any:
    spec = importlib.util.spec_from_file_location("personal", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "personal", module)  # dataclasses look it up there
    spec.loader.exec_module(module)
    return module


def write_finished_run(folder: Path, rounds: int) -> None:
    folder.mkdir(parents=True)
    (folder / "metrics.jsonl").write_text("".join(f'{{"round": {n}}}\n' for n in range(rounds + 1)))
    for name in ("checkpoint", "model"):
        (folder / f"{name}.safetensors").touch()


def test_a_run_with_fewer_rounds_is_continued_and_one_with_more_is_refused(personal: Any, tmp_path: Path) -> None:
    run, store = personal.PersonalRun("resnet34", 4, True, 64, 12), Path("store")
    assert f"folder={run.folder(tmp_path)}" in run.remaining(store, tmp_path, [])
    write_finished_run(run.folder(tmp_path), 8)
    args = [f"resume={run.folder(tmp_path)}", "rounds=12", "evaluate_every=6", "engine.precision=bf16"]
    assert run.remaining(store, tmp_path, ["engine.precision=bf16", "algorithm.lr=0.1"]) == args
    assert personal.PersonalRun("resnet34", 4, True, 64, 8).remaining(store, tmp_path, []) == []
    with pytest.raises(ValueError, match="has 8 rounds, more than 6: set another --out"):
        personal.PersonalRun("resnet34", 4, True, 64, 6).remaining(store, tmp_path, [])


@pytest.mark.slow
@pytest.mark.parametrize(("classes", "is_fedper"), [(4, True), (4, False), (0, True), (0, False)])
def test_the_settings_of_a_run_are_valid(personal: Any, tmp_path: Path, classes: int, is_fedper: bool) -> None:
    run = personal.PersonalRun("resnet34", classes, is_fedper, 64, 12)
    config = compose_config(run.overrides(Path("store"), tmp_path))
    assert config["rounds"] == 12
    assert config["algorithm"]["name"] == ("fedper" if is_fedper else "finetuned")
    assert config["preprocess"]["crop"] == (64 if classes else None)
