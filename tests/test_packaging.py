"""The wheel and the source archive: built as a release builds them, and used without the checkout or any extra."""

import os
import subprocess
import sys
import tarfile
import zipfile
from importlib.metadata import requires
from pathlib import Path

import pytest

from manyeyes.data.store.builder import IMAGE_FILES, VERSION
from manyeyes.data.store.checksums import CHECKSUMS_FILE
from manyeyes.data.store.meta import EXAMPLES_FILE, META_FILE, meta_text

ROOT = Path(__file__).parents[1]
EXTRAS = ("pyarrow", "h5py", "s2sphere", "scipy", "dp_accounting", "starlette", "uvicorn", "resvg_py", "pandas")
CORE_ONLY = f"""
import sys
sys.modules.update(dict.fromkeys({EXTRAS}))
from manyeyes.cli import main
sys.exit(main(sys.argv[1:]))
"""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not (ROOT / ".git").exists(), reason="needs a checkout to build from"),
]


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the source archive, and the wheel that is built from it."""
    pytest.importorskip("build", reason="needs the package build")
    out = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(ROOT)]
    outcome = subprocess.run(command, capture_output=True, text=True)
    assert outcome.returncode == 0, outcome.stderr
    return out


@pytest.fixture(scope="module")
def installed(dist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the content of the wheel."""
    site = tmp_path_factory.mktemp("site")
    with zipfile.ZipFile(next(dist.glob("*.whl"))) as wheel:
        wheel.extractall(site)
    return site


def run(site: Path, folder: Path, *args: str) -> subprocess.CompletedProcess[str]:
    """Run a command with the wheel's files and without the packages of extras."""
    environment = os.environ | {"PYTHONPATH": str(site), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", CORE_ONLY, *args]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120)


def test_the_wheel_has_every_file_of_the_package_and_nothing_else(installed: Path) -> None:
    tracked = subprocess.run(["git", "ls-files", "manyeyes"], cwd=ROOT, capture_output=True, text=True).stdout.split()
    packed = {str(path.relative_to(installed)) for path in installed.rglob("*") if path.is_file()}
    assert {path for path in packed if ".dist-info/" not in path} == set(tracked)


def test_the_source_archive_has_tests_and_docs(dist: Path) -> None:
    with tarfile.open(next(dist.glob("*.tar.gz"))) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"README.md", "Makefile", "tests/test_packaging.py", "docs/architecture.md", "constraints.txt"} <= names


def test_a_run_and_its_report_need_the_core_dependencies_alone(installed: Path, tmp_path: Path) -> None:
    outcome = run(installed, tmp_path, "run", "data.users=10", "rounds=1", "algorithm.cohort_size=2", "folder=run")
    assert (outcome.returncode, outcome.stderr) == (0, "")
    outcome = run(installed, tmp_path, "report", "run")
    assert (outcome.returncode, outcome.stderr) == (0, "")


@pytest.mark.parametrize(
    ("args", "packages"),
    [
        ("run data=store data.path=here", ("pyarrow", "s2sphere", "h5py")),
        ("data prepare cifar10 --raw raw", ("pyarrow", "s2sphere", "h5py")),
        ("run privacy=central client_weighting=uniform data.users=60 rounds=1", ("scipy", "dp_accounting")),
        ("dashboard runs", ("uvicorn", "starlette")),
        ("privacy audit", ("scipy", "dp_accounting")),
    ],
)
def test_missing_packages_are_one_sentence_with_the_command_that_installs_them(
    installed: Path, tmp_path: Path, args: str, packages: tuple[str, ...]
) -> None:
    (tmp_path / "here").mkdir()
    numbers = dict.fromkeys((IMAGE_FILES["raw"], CHECKSUMS_FILE, EXAMPLES_FILE), 0)
    meta = {"version": VERSION, "tasks": {"label": ["a"]}, "encoding": "raw", "shape": [8, 8]}
    (tmp_path / "here" / META_FILE).write_text(meta_text(meta | {"bytes": numbers, "crc32": numbers}))
    outcome = run(installed, tmp_path, *args.split())
    known = {text.partition(">=")[0].replace("-", "_"): text.partition(";")[0] for text in requires("manyeyes") or ()}
    fix = "run pip install " + " ".join(f"'{known[package].strip()}'" for package in packages)
    names = f"{', '.join(packages[:-1])} and {packages[-1]}"
    assert (outcome.returncode, outcome.stderr) == (2, f"manyeyes: {names} are not installed: {fix}\n")
    assert not (tmp_path / "runs").exists()
