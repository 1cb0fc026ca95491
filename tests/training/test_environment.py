"""The revision of a run is that of the package's own checkout, and of no repository around it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import manyeyes
from manyeyes.training.description import package_version, revision

PACKAGE = Path(manyeyes.__file__).parent
needs_git = pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
OWN_PROJECT = '[project]\nname = "manyeyes"\n'
CREATE_RUN_FOLDER = """
from pathlib import Path
from manyeyes.training.run_folder import RunFolder
with RunFolder(Path("run")) as folder:
    folder.create()
"""


def git(folder: Path, *args: str) -> str:
    user = ["-c", "user.name=Ann", "-c", "user.email=ann@example.org", "-c", "commit.gpgsign=false"]
    process = subprocess.run(["git", "-C", folder, *user, *args], capture_output=True, text=True, check=True)
    return process.stdout.strip()


def make_repository(top: Path, project: str | None, package: str = "manyeyes", is_tracked: bool = True) -> Path:
    """Create a repository around a package, and return the package's folder."""
    folder = top / package
    folder.mkdir(parents=True)
    (folder / "__init__.py").touch()
    (top / "README.md").touch()
    if project is not None:
        (top / "pyproject.toml").write_text(project)
    if not is_tracked:
        (top / ".gitignore").write_text(f"{package}\n")
    git(top, "init", "-q")
    git(top, "add", "-A")
    git(top, "commit", "-q", "-m", "Begin")
    return folder


@needs_git
def test_the_revision_is_that_of_the_packages_own_checkout(tmp_path: Path) -> None:
    package = make_repository(tmp_path, OWN_PROJECT)
    head = git(tmp_path, "rev-parse", "HEAD")
    assert revision(package) == head
    (package / "__init__.py").write_text("changed = True\n")
    assert revision(package) == f"{head}-dirty"


@needs_git
@pytest.mark.parametrize(
    ("project", "is_tracked"),
    [
        (OWN_PROJECT, False),  # installed inside a checkout of another version
        ('[project]\nname = "thesis"\n', True),  # copied into a user's project
        ('project = "manyeyes"\n', True),
        ("not toml", True),
        (None, True),
    ],
)
def test_a_repository_that_only_encloses_the_package_is_not_recorded(
    tmp_path: Path, project: str | None, is_tracked: bool
) -> None:
    assert revision(make_repository(tmp_path, project, "venv/manyeyes", is_tracked)) is None


def test_a_package_outside_any_repository_has_no_revision(tmp_path: Path) -> None:
    (tmp_path / "__init__.py").touch()
    assert revision(tmp_path) is None


@needs_git
def test_without_git_there_is_no_revision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = make_repository(tmp_path, OWN_PROJECT)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert revision(package) is None


@needs_git
@pytest.mark.slow
def test_a_package_in_the_environment_of_a_users_repository_records_none(tmp_path: Path) -> None:
    """The package is copied to where pip would put it, and writes its own environment.json."""
    make_repository(tmp_path, OWN_PROJECT.replace("manyeyes", "thesis"), "thesis")
    site = tmp_path / "venv" / "site-packages"
    shutil.copytree(PACKAGE, site / "manyeyes", ignore=shutil.ignore_patterns("__pycache__"))
    environment = {**os.environ, "PYTHONPATH": str(site)}
    subprocess.run([sys.executable, "-P", "-c", CREATE_RUN_FOLDER], cwd=tmp_path, env=environment, check=True)
    assert json.loads((tmp_path / "run" / "environment.json").read_text())["revision"] is None


def test_a_package_that_is_not_installed_has_no_version() -> None:
    assert package_version("torch") is not None
    assert package_version("not-installed-anywhere") is None
