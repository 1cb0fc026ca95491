"""Verify a run folder: each of its files against its checksum."""

import os
from pathlib import Path

import torch
from torch import Tensor

from manyeyes.io.tensors import read_tensors
from manyeyes.training import checkpoint as checkpoints
from manyeyes.training import run_files
from manyeyes.training.client_state import Record, checksum
from manyeyes.training.run_checksums import CHECKSUMS_FILE, check_text, read_checksums
from manyeyes.training.run_folder import check_metrics

MAX_NAMED = 5  # clients in a message
CPU = torch.device("cpu")
UNCHECKED = "not checked, because it has no checksum"
REMOVED_BY_A_RESUME = (run_files.FAILED_FILE, run_files.DIVERGED_FILE)


def verify_run(folder: Path) -> dict[str, str]:
    """Return what is wrong with each file of a run folder; empty for a file with its checksum."""
    if not folder.is_dir() or not any((folder / name).exists() for name in (run_files.CONFIG_FILE, CHECKSUMS_FILE)):
        raise ValueError(f"Found no run in {folder}: give the folder of a run")
    results = _verify_texts(folder)
    if (folder / run_files.CHECKPOINT_FILE).exists():
        results |= _verify_checkpoint(folder)
    if (folder / run_files.MODEL_FILE).exists():
        results[run_files.MODEL_FILE] = _verify_model(folder / run_files.MODEL_FILE)
    files = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()} - {run_files.LOCK_FILE}
    return dict(sorted((dict.fromkeys(files, UNCHECKED) | results).items()))


def _verify_texts(folder: Path) -> dict[str, str]:
    try:
        checksums = read_checksums(folder)
    except ValueError as error:
        return {CHECKSUMS_FILE: str(error)}
    results = {CHECKSUMS_FILE: ""} if checksums else {}
    for name in checksums:
        try:
            check_text(folder, name, (folder / name).read_bytes())
            results[name] = ""
        except FileNotFoundError:
            if name not in REMOVED_BY_A_RESUME:
                results[name] = f"{folder / name} does not exist: restore it"
        except ValueError as error:
            results[name] = str(error)
    return results


def _verify_checkpoint(folder: Path) -> dict[str, str]:
    """Check the checkpoint, and what it refers to: the metrics and the client states."""
    try:
        checkpoint = checkpoints.load(folder / run_files.CHECKPOINT_FILE, CPU)
    except ValueError as error:
        return {run_files.CHECKPOINT_FILE: str(error)}
    results = {run_files.CHECKPOINT_FILE: "", run_files.METRICS_FILE: ""}
    try:
        check_metrics(folder / run_files.METRICS_FILE, checkpoint)
    except ValueError as error:
        results[run_files.METRICS_FILE] = str(error)
    if len(checkpoint.clients):
        results[run_files.CLIENT_STATES_FILE] = _verify_clients(
            folder / run_files.CLIENT_STATES_FILE, checkpoint.clients
        )
    return results


def _verify_clients(path: Path, index: Tensor) -> str:
    """Return which client states in a file do not have the checksum in the index of the checkpoint."""
    if not path.exists():
        return f"{path} does not exist: restore it"
    with path.open("rb") as file:
        records = [Record(*row) for row in index.tolist()]
        damaged = [
            record.client_id
            for record in records
            if checksum(record.client_id, os.pread(file.fileno(), record.size, record.offset)) != record.checksum
        ]
    more = ", ..." if len(damaged) > MAX_NAMED else ""
    clients = f"{', '.join(map(str, damaged[:MAX_NAMED]))}{more}"
    fix = "restore it, or these clients start again from the shared model"
    return f"{path} is damaged in the states of {len(damaged)} clients ({clients}): {fix}" if damaged else ""


def _verify_model(path: Path) -> str:
    try:
        return "" if read_tensors(path).has_checksum else UNCHECKED
    except ValueError as error:
        return f"{error}: write it again with resume={path.parent}"
