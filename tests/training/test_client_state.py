"""What clients keep: the same in memory and in the file, whole after any crash, and damaged one client at a time."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from manyeyes.training.client_state import ClientStateStore, Index

CPU = torch.device("cpu")
LARGE = 2**30


def head(value: float) -> dict[str, Tensor]:
    return {"personal": torch.full((5,), float(value)), "slot0": torch.tensor([float(value)])}


def values(clients: ClientStateStore) -> dict[int, float]:
    return {key: float(clients[key]["slot0"]) for key in clients}


@pytest.mark.parametrize("most", [0, 50, LARGE], ids=["file", "both", "memory"])
def test_what_is_put_in_comes_out(tmp_path: Path, most: int) -> None:
    clients = ClientStateStore(tmp_path / "c", CPU, most)
    clients.update({7: head(1), 3: head(2), 9: head(3)})
    clients[3] = head(4)
    del clients[9]
    assert (list(clients), len(clients), 9 in clients, clients.get(9)) == ([3, 7], 2, False, None)
    assert torch.equal(clients[3]["personal"], torch.full((5,), 4.0))
    assert values(clients) == {3: 4, 7: 1}


def test_types_and_shapes_come_back(tmp_path: Path) -> None:
    kept = {
        "a": torch.rand(2, 3),
        "b": torch.tensor(5),
        "c": torch.rand(3, dtype=torch.float64),
        "d": torch.tensor([True]),
    }
    clients = ClientStateStore(tmp_path / "c", CPU, 0)
    clients[1] = kept
    index = clients.flush()
    for found in (clients[1], ClientStateStore.open(tmp_path / "c", index, CPU, 0)[1]):
        assert found.keys() == kept.keys()
        for name, tensor in kept.items():
            assert torch.equal(found[name], tensor)
            assert found[name].dtype == tensor.dtype


def test_a_full_disk_is_told_with_the_name_of_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*where: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    clients = ClientStateStore(tmp_path / "c", CPU, 0)
    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(OSError, match="No space left on device") as told:
        clients[1] = head(1)
    assert told.value.filename == str(tmp_path / "c")


def test_nothing_is_written_where_nothing_is_kept(tmp_path: Path) -> None:
    clients = ClientStateStore(tmp_path / "c", CPU, 0)
    assert len(clients.flush().keys) == 0
    clients.commit()
    assert list(tmp_path.iterdir()) == []
    assert len(ClientStateStore.open(tmp_path / "c", Index(), CPU, 0)) == 0


MOVES = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.integers(0, 5), st.booleans()),
        st.tuples(st.just("drop"), st.integers(0, 5), st.booleans()),
        st.tuples(st.sampled_from(["save", "half", "crash"]), st.just(0), st.just(False)),
    ),
    max_size=40,
)


@settings(deadline=None, max_examples=150)
@given(MOVES, st.sampled_from([0, 60, LARGE]))
def test_after_a_crash_at_any_point_all_is_as_the_last_checkpoint_says(
    tmp_path_factory: pytest.TempPathFactory, moves: list[tuple[str, int, bool]], most: int
) -> None:
    """A crash loses the process; `half` is one between the records and the checkpoint that counts on them."""
    folder = tmp_path_factory.mktemp("clients")
    path = folder / "c"
    clients, saved, wanted, now = ClientStateStore(path, CPU, most), Index(), dict[int, float](), dict[int, float]()
    for number, (move, key, long) in enumerate(moves):
        if move == "put":
            clients[key] = {**head(number), **({"control": torch.full((7,), 1.0)} if long else {})}
            now[key] = number
        elif move == "drop" and key in clients:
            del clients[key]
            del now[key]
        elif move in ("save", "half"):
            index = clients.flush()
            if move == "save":
                saved, wanted = index, dict(now)
                clients.commit()
        if move in ("crash", "half"):
            clients.close()
            clients, now = ClientStateStore.open(path, saved, CPU, most), dict(wanted)
        assert values(clients) == now
    most_bytes = (7 + 6) * 4 * 6
    assert not path.exists() or path.stat().st_size <= 3 * most_bytes  # places are used again
    shutil.rmtree(folder)


def test_a_checkpoint_writes_what_has_changed_and_no_more(tmp_path: Path) -> None:
    clients = ClientStateStore(tmp_path / "c", CPU, LARGE)
    clients.update({key: head(key) for key in range(100)})
    clients.flush()
    clients.commit()
    before = np.frombuffer((tmp_path / "c").read_bytes(), np.uint8)
    clients.update({key: head(-key) for key in (3, 50)})
    clients.flush()
    after = np.frombuffer((tmp_path / "c").read_bytes(), np.uint8)
    assert len(after) == len(before) + 2 * 24
    assert np.array_equal(after[: len(before)], before)


@pytest.mark.parametrize("most", [0, LARGE])
def test_a_damaged_record_is_named_and_only_its_client_starts_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], most: int
) -> None:
    clients = ClientStateStore(tmp_path / "c", CPU, most)
    clients.update({key: head(key) for key in range(5)})
    index = clients.flush()
    place = int(index.records[index.keys.tolist().index(3), 1])
    data = bytearray((tmp_path / "c").read_bytes())
    data[place + 2] ^= 1
    (tmp_path / "c").write_bytes(data)
    again = ClientStateStore.open(tmp_path / "c", index, CPU, most)
    assert again.get(3) is None
    expected = f"what client 3 kept is damaged in {tmp_path / 'c'}: it starts again from the shared model\n"
    assert capsys.readouterr().err == expected
    assert values(again) == {0: 0, 1: 1, 2: 2, 4: 4}
    again[3] = head(8)
    assert values(ClientStateStore.open(tmp_path / "c", again.flush(), CPU, most))[3] == 8


def test_a_file_that_was_cut_damages_those_behind_the_cut(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    clients = ClientStateStore(tmp_path / "c", CPU, 0)
    clients.update({key: head(key) for key in range(3)})
    index = clients.flush()
    with (tmp_path / "c").open("r+b") as file:
        file.truncate(30)
    again = ClientStateStore.open(tmp_path / "c", index, CPU, 0)
    assert [again.get(key) is None for key in range(3)] == [False, True, True]
    assert capsys.readouterr().err.count("\n") == 2


def test_a_file_that_is_gone_is_asked_for(tmp_path: Path) -> None:
    clients = ClientStateStore(tmp_path / "c", CPU, 0)
    clients[0] = head(1)
    index = clients.flush()
    (tmp_path / "c").unlink()
    with pytest.raises(ValueError, match="is not there, and the checkpoint counts on it: bring it back"):
        ClientStateStore.open(tmp_path / "c", index, CPU, 0)


def test_a_process_that_does_not_write_works_on_a_copy(tmp_path: Path) -> None:
    clients = ClientStateStore(tmp_path / "c", CPU, 0)
    clients.update({key: head(key) for key in range(3)})
    index = clients.flush()
    before = (tmp_path / "c").read_bytes()
    other = ClientStateStore.open(tmp_path / "c", index, CPU, 0, writes=False)
    other.update({key: head(9) for key in range(6)})
    assert values(other) == dict.fromkeys(range(6), 9)
    assert (tmp_path / "c").read_bytes() == before
