"""`manyeyes bench`: seconds a round here, side by side with a plain loop and with the peers that are installed."""

from __future__ import annotations

import os
import shlex
import sys
from argparse import BooleanOptionalAction, Namespace, RawDescriptionHelpFormatter
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from benchmarks.rounds.case import Case, Measured
from benchmarks.rounds.one import RUNNERS
from benchmarks.rounds.process import measure
from benchmarks.rounds.table import line, record, table
from benchmarks.rounds.works import SCALING, WORKS
from manyeyes.cli.parser import Parser
from manyeyes.core.registry import names
from manyeyes.engines.base import choose_precision
from manyeyes.engines.multiprocess.worker import cores
from manyeyes.engines.select import choose_device
from manyeyes.io.files import write_text
from manyeyes.training.environment import environment

PEERS = tuple(name for name in RUNNERS if name != "ours")
DEFAULT = {"cpu": ["small"], "cuda": ["hsu", "pflcifar"]}


def bench(words: list[str]) -> int:
    """Measure every case, print and record each as it is done, then print the table."""
    given = _parser().parse_args(words)
    pythons = _pythons(given.python)
    if given.record is not None and not given.record.parent.is_dir():
        raise ValueError(f"there is no folder {given.record.parent} for the record: make it first")
    rows: list[Measured] = []
    about = {} if given.record is None else environment() | {"command": shlex.join(["manyeyes", "bench", *words])}
    for case in list(cases(given)):
        if any(row.case.runner == case.runner and row.failure == "not installed" for row in rows):
            continue  # said once
        rows.append(measure(case, pythons.get(case.runner, sys.executable), given.limit))
        print(line(rows[-1]), flush=True)
        if given.record is not None:
            write_text(given.record, record(rows, about))  # who stops it keeps what was measured
    Console().print(table(rows))
    if given.record is not None:
        print(f"Record: {given.record}")
    return 0


def cases(given: Namespace) -> Iterator[Case]:
    """What is measured, ours first in every work."""
    device = choose_device(given.device).type
    peers, engines = _named("peer", given.peers, PEERS), _named("engine", given.engines, ("auto", *names("engine")))
    precisions = given.precision.split(",")
    for precision in filter(None, precisions):
        choose_precision(precision, torch.device(device))  # which refuses what cannot be
    if given.warmup < 0 or (given.rounds is not None and given.rounds < 1):
        raise ValueError("give at least 1 round with --rounds, and 0 or more with --warmup")
    for work, users, cohort in _sizes(given, device):
        one = WORKS[work].resized(users, cohort)  # which refuses what cannot be
        rounds = given.rounds or one.rounds
        shared: dict[str, Any] = {"work": work, "users": users, "cohort": cohort, "device": device, "rounds": rounds}
        shared["warmup"] = given.warmup
        for engine, precision in product(engines, precisions):
            own = {"precision": precision, "compile": given.compile, "workers": given.workers}
            yield Case(runner="ours", engine=engine, **shared, **own)
            if given.private:
                yield Case(runner="ours", engine=engine, private=True, **shared, **own)
        for peer in peers:
            if peer in one.peers:
                yield from (Case(runner=peer, **shared, **how) for how in variants(peer, device, "bf16" in precisions))


def variants(peer: str, device: str, bf16: bool = False) -> list[dict[str, Any]]:
    """The settings in which a peer may be fastest: which one is, is for the machine to say.

    On a CPU, `bf16` if ours is measured in it.
    """
    if device == "cuda":
        if peer == "flower":
            return [{}]
        return [{"precision": p} for p in (("autocast", "cast") if peer == "handwritten" else ("tf32", "bf16"))]
    count = cores()
    threads: list[dict[str, Any]] = [{}] if peer == "flower" else [{"threads": n} for n in sorted({1, count})]
    if peer == "pfl" and count > 1:
        threads.append({"threads": 1, "processes": count})
    return [how | more for more in ({}, {"precision": "bf16"})[: 1 + bf16] for how in threads]


def _sizes(given: Namespace, device: str) -> Iterator[tuple[str, int, int]]:
    """Works with their numbers of users and clients."""
    works = _named("work", ",".join(given.works) or None, tuple(WORKS))
    if given.scaling:
        if given.works or given.users or given.cohort:
            raise ValueError("--scaling brings its own work, users and cohorts: leave those out")
        yield from (("crowd", users, cohort) for users, cohort in SCALING)
        return
    for work in works if given.works else DEFAULT[device]:
        for users in _counts("--users", given.users):
            yield from ((work, users, cohort) for cohort in _counts("--cohort", given.cohort))


def _counts(option: str, text: str | None) -> list[int]:
    words = (text or "0").split(",")
    if not all(word.isdecimal() for word in words) or (text and "0" in words):
        raise ValueError(f"{option} is {text!r}: give a number, or several with commas between them")
    return [int(word) for word in words]


def _named(kind: str, text: str | None, known: tuple[str, ...]) -> list[str]:
    """Names with commas between them; None: all."""
    if text is None:
        return list(known)
    names = list(filter(None, text.split(",")))
    for name in names:
        if name not in known:
            raise ValueError(f"{kind} {name!r} is unknown: choose {', '.join(known)}")
    return names


def _pythons(given: list[str]) -> dict[str, str]:
    pythons = {}
    for text in given:
        name, _, path = text.partition("=")
        if name not in RUNNERS or not os.access(path, os.X_OK):
            raise ValueError(
                f"--python is {text!r}: give NAME=PATH, a runner ({', '.join(RUNNERS)}) and an interpreter"
            )
        pythons[name] = path
    return pythons


def _parser() -> Parser:
    width = max(map(len, WORKS))
    works = "\n".join(f"  {name:{width}}  {work.about}" for name, work in WORKS.items())
    parser = Parser(
        "manyeyes bench",
        description="Whole rounds, timed: ours, a plain PyTorch loop, pfl-research and Flower, each on its own.",
        epilog=f"works:\n{works}\n\nexamples:\n"
        "  manyeyes bench                                          small on a CPU; hsu and pflcifar on a GPU\n"
        "  manyeyes bench flair --engines auto,reference --record benchmarks/records/flair.json\n"
        "  manyeyes bench small --python pfl=/envs/pfl/bin/python --python flower=/envs/flower/bin/python\n"
        "  manyeyes bench --scaling --peers ''                     100 to 1,000,000 users, 50 to 5,000 clients\n",
        formatter_class=RawDescriptionHelpFormatter,
    )
    parser.add_argument("works", nargs="*", metavar="WORK", help="what to measure (below)")
    parser.add_argument("--engines", default="auto", help="ours, with commas between them (%(default)s)")
    parser.add_argument("--peers", help=f"to compare with, with commas between them ({','.join(PEERS)})")
    parser.add_argument("--rounds", type=int, help="that are measured (as many as the work says)")
    parser.add_argument("--warmup", type=int, default=2, help="rounds before those (%(default)s)")
    parser.add_argument("--users", help="in the population, instead of the work's own; several: 100,10000")
    parser.add_argument("--cohort", help="clients a round, instead of the work's own; several: 50,500")
    parser.add_argument(
        "--scaling", action="store_true", help="what users and clients cost: the work crowd at three sizes"
    )
    parser.add_argument("--private", action="store_true", help="ours with differential privacy too: what it costs")
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda (%(default)s)")
    parser.add_argument("--precision", default="", help="of ours, several: float32,bf16 (the engine's choice)")
    parser.add_argument("--compile", action=BooleanOptionalAction, help="ours compiled or not (the engine's choice)")
    parser.add_argument("--workers", type=int, help="processes of ours (the engine's choice)")
    parser.add_argument(
        "--python", action="append", default=[], metavar="NAME=PATH", help="another interpreter for a runner"
    )
    parser.add_argument("--limit", type=float, default=900, help="seconds that a row may take (%(default)s)")
    parser.add_argument("--record", type=Path, metavar="FILE", help="write machine, versions, command and numbers here")
    return parser
