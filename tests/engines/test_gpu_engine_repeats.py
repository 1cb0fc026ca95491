"""On a GPU a run repeats bit for bit in another process that compiles again and shares the GPU with other work."""

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
OVERRIDES = (  # as FedPer on FLICKR-AES: small batches, live statistics, several clients in every stream
    "data.users=30",
    "data.images_per_user=53",
    "data.size=64",
    "data.split=per_user",
    "model=mobilenet_v1",
    "model.norm=live",
    "algorithm=fedper",
    "sampler=all",
    "algorithm.batch_size=4",
    "algorithm.momentum=0.9",
    "rounds=3",
    "evaluate_every=3",
    "engine=cuda_graphs",
    "engine.precision=bf16",
)


def run(folder: Path) -> None:
    cache = {"TORCHINDUCTOR_CACHE_DIR": str(folder.with_name(f"{folder.name}_compiled"))}
    command = [sys.executable, "-m", "manyeyes", "run", *OVERRIDES, f"folder={folder}"]
    subprocess.run(command, check=True, env=os.environ | cache)


@contextmanager
def busy_gpu() -> Iterator[None]:
    """Multiply matrices in this process within the block."""
    stopped, stream = threading.Event(), torch.cuda.Stream()

    def multiply() -> None:
        with torch.cuda.stream(stream):
            matrix = torch.randn(4096, 4096, device="cuda")
            while not stopped.is_set():
                matrix @ matrix
                stream.synchronize()

    thread = threading.Thread(target=multiply)
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join()


def test_a_run_of_small_batches_repeats_in_another_process_while_the_gpu_is_busy(tmp_path: Path) -> None:
    run(tmp_path / "idle")
    with busy_gpu():
        run(tmp_path / "busy")
    losses = {
        name: [event["train_loss"] for event in read_events(tmp_path / name / "metrics.jsonl")[1:]]
        for name in ("idle", "busy")
    }
    assert losses["busy"] == losses["idle"]
    assert (tmp_path / "busy/model.safetensors").read_bytes() == (tmp_path / "idle/model.safetensors").read_bytes()
