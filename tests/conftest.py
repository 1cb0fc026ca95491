"""Fixtures: a small population, the command in this process, and real processes that a test may kill."""

from __future__ import annotations

import gc
import importlib
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hypothesis
import numpy as np
import pytest
import torch

from manyeyes.core.population import Population, SingleLabels

hypothesis.settings.register_profile("untimed", deadline=None)  # a busy machine is not a failure
hypothesis.settings.load_profile("untimed")


os.environ["MANYEYES_PROGRESS"] = "off"  # of commands, also of those in other processes
TORCHVISION_OPERATORS = torch.library.Library("torchvision", "FRAGMENT")


@pytest.hookimpl(tryfirst=True)  # before tests are selected by their marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark as slow what needs a browser, and the cases of a test whose id has none of the texts in `fast_cases`."""
    for item in items:
        mark = item.get_closest_marker("fast_cases")
        is_slow_case = mark is not None and not any(text in item.name.partition("[")[2] for text in mark.args)
        if is_slow_case or item.get_closest_marker("browser"):
            item.add_marker("slow")


def pytest_collection_finish() -> None:
    """Exclude what exists now from garbage collection, which takes half a second each time with all modules loaded."""
    gc.collect()
    gc.freeze()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip tests that are marked `gpu` on a machine without one, whichever tests are selected."""
    if item.get_closest_marker("gpu") and not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")


@pytest.fixture(autouse=True, scope="session")
def ctrl_c() -> None:
    """Handle SIGINT even if a shell started the tests in the background, where child processes would ignore it."""
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    torch.set_num_threads(1)  # the models are too small for a second thread to pay


@pytest.fixture(scope="session")
def torchvision() -> Any:
    """Import torchvision, which timm needs too; both are requirements of `dev`.

    The index has its wheel for PyTorch's CUDA build. Beside the CPU build its library cannot be loaded, and Python code
    that only models use is all that is left: the operators that its import expects are declared first.
    """
    spec = importlib.util.find_spec("torchvision")
    if spec is None or spec.origin is None:
        pytest.skip("torchvision is not installed (pip install -e '.[dev]' -c constraints.txt)")
    try:
        torch.ops.load_library(next(Path(spec.origin).parent.glob("_C*.so")))
    except (OSError, StopIteration):
        for operator in ("nms", "qnms"):
            TORCHVISION_OPERATORS.define(f"{operator}() -> ()")
    return importlib.import_module("torchvision")


@pytest.fixture(scope="session")
def timm(torchvision: Any) -> Any:
    return importlib.import_module("timm")


@pytest.fixture
def population() -> Population:
    """Eight users of six 8 x 8 images in three classes: six in train, user 6 in val and user 7 in test."""
    rng = np.random.default_rng(0)
    labels = rng.integers(3, size=48)
    pixels = rng.integers(0, 200, (48, 8, 8, 3))
    pixels[np.arange(48), :, :, labels] += 55
    split = np.repeat(["train"] * 6 + ["val", "test"], 6)
    classes = SingleLabels(labels, ("red", "green", "blue"))
    return Population.from_arrays(pixels.astype(np.uint8), classes, np.repeat(np.arange(8), 6), split=split)


@pytest.fixture
def tiny() -> tuple[str, ...]:
    """Return the settings of a run that takes well under a second."""
    settings = "data.users=40 data.images_per_user=12 model=linear algorithm.cohort_size=4 algorithm.batch_size=6 engine.threads=1"
    return *settings.split(), "evaluate_every=5", "checkpoint_seconds=0"


@dataclass(frozen=True)
class Outcome:
    code: int
    out: str
    err: str


@pytest.fixture
def command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Outcome]:
    """Return a function that runs the command `manyeyes` in this process, in an empty folder."""
    from manyeyes.cli import main

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", sys.argv)  # Hydra changes it
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")

    def call(*args: str) -> Outcome:
        capsys.readouterr()
        code = main(args)
        return Outcome(code, *capsys.readouterr())

    return call


@pytest.fixture
def fresh_joblib() -> Iterator[None]:
    """Stop joblib's processes of earlier tests, which are in another folder."""
    loky = pytest.importorskip("joblib.externals.loky")
    loky.get_reusable_executor().shutdown(wait=True)
    yield
    loky.get_reusable_executor().shutdown(wait=True)


@pytest.fixture
def spawn(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Return a function that starts Python in a new process, in the test's folder; it is killed after the test."""
    processes = []

    def start(*args: str, **options: Any) -> subprocess.Popen[str]:
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "cwd": tmp_path}
        env = os.environ | {"OMP_NUM_THREADS": "1"}
        processes.append(subprocess.Popen([sys.executable, *args], **{**pipes, "env": env, **options}))
        return processes[-1]

    yield start
    for process in processes:
        process.kill()
        process.communicate()


@pytest.fixture
def until() -> Callable[[Callable[[], bool]], None]:
    """Return a function that waits until a condition is true, at most two minutes."""

    def wait(condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 120
        while not condition():
            assert time.monotonic() < deadline, "the condition was not true within two minutes"
            time.sleep(0.002)

    return wait


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """Start the system's Chromium, driven by Playwright."""
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("chromium is not installed (apt-get install chromium)")
    api = pytest.importorskip("playwright.sync_api")
    with api.sync_playwright() as playwright:
        chromium_browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield chromium_browser
        chromium_browser.close()


@pytest.fixture
def browser_page(browser: Any) -> Iterator[Any]:
    """Open an empty page that records its errors (`console_errors`) and requests to servers (`requested_urls`)."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    page = context.new_page()
    page.set_default_timeout(10_000)
    page.console_errors, page.requested_urls = [], []
    page.on("console", lambda log: page.console_errors.append(log.text) if log.type == "error" else None)
    page.on("pageerror", lambda error: page.console_errors.append(str(error)))
    page.on("requestfailed", lambda request: page.console_errors.append(f"failed: {request.url}"))
    page.on("request", lambda request: _is_remote(request.url) and page.requested_urls.append(request.url))
    yield page
    context.close()


def _is_remote(url: str) -> bool:
    return not url.startswith(("file:", "data:", "blob:", "about:"))


@pytest.fixture
def papers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Add small tables and figures to the real ones, and change to a folder to run them in."""
    from manyeyes.papers import EXHIBITS
    from tests.small_exhibits import SMALL_EXHIBITS

    monkeypatch.chdir(tmp_path)
    for exhibit in SMALL_EXHIBITS:
        monkeypatch.setitem(EXHIBITS, exhibit.key, exhibit)
