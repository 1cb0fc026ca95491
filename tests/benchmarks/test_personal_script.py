"""`benchmarks/personal.py`: what is done, and what goes on."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "personal.py"


@pytest.fixture
def personal(monkeypatch: pytest.MonkeyPatch) -> Any:
    spec = importlib.util.spec_from_file_location("personal", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "personal", module)  # where dataclasses look
    spec.loader.exec_module(module)
    return module


def finished(folder: Path, rounds: int) -> None:
    folder.mkdir(parents=True)
    (folder / "metrics.jsonl").write_text("".join(f'{{"round": {n}}}\n' for n in range(rounds + 1)))
    for name in ("checkpoint", "model"):
        (folder / f"{name}.safetensors").touch()


def test_a_run_of_fewer_rounds_goes_on_and_one_of_more_is_refused(personal: Any, tmp_path: Path) -> None:
    job = personal.Job("resnet34", 4, True, 64, 12)
    assert f"folder={job.folder(tmp_path)}" in job.left(Path("store"), tmp_path, [])
    finished(job.folder(tmp_path), 8)
    words = [f"resume={job.folder(tmp_path)}", "rounds=12", "evaluate_every=6", "engine.precision=bf16"]
    assert job.left(Path("store"), tmp_path, ["engine.precision=bf16", "algorithm.lr=0.1"]) == words
    assert personal.Job("resnet34", 4, True, 64, 8).left(Path("store"), tmp_path, []) == []
    with pytest.raises(ValueError, match="has 8 rounds, more than 6: choose another --out"):
        personal.Job("resnet34", 4, True, 64, 6).left(Path("store"), tmp_path, [])
