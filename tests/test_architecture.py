"""docs/architecture.md names folders, files and functions that exist."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "architecture.md").read_text()
FILE_AND_NAMES = re.compile(r"`([\w/]+\.py)`: ((?:`\w+`(?:, )?)+)")
NAMES = [(file, name) for file, names in FILE_AND_NAMES.findall(PAGE) for name in re.findall(r"`(\w+)`", names)]
FOLDERS_IN_TABLE = re.findall(r"^\| `(\w+)`(?:, `(\w+)`)? \|", PAGE, re.M)


@pytest.mark.parametrize(("file", "name"), NAMES)
def test_named_function_exists_in_its_file(file: str, name: str) -> None:
    assert re.search(rf"^(def|class) {name}\b", (ROOT / "manyeyes" / file).read_text(), re.M)


def test_the_table_of_folders_is_complete() -> None:
    folders = {path.parent.name for path in (ROOT / "manyeyes").glob("*/__init__.py")} - {"flair", "fedper"}
    assert folders == {name for names in FOLDERS_IN_TABLE for name in names if name}
