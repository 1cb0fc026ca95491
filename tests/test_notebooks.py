"""The notebooks of the documentation: they run, their stored outputs are small, and nothing in them is of one machine."""

import json
import re
import zipfile
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))
SIGN_DIGITS = (
    ROOT.parent / "shared" / "data" / "sign_digits" / "sign_digits.zip"
)  # data of others, not in the repository
MAX_BYTES = 150_000
notebooks = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def outputs(path: Path) -> list[dict[str, Any]]:
    return [output for cell in json.loads(path.read_text())["cells"] for output in cell.get("outputs", ())]


def test_there_are_five_notebooks() -> None:
    assert len(NOTEBOOKS) == 5


@notebooks
def test_a_notebook_is_stored_with_its_outputs_and_is_small(path: Path) -> None:
    assert outputs(path)
    assert not [output for output in outputs(path) if output["output_type"] == "error"]
    assert path.stat().st_size < MAX_BYTES


@notebooks
def test_a_notebook_names_no_path_of_a_machine(path: Path) -> None:
    assert not re.search(r"/(home|root|tmp|work|Users)/", path.read_text())


@pytest.mark.slow
@notebooks
def test_a_notebook_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    notebook = nbformat.read(path, as_version=4)
    if path.stem == "personalization":
        if not SIGN_DIGITS.exists():
            pytest.skip("needs the Sign Language Digits Dataset in sign_digits/, which is not part of the repository")
        zipfile.ZipFile(SIGN_DIGITS).extractall(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # of the kernel: with other tests running, threads wait for each other
    resources = {"metadata": {"path": str(tmp_path)}}
    nbclient.NotebookClient(notebook, timeout=240, kernel_name="python3", resources=resources).execute()
