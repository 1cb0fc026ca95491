"""A sample of the fuzzer's inputs in every run of the tests; `python -m tests.fuzz` runs more, for as long as you like."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from tests.fuzz.process import Case, fuzz, outcome, quiet
from tests.fuzz.settings import KINDS, SettingsCase, write_inputs
from tests.fuzz.targets import targets

CORPUS = Path(__file__).parent / "corpus"
TARGETS = {target.name: target for target in targets()}
create = cache(Case.create)
FAST_TARGETS = ("image", "csv", "parquet", "splits", "archive", "store_journal", "cifar_binary", "hdf5", "weights")
SLOW_KINDS = [name for name in TARGETS if name not in FAST_TARGETS]
NUM_FAST, NUM_SLOW = 4, 12  # inputs of each target


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fuzz")
    with quiet():
        write_inputs(folder)
    return folder


@pytest.mark.parametrize(
    ("name", "count"),
    [
        *((name, NUM_FAST) for name in FAST_TARGETS),
        *(pytest.param(name, NUM_SLOW, marks=pytest.mark.slow) for name in SLOW_KINDS),
    ],
)
def test_every_damaged_file_is_one_sentence(name: str, count: int) -> None:
    progress = fuzz(create(TARGETS[name]), seed=0, start=0, count=count)
    assert progress.inputs == count
    assert progress.failures == ()


@pytest.mark.parametrize("name", [*FAST_TARGETS, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW_KINDS)])
def test_the_valid_files_are_read(name: str, tmp_path: Path) -> None:
    case = create(TARGETS[name])
    assert outcome(case, case.files, tmp_path / "input") == ("", "")


@pytest.mark.slow
@pytest.mark.parametrize(("name", "count"), [("settings_run", 40), ("settings_flags", 40), ("settings_python", 160)])
def test_every_wrong_setting_is_one_sentence(name: str, count: int, inputs: Path) -> None:
    assert name in KINDS
    progress = fuzz(SettingsCase(name, inputs), seed=0, start=0, count=count)
    assert progress.inputs == count
    assert progress.failures == ()


@pytest.mark.slow
@pytest.mark.parametrize("folder", sorted(CORPUS.glob("*/*")), ids=lambda path: f"{path.parent.name}/{path.name}")
def test_inputs_that_once_failed_are_one_sentence(folder: Path, tmp_path: Path) -> None:
    case = create(TARGETS[folder.parent.name])
    changed = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert changed.keys() <= case.files.keys(), "the input changes files that the target does not have"
    assert outcome(case, case.files | changed, tmp_path / "input")[0] in ("", "refused")
