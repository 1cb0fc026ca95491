"""What a run that fails leaves behind for those who look later."""

from __future__ import annotations

from pathlib import Path

import pytest

from manyeyes.core.state import DivergenceError
from manyeyes.training.run_folder import RunFolder


def fail(folder: Path, error: BaseException) -> None:
    def run() -> None:
        with RunFolder(folder) as place:
            place.create()
            raise error

    with pytest.raises(type(error)):
        run()


def test_the_sentence_of_a_failure_stays_until_the_run_goes_on(tmp_path: Path) -> None:
    fail(tmp_path, OSError(28, "No space left on device"))
    assert (tmp_path / "failed.txt").read_text() == "[Errno 28] No space left on device\n"
    with RunFolder(tmp_path) as run:
        run.create()
        assert not run.failed.exists()


def test_an_error_without_words_is_named(tmp_path: Path) -> None:
    fail(tmp_path, MemoryError())
    assert (tmp_path / "failed.txt").read_text() == "MemoryError\n"


@pytest.mark.parametrize("error", [KeyboardInterrupt(), DivergenceError("which is told elsewhere")])
def test_who_is_stopped_or_diverges_has_not_failed(tmp_path: Path, error: BaseException) -> None:
    fail(tmp_path, error)
    assert not (tmp_path / "failed.txt").exists()


def test_a_folder_that_is_refused_stays_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").touch()
    with pytest.raises(ValueError, match="already holds a run"), RunFolder(tmp_path) as run:
        run.create()
    assert {path.name for path in tmp_path.iterdir()} == {"model.safetensors", ".lock"}
