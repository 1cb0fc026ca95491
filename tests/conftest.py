"""A tiny population, a tiny run of the command, and real processes that a test may kill."""

from __future__ import annotations

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

import numpy as np
import pytest
import torch

from manyeyes.cli import main
from manyeyes.core.population import Population, SingleLabels
from manyeyes.papers import ITEMS
from tests.small_exhibits import PAPERS


@pytest.fixture(autouse=True, scope="session")
def ctrl_c() -> None:
    """Work, although a shell has started the tests in its background, where that is ignored by all that they start."""
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    torch.set_num_threads(1)  # the models are small, and a second thread waits longer than it works


@pytest.fixture
def people(population: Population) -> Population:
    return population


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
    """Settings of a run that takes well under a second."""
    words = "data.users=40 data.images_per_user=12 model=linear algorithm.cohort_size=4 algorithm.batch_size=6 engine.threads=1"
    return *words.split(), "evaluate_every=5", "checkpoint_seconds=0"


@dataclass(frozen=True)
class Outcome:
    code: int
    out: str
    err: str


@pytest.fixture
def command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Outcome]:
    """The command `manyeyes` in this process, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", sys.argv)  # which Hydra changes
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")

    def call(*words: str) -> Outcome:
        capsys.readouterr()
        code = main(words)
        return Outcome(code, *capsys.readouterr())

    return call


@pytest.fixture
def fresh_joblib() -> Iterator[None]:
    """No process of joblib's from an earlier test, which would still be in that one's folder."""
    loky = pytest.importorskip("joblib.externals.loky")
    loky.get_reusable_executor().shutdown(wait=True)
    yield
    loky.get_reusable_executor().shutdown(wait=True)


@pytest.fixture
def spawn(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Python in a process of its own, in the test's folder; none outlives the test."""
    running = []

    def start(*words: str, **options: Any) -> subprocess.Popen[str]:
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "cwd": tmp_path}
        env = os.environ | {"OMP_NUM_THREADS": "1"}
        running.append(subprocess.Popen([sys.executable, *words], **{**pipes, "env": env, **options}))
        return running[-1]

    yield start
    for process in running:
        process.kill()
        process.communicate()


@pytest.fixture
def until() -> Callable[[Callable[[], bool]], None]:
    """Wait for something to become true, at most two minutes."""

    def wait(happened: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 120
        while not happened():
            assert time.monotonic() < deadline, "it did not happen"
            time.sleep(0.002)

    return wait


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """Debian's Chromium, driven by Playwright, which brings none of its own here."""
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("chromium is not installed (apt-get install chromium)")
    api = pytest.importorskip("playwright.sync_api")
    with api.sync_playwright() as playwright:
        made = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield made
        made.close()


@pytest.fixture
def browser_page(browser: Any) -> Iterator[Any]:
    """An empty page; what goes wrong on it is in `console_errors`, what it asks of any server in `asked`."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    page = context.new_page()
    page.set_default_timeout(10_000)
    page.console_errors, page.asked = [], []
    page.on("console", lambda said: page.console_errors.append(said.text) if said.type == "error" else None)
    page.on("pageerror", lambda error: page.console_errors.append(str(error)))
    page.on("requestfailed", lambda request: page.console_errors.append(f"failed: {request.url}"))
    page.on("request", lambda request: _asks(request.url) and page.asked.append(request.url))
    yield page
    context.close()


def _asks(url: str) -> bool:
    return not url.startswith(("file:", "data:", "blob:", "about:"))


@pytest.fixture
def papers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small tables and figures among the real ones, and a folder to run them in."""
    monkeypatch.chdir(tmp_path)
    for one in PAPERS:
        monkeypatch.setitem(ITEMS, one.key, one)
