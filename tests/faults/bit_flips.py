"""One changed bit in any file of a run or a store, and what those who read it make of it."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from manyeyes.data.store.verify import find_damage
from manyeyes.training.run_reader import read_run
from manyeyes.training.verify import verify_run
from tests.damage import flip_bit
from tests.data.test_store_damage import error_of, read_all
from tests.faults.campaign import NAMED, SAME, Tally
from tests.faults.workloads import copy_store, files_below, resume_command, run_results, start, succeed, train_command

RESUMED_FILES = ("checkpoint.safetensors", "clients.bin", "metrics.jsonl", "config.yaml")


def each_flip(folder: Path, count: int, only: tuple[str, ...] = ()) -> Iterator[tuple[str, int]]:
    """Change a random bit at a time of each file of a folder, and yield the file and the bit."""
    rng = np.random.default_rng(0)
    for name, data in files_below(folder).items():
        if name != ".lock" and (not only or name in only):
            for bit in rng.choice(8 * len(data), min(count, 8 * len(data)), replace=False).tolist():
                flip_bit(folder / name, bit)
                yield name, bit
                (folder / name).write_bytes(data)


def flip_read_run(root: Path, count: int) -> Tally:
    """Change bits of a finished run that is then verified, and read for a report."""
    _train(root)
    run, tally = root / "runs" / "a", Tally()
    expected = _read_for_report(run)
    assert not any(verify_run(run).values()), "the run is damaged before a bit is changed"
    for name, bit in each_flip(run, count):
        actual, damaged = _read_for_report(run), {file for file, problem in verify_run(run).items() if problem}
        is_silent = actual != expected and not actual["problems"]
        ending = NAMED if damaged else SAME if actual == expected else "differs and verify names nothing"
        tally.add(f"bit {bit} of {name}", "is read without a problem, and differs" if is_silent else ending)
        if damaged and name not in damaged:
            tally.failures.append(f"bit {bit} of {name}: verify names {damaged}")
    return tally


def flip_resumed_run(root: Path, count: int) -> Tally:
    """Change bits of a run that is then resumed with more rounds."""
    _train(root, rounds=2)
    run, backup, tally = root / "runs" / "a", root / "backup", Tally()
    shutil.copytree(run, backup)
    succeed(resume_command(root))
    expected = run_results(root)
    for name, bit in each_flip(backup, count, RESUMED_FILES):
        shutil.rmtree(run)
        shutil.copytree(backup, run)
        outcome = start(resume_command(root))
        if outcome.code in (1, 2) and name in outcome.err and outcome.err.count("\n") == 1:
            ending = NAMED
        elif outcome.code == 0 and f"{name} is damaged" in outcome.err:
            ending = NAMED  # the client starts again
        else:
            ending = SAME if (outcome.code, outcome.err) == (0, "") and run_results(root) == expected else str(outcome)
        tally.add(f"bit {bit} of {name}", ending)
    return tally


def flip_store(root: Path, count: int) -> Tally:
    """Change bits of a store that is then read completely, and verified."""
    copy_store(root)
    store, tally = root / "store", Tally()
    expected = read_all(store)
    for name, bit in each_flip(store, count):
        error, damage = error_of(read_all, store), find_damage(store)
        if error:
            ending = NAMED if name in error and damage else f"the error is {error}, and verify says {damage}"
        else:
            ending = SAME if read_all(store) == expected else "differs silently"
        tally.add(f"bit {bit} of {name}", ending)
    return tally


FLIPS: dict[str, Callable[[Path, int], Tally]] = {
    "a run is read": flip_read_run,
    "a run is resumed": flip_resumed_run,
    "a store is read": flip_store,
}


def _train(root: Path, rounds: int = 4) -> None:
    copy_store(root)
    succeed(train_command(root, rounds))


def _read_for_report(run: Path) -> dict[str, Any]:
    """Return all that is read of a run folder for a report."""
    record = read_run(run)
    names = ("events", "settings", "environment", "dataset_stats", "class_rows", "user_rows", "status", "problems")
    return {name: getattr(record, name) for name in names}
