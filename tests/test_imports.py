"""Imports point one way, from package to package, and `import manyeyes` loads none of them."""

from __future__ import annotations

import ast
import subprocess
from collections.abc import Callable, Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "manyeyes"
FOUNDATION = {"core", "io"}
BUILDING_BLOCKS = FOUNDATION | {"components", "models", "metrics", "data"}
LIBRARY = BUILDING_BLOCKS | {"engines", "privacy", "algorithms", "training", "config"}
MAY_IMPORT: dict[str, set[str]] = {
    "core": set(),
    "io": set(),
    "components": {"core"},
    "models": FOUNDATION,
    "metrics": {"core"},
    "data": FOUNDATION,
    "algorithms": {"core", "components"},
    "engines": BUILDING_BLOCKS,
    "privacy": BUILDING_BLOCKS | {"engines"},
    "training": BUILDING_BLOCKS | {"engines", "privacy", "algorithms"},
    "config": BUILDING_BLOCKS | {"engines", "privacy", "algorithms", "training"},
    "report": LIBRARY,
    "papers": LIBRARY | {"report"},
    "dashboard": LIBRARY | {"report"},
    "cost": LIBRARY,
    "flower": LIBRARY,
    "deploy": LIBRARY,
    "cli": LIBRARY | {"report", "papers", "dashboard", "cost", "flower", "deploy"},
    "flair": {"cli"},
    "fedper": {"cli"},
    "__main__": {"cli", "engines"},
}


def module(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported(tree: ast.AST) -> Iterator[str]:
    """Yield the modules of the package that a module imports, except for type checkers alone."""
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            node.body = []
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
    name: {other for other in imported(ast.parse(path.read_text())) if other in MODULES and other != "manyeyes"}
    for name, path in MODULES.items()
    if name != "manyeyes"  # it imports public names when they are first used
}


def top_package(name: str) -> str:
    return name.split(".")[1]


@pytest.mark.parametrize("name", IMPORTS)
def test_a_module_imports_only_its_own_package_and_those_below(name: str) -> None:
    assert {top_package(other) for other in IMPORTS[name]} <= MAY_IMPORT[top_package(name)] | {top_package(name)}


def test_the_rules_have_no_cycle() -> None:
    TopologicalSorter(MAY_IMPORT).prepare()


def test_imports_have_no_cycle() -> None:
    TopologicalSorter(IMPORTS).prepare()


def test_the_package_imports_no_module_when_it_is_loaded() -> None:
    top = ast.parse(MODULES["manyeyes"].read_text())
    top.body = [node for node in top.body if not isinstance(node, ast.If | ast.FunctionDef)]
    assert [name for name in imported(top) if name in MODULES] == []


def test_import_does_not_load_large_libraries(spawn: Callable[..., subprocess.Popen[str]]) -> None:
    code = "import sys, manyeyes; print({'torch', 'numpy', 'hydra', 'scipy', 'pyarrow'} & sys.modules.keys())"
    assert spawn("-c", code).communicate(timeout=60)[0] == "set()\n"


def test_every_public_name_can_be_imported() -> None:
    import manyeyes

    assert [name for name in dir(manyeyes) if getattr(manyeyes, name, None) is None] == []
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = manyeyes.nothing
    with pytest.raises(AttributeError, match="did you mean 'fedavgm'"):
        _ = manyeyes.fedavgmm
    with pytest.raises(AttributeError, match=r"from manyeyes\.components import ServerSGD"):
        _ = manyeyes.ServerSGD
