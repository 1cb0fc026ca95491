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
from manyeyes.training.environment import revision

PACKAGE = Path(manyeyes.__file__).parent
pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="needs git")


def git(folder: Path, *words: str) -> str:
    who = ["-c", "user.name=Ann", "-c", "user.email=ann@example.org", "-c", "commit.gpgsign=false"]
    done = subprocess.run(["git", "-C", folder, *who, *words], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def repository(top: Path, project: str | None, package: str = "manyeyes", tracked: bool = True) -> Path:
    """A repository around a package; returns the package's folder."""
    folder = top / package
    folder.mkdir(parents=True)
    (folder / "__init__.py").touch()
    (top / "README.md").touch()
    if project is not None:
        (top / "pyproject.toml").write_text(project)
    if not tracked:
        (top / ".gitignore").write_text(f"{package}\n")
    git(top, "init", "-q")
    git(top, "add", "-A")
    git(top, "commit", "-q", "-m", "Begin")
    return folder


OURS = '[project]\nname = "manyeyes"\n'


def test_the_revision_of_the_packages_own_checkout_is_found(tmp_path: Path) -> None:
    package = repository(tmp_path, OURS)
    head = git(tmp_path, "rev-parse", "HEAD")
    assert revision(package) == head
    (package / "__init__.py").write_text("changed = True\n")
    assert revision(package) == f"{head}-dirty"


@pytest.mark.parametrize(
    ("project", "tracked"),
    [
        (OURS, False),  # installed inside a checkout of another version
        ('[project]\nname = "thesis"\n', True),  # copied into a user's project
        ('project = "manyeyes"\n', True),
        ("not toml", True),
        (None, True),
    ],
)
def test_a_repository_that_only_encloses_the_package_is_not_recorded(
    tmp_path: Path, project: str | None, tracked: bool
) -> None:
    assert revision(repository(tmp_path, project, "venv/manyeyes", tracked)) is None


def test_a_package_outside_any_repository_has_no_revision(tmp_path: Path) -> None:
    (tmp_path / "__init__.py").touch()
    assert revision(tmp_path) is None


def test_without_git_there_is_no_revision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = repository(tmp_path, OURS)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert revision(package) is None


def test_a_package_in_the_environment_of_a_users_repository_records_none(tmp_path: Path) -> None:
    """The whole package is copied to where pip would put it, and writes its own environment.json."""
    repository(tmp_path, OURS.replace("manyeyes", "thesis"), "thesis")
    site = tmp_path / "venv" / "site-packages"
    shutil.copytree(PACKAGE, site / "manyeyes", ignore=shutil.ignore_patterns("__pycache__"))
    begin = "from manyeyes.training.run_folder import *\nwith RunFolder(Path('run')) as folder: folder.begin()"
    environment = {**os.environ, "PYTHONPATH": str(site)}
    subprocess.run([sys.executable, "-P", "-c", begin], cwd=tmp_path, env=environment, check=True)
    assert json.loads((tmp_path / "run" / "environment.json").read_text())["revision"] is None
