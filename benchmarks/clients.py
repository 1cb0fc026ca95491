"""The client state store with 50,000 clients and a ResNet18 head of 17 classes: time to open, a round, a checkpoint.

    python benchmarks/clients.py [FOLDER]          # writes 1.8 GB there, and deletes it

Prints a Markdown table; the committed one is in benchmarks/records/clients.md.
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch

from manyeyes.core.state import ServerState
from manyeyes.training import checkpoint
from manyeyes.training.checkpoint import Checkpoint
from manyeyes.training.client_state import ClientStateStore

NUM_CLIENTS, NUM_VALUES, COHORT_SIZE = 50_000, 512 * 17 + 17, 200
CPU = torch.device("cpu")


def time_call(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def main(folder: Path) -> None:
    path, state = folder / "clients.bin", ServerState(1, torch.zeros(NUM_VALUES), {}, None)
    rng = np.random.default_rng(0)
    heads = torch.from_numpy(rng.standard_normal((COHORT_SIZE, NUM_VALUES), np.float32))

    def save(clients: ClientStateStore) -> None:
        checkpoint.save(folder / "checkpoint", Checkpoint(state, clients.flush(), 0, ""))
        clients.commit()

    def fill(clients: ClientStateStore) -> None:
        for client_id in range(NUM_CLIENTS):
            clients[client_id] = {"personal": heads[client_id % COHORT_SIZE]}
        save(clients)

    def run_round(clients: ClientStateStore, client_ids: list[int]) -> None:
        old_heads = [clients[client_id]["personal"] for client_id in client_ids]
        clients.update({k: {"personal": head + 1} for k, head in zip(client_ids, old_heads, strict=True)})

    first = ClientStateStore(path, CPU, 0)
    fill_seconds = time_call(lambda: fill(first))
    size = path.stat().st_size
    first.close()
    rss_before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.perf_counter()
    clients = ClientStateStore(path, CPU, 0, checkpoint.load(folder / "checkpoint", CPU).clients)
    clients[17]
    open_seconds = time.perf_counter() - start
    open_mib = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - rss_before) / 1024
    round_seconds, save_seconds = [], []
    for _ in range(20):
        client_ids = rng.choice(NUM_CLIENTS, COHORT_SIZE, replace=False).tolist()
        round_seconds.append(time_call(partial(run_round, clients, client_ids)))
        save_seconds.append(time_call(lambda: save(clients)))
    rows = {
        "clients, values of each": f"{NUM_CLIENTS:,}, {NUM_VALUES:,}",
        "size of the values": f"{NUM_CLIENTS * NUM_VALUES * 4 / 1e9:.3f} GB",
        "size of the file": f"{size / 1e9:.3f} GB",
        f"size of the file after 20 rounds of {COHORT_SIZE}": f"{path.stat().st_size / 1e9:.3f} GB",
        "write all clients and a checkpoint": f"{fill_seconds:.1f} s",
        "open the file and read one client": f"{open_seconds * 1e3:.0f} ms",
        "memory for opening": f"{open_mib:.0f} MiB",
        f"read and write {COHORT_SIZE} (median of 20)": f"{np.median(round_seconds) * 1e3:.0f} ms",
        f"a checkpoint after {COHORT_SIZE} have changed (median)": f"{np.median(save_seconds) * 1e3:.0f} ms",
        "size of the checkpoint with its index": f"{(folder / 'checkpoint').stat().st_size / 1e6:.1f} MB",
    }
    print("| | |\n|---|---:|")
    for label, value in rows.items():
        print(f"| {label} | {value} |")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?")
    with tempfile.TemporaryDirectory(dir=parser.parse_args().folder) as temp_folder:
        main(Path(temp_folder))
