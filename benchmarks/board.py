"""The board over many long runs: until it answers, when one run advances, curves, the page in a browser, and memory.

python benchmarks/board.py [--runs 1000] [--rounds 5000] [--folder DIR]
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import yaml
from omegaconf import OmegaConf

from manyeyes.config.compose import compose_config

ALGORITHMS, RATES, COHORTS = (
    ("fedavg", "fedavgm", "fedvc", "fedir"),
    (0.003, 0.01, 0.03, 0.1, 0.3),
    (5, 10, 20, 50, 100),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=5000)
    parser.add_argument("--folder", type=Path, help="where to make them (a temporary folder)")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        root = Path(folder, "runs")
        size = make(root, given.runs, given.rounds)
        say(f"{given.runs:,} runs of {given.rounds:,} rounds", f"{size / 1e9:.2f} GB of metrics.jsonl")
        began = time.perf_counter()
        server = subprocess.Popen(
            [sys.executable, "-m", "manyeyes", "board", str(root), "--port", "0"], stdout=subprocess.PIPE, text=True
        )
        try:
            assert server.stdout is not None
            address = server.stdout.readline().split(": ", 1)[1].split()[0]
            say("the command has started", f"{time.perf_counter() - began:.2f} s, {memory(server):.0f} MB")
            measure(server, address, root, given.rounds)
            if shutil.which("chromium"):
                browse(address, root, given.rounds)
        finally:
            server.terminate()
            server.wait()


def make(root: Path, runs: int, rounds: int) -> int:
    """Run folders such as sweeps leave, nine in ten of them finished."""
    config: Any = OmegaConf.to_container(compose_config([f"rounds={rounds}"]), resolve=True)
    size = 0
    for number in range(runs):
        folder = root / f"sweep_{number // 100}" / str(number % 100)
        folder.mkdir(parents=True)
        config["algorithm"] |= {
            "name": ALGORITHMS[number % 4],
            "lr": RATES[number % 5],
            "cohort": COHORTS[number % 25 // 5],
        }
        (folder / "config.yaml").write_text(yaml.safe_dump(config | {"seed": number // 100}, sort_keys=False))
        (folder / "environment.json").write_text("{}")
        done = rounds if number % 10 else rounds * (number // 10 % 10 + 1) // 11
        rng = random.Random(number)
        lines = "".join(line(round, rng, round % 10 == 0) for round in range(done + 1))
        (folder / "metrics.jsonl").write_text(lines)
        size += len(lines)
        if done == rounds:
            (folder / "model.safetensors").touch()
        for path in folder.iterdir():
            os.utime(path, (time.time() - 3600,) * 2)
    return size


def line(round: int, rng: random.Random, scored: bool) -> str:
    """As `manyeyes run` writes one."""
    loss = 2.3 * math.exp(-round / 1500) + 0.1 * rng.random()
    event = {"round": round, "train_loss": loss, "update_norm": rng.random(), "clients": 10, "images": 5000}
    event |= {"batches": 80, "seconds": 0.0143 + 0.001 * rng.random()}
    if scored:
        event |= {"examples": 1e4, "accuracy": 0.8 - 0.3 * loss, "loss": loss + 0.1, "macro_accuracy": 0.7 - 0.3 * loss}
        names = ("user_mean", "user_weighted_mean", "user_q05", "user_q25", "user_q50", "user_q75", "user_q95")
        event |= {name: rng.random() for name in names}
    return json.dumps(event) + "\n"


def measure(server: subprocess.Popen[str], address: str, root: Path, rounds: int) -> None:
    """Questions as the page asks them."""
    seconds, found, sent = ask(address + "api/runs")
    at_work = f"{worked(server):.1f} s at work since it was started"
    say("first answer, all runs", f"{seconds:.2f} s ({at_work}), {sent / 1e3:.0f} kB sent, {memory(server):.0f} MB")
    version = found["version"]
    idle, advanced = [], []
    for step in range(10):
        time.sleep(0.5)
        idle.append(ask(f"{address}api/runs?since={version}")[0])
        time.sleep(0.5)
        advance(root, rounds + step)
        seconds, found, sent = ask(f"{address}api/runs?since={version}")
        assert len(found["runs"]) == 1
        version = found["version"]
        advanced.append(seconds)
    say("looking again, nothing new", f"{1e3 * median(idle):.1f} ms")
    say("looking again, one run has advanced", f"{1e3 * median(advanced):.1f} ms, {sent:,} bytes sent")
    _, everything, _ = ask(address + "api/runs")
    ids = [row[0] for row in everything["runs"][:10]]
    query = address + "api/curves?y=accuracy&y=train_loss&" + "&".join(f"run={each}" for each in ids)
    seconds, _, sent = ask(query)
    say("two curves of ten runs, first time", f"{1e3 * seconds:.0f} ms, {sent / 1e3:.0f} kB sent")
    say("two curves of ten runs, again", f"{1e3 * ask(query)[0]:.0f} ms")
    for first in range(0, len(everything["runs"]), 60):
        words = "&".join(f"run={row[0]}" for row in everything["runs"][first : first + 60])
        ask(f"{address}api/curves?y=accuracy&{words}")
    say("after the curves of every run were asked for", f"{memory(server):.0f} MB")


def browse(address: str, root: Path, rounds: int) -> None:
    """The page as a person meets it."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1440, "height": 900}, bypass_csp=True)  # to wait for what it says

        def until(act: Callable[[], object], condition: str) -> float:
            began = time.perf_counter()
            act()
            page.wait_for_function(condition, polling=5)
            return time.perf_counter() - began

        seconds = until(
            lambda: page.goto(address), "document.body.dataset.ready && document.querySelector('path.me-line')"
        )
        say("page: list and curves are there", f"{seconds:.2f} s")
        seconds = until(lambda: page.fill("#text", "lr=0.01 cohort=10"), "count.textContent.includes(' of ')")
        say("page: a filter has filtered", f"{1e3 * seconds:.0f} ms")
        page.fill("#text", "")
        seconds = until(lambda: page.select_option("#sort", "score"), "true")
        say("page: sorted by score", f"{1e3 * seconds:.0f} ms")
        page.select_option("#sort", "newest")
        page.fill("#text", "sweep_0/0")
        page.wait_for_function("rows.children.length")
        seen = f"rows.innerText.includes('{rounds + 700:,}')"
        say(
            "page: a new round is on it",
            f"{until(lambda: advance(root, rounds + 700), seen):.2f} s after it was written",
        )
        browser.close()


def advance(root: Path, round: int) -> None:
    with (root / "sweep_0" / "0" / "metrics.jsonl").open("a") as file:
        file.write(line(round, random.Random(round), True))


def ask(url: str) -> tuple[float, Any, int]:
    """Seconds, what was answered, and the bytes that came."""
    began = time.perf_counter()
    with urllib.request.urlopen(urllib.request.Request(url, headers={"Accept-Encoding": "gzip"})) as answer:
        data = answer.read()
    seconds = time.perf_counter() - began
    zipped = answer.headers.get("Content-Encoding") == "gzip"
    return seconds, json.loads(gzip.decompress(data) if zipped else data), len(data)


def memory(process: subprocess.Popen[str]) -> float:
    status = Path(f"/proc/{process.pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) / 1e3


def worked(process: subprocess.Popen[str]) -> float:
    """Seconds that a process has computed, which count less what else goes on."""
    return sum(map(int, Path(f"/proc/{process.pid}/stat").read_text().rsplit(")")[-1].split()[11:13])) / 100


def say(what: str, how_much: str) -> None:
    print(f"{what:46} {how_much}", flush=True)


if __name__ == "__main__":
    main()
