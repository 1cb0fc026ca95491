"""Processes of the data package: scripts need no guard, and what cannot be sent is refused."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

Spawn = Callable[..., "subprocess.Popen[str]"]

MAKE_SOURCE = """
import numpy as np
from pathlib import Path
from manyeyes.data.store.chunks import CHUNK_SIZE
from manyeyes.data.store.writer import write_store
from manyeyes.data.manifest import Manifest, Pixels
from manyeyes.core.population import SingleLabels

print("the script runs")
count = 4 * CHUNK_SIZE
images = np.ones((count, 8, 8, 3), np.uint8)  # more than a pipe holds
users = np.array(["a", "b"] * (count // 2))
labels = {"task": SingleLabels(np.zeros(count, np.int64), ("all",))}
source = Pixels(images)
"""
WRITE_STORE = """
manifest = Manifest("small", source, np.arange(count), users, np.array(["train"] * count), labels)
print(write_store(manifest, Path("s"), 8, processes=2).images)
"""
SCRIPT_SOURCE = """
class ScriptPixels(Pixels):
    pass

source = ScriptPixels(images)
"""
MAKE_SYNTHETIC = """
import manyeyes as me

print("the script runs")
population = me.make_synthetic(me.SyntheticImages(users=300, size=32, images_per_user=10), processes=2)
print(len(population.user_ids))
"""
EXTRACT = """
import zipfile
from pathlib import Path
from manyeyes.data.download.archive import extract_all

print("the script runs")
archives = [Path(f"{number}.zip") for number in range(2)]
for archive in archives:
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr(f"{archive.stem}.txt", "text")
extract_all(archives, Path("extracted"))
print(sum(path.suffix == ".txt" for path in Path("extracted").iterdir()))
"""


def run_script(spawn: Spawn, folder: Path, script: str) -> tuple[int, str, str]:
    (folder / "script.py").write_text(script)
    process = spawn("script.py")
    out, err = process.communicate(timeout=120)
    return process.returncode, out, err


@pytest.mark.fast_cases("extract")
@pytest.mark.parametrize(
    ("script", "output"),
    [(MAKE_SOURCE + WRITE_STORE, 512), (MAKE_SYNTHETIC, 300), (EXTRACT, 2)],
    ids=["write", "make", "extract"],
)
def test_a_script_without_a_guard_is_run_once(tmp_path: Path, spawn: Spawn, script: str, output: int) -> None:
    assert run_script(spawn, tmp_path, script) == (0, f"the script runs\n{output}\n", "")


@pytest.mark.slow
def test_a_source_defined_in_the_script_is_refused(tmp_path: Path, spawn: Spawn) -> None:
    code, out, err = run_script(spawn, tmp_path, MAKE_SOURCE + SCRIPT_SOURCE + WRITE_STORE)
    assert (code, out) == (1, "the script runs\n")
    last = err.splitlines()[-1]
    assert last.startswith("ValueError: Several processes cannot read images of a ScriptPixels")
    assert last.endswith("define the class in a module other than the script, or set processes=1")


@pytest.mark.slow
def test_a_process_that_dies_at_its_start_is_noticed(tmp_path: Path, spawn: Spawn) -> None:
    """Python imports sitecustomize at every start: here it ends all processes except the script."""
    (tmp_path / "sitecustomize.py").write_text("import os, sys\n'--multiprocessing-fork' in sys.argv and os._exit(3)")
    (tmp_path / "script.py").write_text(MAKE_SOURCE + WRITE_STORE)
    process = spawn("script.py", env=os.environ | {"PYTHONPATH": str(tmp_path)})
    _, err = process.communicate(timeout=60)
    assert "A process that converts images was killed" in err.splitlines()[-1]
