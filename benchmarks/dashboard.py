"""The dashboard with many long runs: start, first response, refreshes, curves, the page in a browser, and memory.

python benchmarks/dashboard.py [--runs 1000] [--rounds 5000] [--folder DIR]
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
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
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
    parser.add_argument("--folder", type=Path, help="where to create them (a temporary folder)")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        root = Path(folder, "runs")
        size = create_runs(root, args.runs, args.rounds)
        report(f"{args.runs:,} runs of {args.rounds:,} rounds", f"{size / 1e9:.2f} GB of metrics.jsonl")
        start = time.perf_counter()
        server = subprocess.Popen(
            [sys.executable, "-m", "manyeyes", "dashboard", str(root), "--port", "0"], stdout=subprocess.PIPE, text=True
        )
        try:
            assert server.stdout is not None
            url = server.stdout.readline().split(": ", 1)[1].split()[0]
            report("start of the command", f"{time.perf_counter() - start:.2f} s, {memory(server):.0f} MB")
            measure(server, url, root, args.rounds)
            if shutil.which("chromium"):
                browse(url, root, args.rounds)
        finally:
            server.terminate()
            server.wait()


def create_runs(root: Path, runs: int, rounds: int) -> int:
    """Create run folders like those of sweeps, nine of ten finished; return the bytes of their metrics."""
    config: Any = OmegaConf.to_container(compose_config([f"rounds={rounds}"]), resolve=True)
    size = 0
    for number in range(runs):
        folder = root / f"sweep_{number // 100}" / str(number % 100)
        folder.mkdir(parents=True)
        config["algorithm"] |= {
            "name": ALGORITHMS[number % 4],
            "lr": RATES[number % 5],
            "cohort_size": COHORTS[number % 25 // 5],
        }
        (folder / "config.yaml").write_text(yaml.safe_dump(config | {"seed": number // 100}, sort_keys=False))
        (folder / "environment.json").write_text("{}")
        completed = rounds if number % 10 else rounds * (number // 10 % 10 + 1) // 11
        rng = random.Random(number)
        lines = "".join(make_line(round, rng, round % 10 == 0) for round in range(completed + 1))
        (folder / "metrics.jsonl").write_text(lines)
        size += len(lines)
        if completed == rounds:
            (folder / "model.safetensors").touch()
        for path in folder.iterdir():
            os.utime(path, (time.time() - 3600,) * 2)
    return size


def make_line(round: int, rng: random.Random, is_evaluated: bool) -> str:
    """Return the line of a round as `manyeyes run` writes it."""
    loss = 2.3 * math.exp(-round / 1500) + 0.1 * rng.random()
    event = {"round": round, "train_loss": loss, "update_norm": rng.random(), "num_clients": 10, "num_images": 5000}
    event |= {"max_client_batches": 80, "seconds": 0.0143 + 0.001 * rng.random()}
    if is_evaluated:
        event |= {"examples": 1e4, "accuracy": 0.8 - 0.3 * loss, "loss": loss + 0.1, "macro_accuracy": 0.7 - 0.3 * loss}
        names = ("user_mean", "user_weighted_mean", "user_q05", "user_q25", "user_q50", "user_q75", "user_q95")
        event |= {name: rng.random() for name in names}
    return json.dumps(event) + "\n"


def measure(server: subprocess.Popen[str], url: str, root: Path, rounds: int) -> None:
    """Send the requests of the page."""
    seconds, changes, num_bytes = request(url + "api/runs")
    cpu_time = f"{cpu_seconds(server):.1f} s of CPU time"
    report(
        "first response: all runs", f"{seconds:.2f} s ({cpu_time}), {num_bytes / 1e3:.0f} kB, {memory(server):.0f} MB"
    )
    version = changes["version"]
    idle, advanced = [], []
    for step in range(10):
        time.sleep(0.5)
        idle.append(request(f"{url}api/runs?since={version}")[0])
        time.sleep(0.5)
        advance(root, rounds + step)
        seconds, changes, num_bytes = request(f"{url}api/runs?since={version}")
        assert len(changes["runs"]) == 1
        version = changes["version"]
        advanced.append(seconds)
    report("refresh without changes", f"{1e3 * median(idle):.1f} ms")
    report("refresh after one run has advanced", f"{1e3 * median(advanced):.1f} ms, {num_bytes:,} bytes")
    _, everything, _ = request(url + "api/runs")
    ids = [run["id"] for run in everything["runs"][:10]]
    query = url + "api/curves?y=accuracy&y=train_loss&" + "&".join(f"run={run_id}" for run_id in ids)
    seconds, _, num_bytes = request(query)
    report("two curves of ten runs, first time", f"{1e3 * seconds:.0f} ms, {num_bytes / 1e3:.0f} kB")
    report("two curves of ten runs, again", f"{1e3 * request(query)[0]:.0f} ms")
    for first in range(0, len(everything["runs"]), 60):
        runs = "&".join(f"run={run['id']}" for run in everything["runs"][first : first + 60])
        request(f"{url}api/curves?y=accuracy&{runs}")
    report("memory after the curves of all runs", f"{memory(server):.0f} MB")
    measure_reports(server, url, [run["id"] for run in everything["runs"][:2]])


def measure_reports(server: subprocess.Popen[str], url: str, ids: list[str]) -> None:
    """Request the reports of two runs, one after the other and at the same time, and the list while they are made."""
    query, before = f"{url}report?run=", cpu_seconds(server)
    for name in ("report of a run, first time", "report of a run, again"):
        start, seconds = cpu_seconds(server), open_page(query + ids[0])
        report(name, f"{seconds:.2f} s ({cpu_seconds(server) - start:.1f} s of CPU time)")
    with ThreadPoolExecutor(2) as pool:
        pages = pool.map(open_page, [query + run_id for run_id in (ids[0], ids[-1])])
        list_seconds = request(url + "api/runs")[0]
        report("two reports at the same time", f"{max(pages):.2f} s, the list of runs meanwhile {list_seconds:.2f} s")
    report("all of these reports", f"{cpu_seconds(server) - before:.1f} s of CPU time, {memory(server):.0f} MB")


def open_page(url: str) -> float:
    """Return the seconds that a page takes."""
    start = time.perf_counter()
    with urllib.request.urlopen(url) as response:
        response.read()
    return time.perf_counter() - start


def browse(url: str, root: Path, rounds: int) -> None:
    """Measure the page in a browser."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1440, "height": 900}, bypass_csp=True)  # for wait_for_function

        def seconds_until(action: Callable[[], object], condition: str) -> float:
            start = time.perf_counter()
            action()
            page.wait_for_function(condition, polling=5)
            return time.perf_counter() - start

        seconds = seconds_until(
            lambda: page.goto(url), "document.body.dataset.ready && document.querySelector('path.me-line')"
        )
        report("page: list and curves are shown", f"{seconds:.2f} s")
        seconds = seconds_until(
            lambda: page.fill("#text", "lr=0.01 cohort_size=10"), "count.textContent.includes(' of ')"
        )
        report("page: filter", f"{1e3 * seconds:.0f} ms")
        page.fill("#text", "")
        seconds = seconds_until(lambda: page.select_option("#sort", "score"), "true")
        report("page: sort", f"{1e3 * seconds:.0f} ms")
        page.select_option("#sort", "newest")
        page.fill("#text", "sweep_0/0")
        page.wait_for_function("rows.children.length")
        is_shown = f"rows.innerText.includes('{rounds + 700:,}')"
        report(
            "page: time until a new round is shown",
            f"{seconds_until(lambda: advance(root, rounds + 700), is_shown):.2f} s",
        )
        browser.close()


def advance(root: Path, round: int) -> None:
    with (root / "sweep_0" / "0" / "metrics.jsonl").open("a") as file:
        file.write(make_line(round, random.Random(round), True))


def request(url: str) -> tuple[float, Any, int]:
    """Return the seconds, the content and the number of bytes of a response."""
    start = time.perf_counter()
    with urllib.request.urlopen(urllib.request.Request(url, headers={"Accept-Encoding": "gzip"})) as response:
        data = response.read()
    seconds = time.perf_counter() - start
    is_compressed = response.headers.get("Content-Encoding") == "gzip"
    return seconds, json.loads(gzip.decompress(data) if is_compressed else data), len(data)


def memory(process: subprocess.Popen[str]) -> float:
    status = Path(f"/proc/{process.pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) / 1e3


def cpu_seconds(process: subprocess.Popen[str]) -> float:
    """Return the CPU time of a process and of those that it started, which depends less on other processes than a clock."""
    return sum(map(_ticks, [process.pid, *_descendants(process.pid)])) / os.sysconf("SC_CLK_TCK")


def _ticks(pid: int) -> int:
    """Return the CPU time of a process and of its children that have ended."""
    return sum(map(int, Path(f"/proc/{pid}/stat").read_text().rsplit(")")[-1].split()[11:15]))


def _descendants(pid: int) -> Iterator[int]:
    for child in Path(f"/proc/{pid}/task").glob("*/children"):
        for number in map(int, child.read_text().split()):
            yield from (number, *_descendants(number))


def report(name: str, result: str) -> None:
    print(f"{name:46} {result}", flush=True)


if __name__ == "__main__":
    main()
