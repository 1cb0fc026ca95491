"""A journal: events and states, in memory or in a folder."""

from __future__ import annotations

from pathlib import Path

import torch

from manyeyes.core.state import ServerState
from manyeyes.training import checkpoint
from manyeyes.training.client_state import ClientStateStore
from manyeyes.training.run_folder import FolderRecorder, InMemoryRecorder, RunFolder, read_events

STATE = ServerState(1, torch.rand(3), {}, None)


def clients(path: Path | None = None, kept: dict[int, dict[str, torch.Tensor]] | None = None) -> ClientStateStore:
    records = ClientStateStore(path, torch.device("cpu"), 2**20)
    records.update(kept or {})
    return records


def test_memory_keeps_events_and_writes_nothing() -> None:
    journal = InMemoryRecorder()
    journal.write({"round": 0})
    journal.save(STATE, clients())
    journal.close()
    assert (journal.events, journal.path) == ([{"round": 0}], None)


def test_a_checkpoint_counts_on_the_events_before_it(tmp_path: Path) -> None:
    journal = FolderRecorder(RunFolder(tmp_path), (), "abc", None)
    journal.write({"round": 0})
    journal.save(STATE, clients(tmp_path / "clients.bin", {5: {"personal": torch.rand(2)}}))
    journal.write({"round": 1})
    journal.close()
    found = checkpoint.load(tmp_path / "checkpoint.safetensors", torch.device("cpu"))
    assert found.metrics_bytes == len('{"round": 0}\n')
    assert found.fingerprint == "abc"
    assert found.clients.keys.tolist() == [5]


def test_a_continued_journal_drops_the_events_after_its_checkpoint(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    journal = FolderRecorder(folder, (), "abc", None)
    journal.write({"round": 0})
    journal.save(STATE, clients())
    journal.write({"round": 1})
    journal.close()
    again = FolderRecorder(folder, (), "abc", checkpoint.load(folder.checkpoint, torch.device("cpu")))
    again.close()
    assert again.events == read_events(folder.metrics) == [{"round": 0}]
