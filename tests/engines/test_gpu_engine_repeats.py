"""On a GPU a run is the same bit for bit in another process, which compiles anew and shares the GPU with other work."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from manyeyes.training.run_folder import read_events

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
WORDS = (  # as FedPer on FLICKR-AES: small batches, live statistics, several clients in every lane
    *("data.users=30", "data.images_per_user=53", "data.size=64", "data.split=per_user"),
    *(
        "model=mobilenet_v1",
        "model.norm=batch",
        "algorithm=fedper",
        "algorithm.select=everyone",
        "algorithm.batch_size=4",
    ),
    *("algorithm.momentum=0.9", "rounds=3", "evaluate_every=3", "engine=cuda_graphs", "engine.precision=bf16"),
)


def run(folder: Path) -> None:
    cache = {"TORCHINDUCTOR_CACHE_DIR": str(folder.with_name(f"{folder.name}_compiled"))}
    command = [sys.executable, "-m", "manyeyes", "run", *WORDS, f"folder={folder}"]
    subprocess.run(command, check=True, env=os.environ | cache)


@contextmanager
def busy_gpu() -> Iterator[None]:
    """Within, matrices are multiplied in this process."""
    over, stream = threading.Event(), torch.cuda.Stream()

    def multiply() -> None:
        with torch.cuda.stream(stream):
            matrix = torch.randn(4096, 4096, device="cuda")
            while not over.is_set():
                matrix @ matrix
                stream.synchronize()

    thread = threading.Thread(target=multiply)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def test_a_run_of_small_batches_repeats_in_another_process_beside_other_work(tmp_path: Path) -> None:
    run(tmp_path / "alone")
    with busy_gpu():
        run(tmp_path / "beside")
    one, other = (
        [e["train_loss"] for e in read_events(tmp_path / n / "metrics.jsonl")[1:]] for n in ("alone", "beside")
    )
    assert one == other
    assert (tmp_path / "alone/model.safetensors").read_bytes() == (tmp_path / "beside/model.safetensors").read_bytes()
