"""`python -m benchmarks.rounds`: seconds per round, compared with a plain loop and with the installed peers."""

from __future__ import annotations

import os
import shlex
import sys
from argparse import BooleanOptionalAction, Namespace
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from benchmarks.rounds.case import BenchCase, BenchResult
from benchmarks.rounds.process import time_case
from benchmarks.rounds.subprocess_main import RUNNERS
from benchmarks.rounds.table import format_line, make_record, make_table
from benchmarks.rounds.workloads import SCALING, WORKLOADS
from manyeyes.cli.parser import Parser
from manyeyes.core.registry import names
from manyeyes.engines.base import choose_precision
from manyeyes.engines.multiprocess.worker import cores
from manyeyes.engines.select import choose_device
from manyeyes.io.files import write_text
from manyeyes.training.description import environment

PROGRAM = "python -m benchmarks.rounds"
PEERS = tuple(name for name in RUNNERS if name != "ours")
DEFAULT_WORKLOADS = {"cpu": ["small"], "cuda": ["hsu", "pflcifar"]}


def main(argv: Sequence[str]) -> int:
    """Time the cases; a user's mistake is one sentence on standard error."""
    try:
        return run_benchmark(argv)
    except ValueError as error:
        print(f"benchmarks.rounds: {error}", file=sys.stderr)
        return 1


def run_benchmark(argv: Sequence[str]) -> int:
    """Time every case, print and record each when it is done, then print the table."""
    args = make_parser().parse_args(argv)
    pythons = _pythons(args.python)
    if args.record is not None and not args.record.parent.is_dir():
        raise ValueError(f"No folder {args.record.parent} for --record: create it first.")
    results: list[BenchResult] = []
    metadata = {} if args.record is None else environment() | {"command": f"{PROGRAM} {shlex.join(argv)}"}
    for case in list(make_cases(args)):
        if any(r.case.runner == case.runner and r.failure == "not installed" for r in results):
            continue  # reported already
        results.append(time_case(case, pythons.get(case.runner, sys.executable), args.limit))
        print(format_line(results[-1]), flush=True)
        if args.record is not None:
            write_text(args.record, make_record(results, metadata))  # after Ctrl-C the record has what was measured
    Console().print(make_table(results))
    if args.record is not None:
        print(f"Record: {args.record}")
    return 0


def make_cases(args: Namespace) -> Iterator[BenchCase]:
    """Yield what is timed, our engines first for every workload."""
    device = choose_device(args.device).type
    peers, engines = _split("--peers", args.peers, PEERS), _split("--engines", args.engines, ("auto", *names("engine")))
    precisions = args.precision.split(",")
    for precision in filter(None, precisions):
        choose_precision(precision, torch.device(device))  # refuses what the device does not support
    if args.warmup < 0 or (args.rounds is not None and args.rounds < 1):
        raise ValueError("Set --rounds to at least 1 and --warmup to at least 0.")
    for name, users, cohort in _sizes(args, device):
        workload = WORKLOADS[name].resized(users, cohort)  # refuses impossible sizes
        shared: dict[str, Any] = {"workload": name, "users": users, "cohort": cohort, "device": device}
        shared |= {"rounds": args.rounds or workload.rounds, "warmup": args.warmup}
        for engine, precision in product(engines, precisions):
            options = {"precision": precision, "compile": args.compile, "workers": args.workers}
            yield BenchCase(runner="ours", engine=engine, **shared, **options)
            if args.private:
                yield BenchCase(runner="ours", engine=engine, private=True, **shared, **options)
        for peer in peers:
            if peer in workload.peers:
                for options in peer_variants(peer, device, "bf16" in precisions):
                    yield BenchCase(runner=peer, **shared, **options)


def peer_variants(peer: str, device: str, bf16: bool = False) -> list[dict[str, Any]]:
    """Return the settings in which a peer may be fastest, which depends on the machine.

    On a CPU, bf16 is among them if our engines are timed in it.
    """
    if device == "cuda":
        if peer == "flower":
            return [{}]
        return [{"precision": p} for p in (("autocast", "cast") if peer == "handwritten" else ("tf32", "bf16"))]
    num_cores = cores()
    variants: list[dict[str, Any]] = [{}] if peer == "flower" else [{"threads": n} for n in sorted({1, num_cores})]
    if peer == "pfl" and num_cores > 1:
        variants.append({"threads": 1, "processes": num_cores})
    return [variant | precision for precision in ({}, {"precision": "bf16"})[: 1 + bf16] for variant in variants]


def _sizes(args: Namespace, device: str) -> Iterator[tuple[str, int, int]]:
    """Yield the workloads with their numbers of users and clients."""
    workloads = _split("workload", ",".join(args.workloads) or None, tuple(WORKLOADS))
    if args.scaling:
        if args.workloads or args.users or args.cohort:
            raise ValueError("--scaling sets the workload, --users and --cohort: omit them.")
        yield from (("crowd", users, cohort) for users, cohort in SCALING)
        return
    for name in workloads if args.workloads else DEFAULT_WORKLOADS[device]:
        for users in _counts("--users", args.users):
            yield from ((name, users, cohort) for cohort in _counts("--cohort", args.cohort))


def _counts(option: str, text: str | None) -> list[int]:
    counts = (text or "0").split(",")
    if not all(count.isdecimal() for count in counts) or (text and "0" in counts):
        raise ValueError(f"{option} is {text!r}: set it to a number above 0, or to several separated by commas.")
    return [int(count) for count in counts]


def _split(option: str, text: str | None, known: tuple[str, ...]) -> list[str]:
    """Return names separated by commas; None: all that are known."""
    if text is None:
        return list(known)
    selected = list(filter(None, text.split(",")))
    for name in selected:
        if name not in known:
            raise ValueError(f"Unknown {option} {name!r}: choose {', '.join(known)}.")
    return selected


def _pythons(texts: list[str]) -> dict[str, str]:
    pythons = {}
    for text in texts:
        name, _, path = text.partition("=")
        if name not in RUNNERS or not os.access(path, os.X_OK):
            raise ValueError(
                f"--python is {text!r}: set it to NAME=PATH, a runner ({', '.join(RUNNERS)}) and an interpreter."
            )
        pythons[name] = path
    return pythons


def make_parser() -> Parser:
    width = max(map(len, WORKLOADS))
    workloads = "\n".join(f"  {name:{width}}  {workload.description}" for name, workload in WORKLOADS.items())
    parser = Parser(
        PROGRAM,
        description="Time whole rounds of manyeyes, a plain PyTorch loop, pfl-research and Flower.",
        epilog=f"workloads:\n{workloads}\n\nexamples:\n"
        f"  {PROGRAM}                                small on a CPU; hsu and pflcifar on a GPU\n"
        f"  {PROGRAM} flair --engines auto,reference --record benchmarks/records/flair.json\n"
        f"  {PROGRAM} small --python pfl=/envs/pfl/bin/python --python flower=/envs/flower/bin/python\n"
        f"  {PROGRAM} --scaling --peers ''           100 to 1,000,000 users, 50 to 5,000 clients\n",
    )
    add = parser.add_argument
    add("workloads", nargs="*", metavar="WORKLOAD", help="what to time (see below)")
    add("--engines", default="auto", help="our engines, separated by commas (%(default)s)")
    add("--peers", help=f"what to compare with, separated by commas ({','.join(PEERS)})")
    add("--rounds", type=int, help="rounds that are timed (by default the workload's number)")
    add("--warmup", type=int, default=2, help="rounds before those (%(default)s)")
    add("--users", help="users of the population (by default the workload's number); several: 100,10000")
    add("--cohort", help="clients per round (by default the workload's number); several: 50,500")
    add("--scaling", action="store_true", help="the cost of users and clients: the workload crowd in three sizes")
    add("--private", action="store_true", help="also time our engines with differential privacy")
    add("--device", default="auto", help="auto, cpu or cuda (%(default)s)")
    add("--precision", default="", help="precisions of our engines: float32,bf16 (by default the engine's choice)")
    add("--compile", action=BooleanOptionalAction, help="whether our engines compile (by default the engine's choice)")
    add("--workers", type=int, help="worker processes of our engines (by default the engine's choice)")
    add("--python", action="append", default=[], metavar="NAME=PATH", help="another interpreter for a runner")
    add("--limit", type=float, default=900, help="seconds that a case may take (%(default)s)")
    add("--record", type=Path, metavar="FILE", help="write machine, versions, command and numbers to a file")
    return parser
