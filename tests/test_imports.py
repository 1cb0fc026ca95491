"""Imports point one way, from room to room, and `import manyeyes` loads none of them."""

from __future__ import annotations

import ast
import subprocess
from collections.abc import Callable, Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "manyeyes"
BELOW_ENGINE = {"files", "chance", "population", "work", "algorithm", "round", "parts", "models", "metrics", "data"}
BELOW_RUN = BELOW_ENGINE | {"engine"}
BELOW_TOP = BELOW_RUN | {"algorithms", "run", "report", "conf"}
MAY_IMPORT: dict[str, set[str]] = {
    "files": set(),
    "chance": set(),
    "population": set(),
    "work": {"population"},
    "algorithm": {"work", "population"},
    "guarantee": {"algorithm", "work"},
    "round": {"algorithm", "guarantee", "work", "chance", "population"},
    "parts": {"algorithm", "work", "population", "chance"},
    "models": set(),
    "metrics": set(),
    "data": {"population", "chance", "files"},
    "engine": BELOW_ENGINE,
    "algorithms": {"parts", "algorithm"},
    "run": BELOW_RUN,
    "report": BELOW_RUN | {"run", "conf"},
    "conf": BELOW_RUN | {"run", "algorithms"},
    "audit": BELOW_RUN,
    "federation": BELOW_TOP | {"parser"},
    "papers": BELOW_TOP,
    "reproduce": BELOW_TOP | {"papers"},
    "parser": set(),
    "data_command": BELOW_TOP | {"parser"},
    "privacy_command": BELOW_TOP | {"parser", "audit"},
    "bench": BELOW_TOP | {"parser"},
    "fedper_command": BELOW_TOP | {"data_command"},
    "fedper": {"cli"},
    "flair_command": BELOW_TOP | {"papers"},
    "flair": {"cli"},
    "users_command": BELOW_TOP | {"parser"},
    "report_command": BELOW_TOP | {"parser", "papers"},
    "board": {"report", "parser"},
    "capacity": BELOW_TOP | {"parser", "round"},
    "demo": BELOW_TOP,
    "doctor": BELOW_TOP,
    "cli": BELOW_TOP
    | {
        "data_command",
        "privacy_command",
        "fedper_command",
        "flair_command",
        "users_command",
        "report_command",
        "reproduce",
        "bench",
        "demo",
        "doctor",
    }
    | {"board", "capacity", "federation"},
    "__main__": {"cli", "engine"},
}


def module(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported(tree: ast.AST) -> Iterator[str]:
    """The modules of ours that a module names in its imports, wherever they stand."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are written in full"
            for alias in node.names:
                inside = f"{node.module}.{alias.name}"
                yield inside if inside in MODULES else node.module or ""


MODULES = {module(path): path for path in sorted(PACKAGE.rglob("*.py"))}
IMPORTS = {
    name: {found for found in imported(ast.parse(path.read_text())) if found in MODULES and found != "manyeyes"}
    for name, path in MODULES.items()
    if name != "manyeyes"  # which loads rooms when they are asked for
}


def room(name: str) -> str:
    return name.split(".")[1]


@pytest.mark.parametrize("name", IMPORTS)
def test_a_module_imports_only_its_own_room_and_those_below(name: str) -> None:
    assert {room(found) for found in IMPORTS[name]} <= MAY_IMPORT[room(name)] | {room(name)}


def test_the_rules_have_no_cycle() -> None:
    TopologicalSorter(MAY_IMPORT).prepare()


def test_modules_import_each_other_in_no_cycle() -> None:
    TopologicalSorter(IMPORTS).prepare()


def test_the_package_imports_no_room_when_it_is_loaded() -> None:
    top = ast.parse(MODULES["manyeyes"].read_text())
    top.body = [node for node in top.body if not isinstance(node, ast.If)]  # TYPE_CHECKING
    assert [name for name in imported(top) if name in MODULES] == []


def test_import_is_quick_and_does_not_load_torch(spawn: Callable[..., subprocess.Popen[str]]) -> None:
    code = "import sys, time, manyeyes; print('torch' in sys.modules, time.process_time())"
    loaded, seconds = spawn("-c", code).communicate(timeout=60)[0].split()
    assert loaded == "False"
    assert float(seconds) < 2


def test_every_public_name_is_there() -> None:
    import manyeyes

    assert [name for name in manyeyes.__all__ if getattr(manyeyes, name, None) is None] == []
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = manyeyes.nothing
