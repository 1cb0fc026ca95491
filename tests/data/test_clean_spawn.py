"""Processes of the data folder: a script needs nothing for them, and what cannot be sent is said."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

Spawn = Callable[..., "subprocess.Popen[str]"]

WRITE = """
import numpy as np
from pathlib import Path
from manyeyes.data import store
from manyeyes.data.store.chunks import CHUNK
from manyeyes.data.manifest import Listing, Pixels
from manyeyes.core.population import SingleLabels

print("the script runs")
count = 4 * CHUNK
images = np.ones((count, 8, 8, 3), np.uint8)  # more than a pipe holds
users = np.array(["a", "b"] * (count // 2))
labels = {"task": SingleLabels(np.zeros(count, np.int64), ("all",))}
source = Pixels(images)
"""
WRITTEN = """
listing = Listing("few", source, np.arange(count), users, np.array(["train"] * count), labels)
print(store.write(listing, Path("s"), 8, processes=2).images)
"""
OWN = """
class Mine(Pixels):
    pass

source = Mine(images)
"""
MAKE = """
import manyeyes as me
from manyeyes.data.synthetic.dataset import make

print("the script runs")
people = make(me.SyntheticImages(users=300, size=32, photos=10), processes=2)
print(len(people.users))
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
extract_all(archives, Path("into"), processes=2)
print(sum(path.suffix == ".txt" for path in Path("into").iterdir()))
"""


def played(spawn: Spawn, folder: Path, script: str) -> tuple[int, str, str]:
    (folder / "script.py").write_text(script)
    process = spawn("script.py")
    out, err = process.communicate(timeout=120)
    return process.returncode, out, err


@pytest.mark.parametrize(
    ("script", "found"), [(WRITE + WRITTEN, 512), (MAKE, 300), (EXTRACT, 2)], ids=["write", "make", "extract"]
)
def test_a_script_without_a_guard_is_run_once(tmp_path: Path, spawn: Spawn, script: str, found: int) -> None:
    assert played(spawn, tmp_path, script) == (0, f"the script runs\n{found}\n", "")


def test_a_source_of_the_script_itself_is_refused_in_a_sentence(tmp_path: Path, spawn: Spawn) -> None:
    code, out, err = played(spawn, tmp_path, WRITE + OWN + WRITTEN)
    assert (code, out) == (1, "the script runs\n")
    last = err.splitlines()[-1]
    assert last.startswith("ValueError: images of a Mine cannot be prepared by several processes")
    assert last.endswith("at the top of a module that is not the script, or give processes=1")


def test_a_process_that_dies_at_its_start_is_noticed(tmp_path: Path, spawn: Spawn) -> None:
    """Python looks for sitecustomize whenever it starts: here it ends all but the script."""
    (tmp_path / "sitecustomize.py").write_text("import os, sys\n'--multiprocessing-fork' in sys.argv and os._exit(3)")
    (tmp_path / "script.py").write_text(WRITE + WRITTEN)
    process = spawn("script.py", env=os.environ | {"PYTHONPATH": str(tmp_path)})
    _, err = process.communicate(timeout=60)
    assert "a process that prepares images was ended" in err.splitlines()[-1]
