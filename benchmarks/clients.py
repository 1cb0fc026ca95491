"""The client store at 50,000 clients with a ResNet18 head of 17 classes: opening, a round, a checkpoint, what it takes.

    python benchmarks/clients.py [FOLDER]          # writes 1.8 GB there, and removes it

Prints a Markdown table; the committed one is in benchmarks/records/clients.md.
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from manyeyes.core.state import ServerState
from manyeyes.training import checkpoint
from manyeyes.training.checkpoint import Checkpoint
from manyeyes.training.client_state import ClientStateStore

CLIENTS, NUMBERS, COHORT = 50_000, 512 * 17 + 17, 200
CPU = torch.device("cpu")


def timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def main(folder: Path) -> None:
    path, state = folder / "clients.bin", ServerState(1, torch.zeros(NUMBERS), {}, None)
    rng = np.random.default_rng(0)
    heads = torch.from_numpy(rng.standard_normal((COHORT, NUMBERS), np.float32))

    def save(clients: ClientStateStore) -> None:
        checkpoint.save(folder / "checkpoint", Checkpoint(state, clients.flush(), 0, ""))
        clients.commit()

    def fill(clients: ClientStateStore) -> None:
        for key in range(CLIENTS):
            clients[key] = {"personal": heads[key % COHORT]}
        save(clients)

    def play(clients: ClientStateStore, chosen: list[int]) -> None:
        held = [clients[key]["personal"] for key in chosen]
        clients.update({key: {"personal": head + 1} for key, head in zip(chosen, held, strict=True)})

    first = ClientStateStore(path, CPU, 0)
    filled = timed(lambda: fill(first))
    size = path.stat().st_size
    first.close()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = time.perf_counter()
    clients = ClientStateStore(path, CPU, 0, checkpoint.load(folder / "checkpoint", CPU).clients)
    clients[17]
    opened = time.perf_counter() - began
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    rounds, saves = [], []
    for _ in range(20):
        chosen = rng.choice(CLIENTS, COHORT, replace=False).tolist()
        rounds.append(timed(lambda chosen=chosen: play(clients, chosen)))  # type: ignore[misc]
        saves.append(timed(lambda: save(clients)))
    rows = {
        "clients, numbers each": f"{CLIENTS:,}, {NUMBERS:,}",
        "their bytes": f"{CLIENTS * NUMBERS * 4 / 1e9:.3f} GB",
        "the file, filled": f"{size / 1e9:.3f} GB",
        f"the file after 20 rounds of {COHORT}": f"{path.stat().st_size / 1e9:.3f} GB",
        "write all, with a checkpoint": f"{filled:.1f} s",
        "open, and read one": f"{opened * 1e3:.0f} ms",
        "memory that opening takes": f"{grown:.0f} MiB",
        f"read and write {COHORT} (median of 20)": f"{np.median(rounds) * 1e3:.0f} ms",
        f"a checkpoint after {COHORT} changed (median)": f"{np.median(saves) * 1e3:.0f} ms",
        "the checkpoint's index": f"{(folder / 'checkpoint').stat().st_size / 1e6:.1f} MB",
    }
    print("| | |\n|---|---:|")
    for what, value in rows.items():
        print(f"| {what} | {value} |")


if __name__ == "__main__":
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("folder", nargs="?")
    with tempfile.TemporaryDirectory(dir=words.parse_args().folder) as made:
        main(Path(made))
