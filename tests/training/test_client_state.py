"""Client states: equal in memory and in the file, complete after any crash, and damaged one client at a time."""

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

from manyeyes.core.state import ClientState
from manyeyes.training.client_state import ClientStateStore, pack

CPU = torch.device("cpu")
UNLIMITED = 2**30
NO_CLIENTS = torch.zeros(0, 4, dtype=torch.int64)
MAX_CLIENTS = 6  # of the crash test


def make_state(value: float, has_correction: bool = False) -> ClientState:
    state = {"personal_weights": torch.full((5,), float(value)), "opt_state": torch.tensor([float(value)])}
    return state | ({"correction": torch.full((7,), 1.0)} if has_correction else {})


def values(clients: ClientStateStore) -> dict[int, float]:
    return {client_id: float(clients[client_id]["opt_state"]) for client_id in clients}


def offset_of(index: Tensor, client_id: int) -> int:
    return next(offset for row_id, offset, _, _ in index.tolist() if row_id == client_id)


@pytest.mark.parametrize("max_bytes", [0, 50, UNLIMITED], ids=["file", "both", "memory"])
def test_a_store_is_a_mapping(tmp_path: Path, max_bytes: int) -> None:
    clients = ClientStateStore(tmp_path / "c", CPU, max_bytes)
    clients.update({7: make_state(1), 3: make_state(2), 9: make_state(3)})
    clients[3] = make_state(4)
    del clients[9]
    assert (list(clients), len(clients), 9 in clients, clients.get(9)) == ([3, 7], 2, False, None)
    assert torch.equal(clients[3]["personal_weights"], torch.full((5,), 4.0))
    assert values(clients) == {3: 4, 7: 1}
    with pytest.raises(KeyError):
        del clients[9]


def test_types_and_shapes_are_restored(tmp_path: Path) -> None:
    state = {
        "a": torch.rand(2, 3),
        "b": torch.tensor(5),
        "c": torch.rand(3, dtype=torch.float64),
        "d": torch.tensor([True]),
        "e": torch.rand(4).to(torch.bfloat16),
        "f": torch.zeros(0),
    }
    clients = ClientStateStore(tmp_path / "c", CPU, 0)
    clients[1] = state
    index = clients.flush()
    for loaded in (clients[1], ClientStateStore(tmp_path / "c", CPU, 0, index)[1]):
        assert loaded.keys() == state.keys()
        for name, tensor in state.items():
            assert torch.equal(loaded[name], tensor)
            assert loaded[name].dtype == tensor.dtype


def test_a_loaded_state_can_be_changed_without_changing_the_file(tmp_path: Path) -> None:
    clients = ClientStateStore(tmp_path / "c", CPU, 0)
    clients[1] = make_state(1)
    clients[1]["opt_state"].add_(5)
    assert values(clients) == {1: 1}


def test_a_full_disk_is_an_error_that_names_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def write_to_full_disk(*args: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    clients = ClientStateStore(tmp_path / "c", CPU, 0)
    monkeypatch.setattr(os, "pwrite", write_to_full_disk)
    with pytest.raises(OSError, match="No space left on device") as caught:
        clients[1] = make_state(1)
    assert caught.value.filename == str(tmp_path / "c")


def test_no_file_is_written_without_states(tmp_path: Path) -> None:
    clients = ClientStateStore(tmp_path / "c", CPU, 0)
    assert clients.flush().shape == (0, 4)
    clients.commit()
    assert list(tmp_path.iterdir()) == []
    assert len(ClientStateStore(tmp_path / "c", CPU, 0, NO_CLIENTS)) == 0


ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.integers(0, MAX_CLIENTS - 1), st.booleans()),
        st.tuples(st.just("delete"), st.integers(0, MAX_CLIENTS - 1), st.booleans()),
        st.tuples(st.sampled_from(["save", "flush and crash", "crash"]), st.just(0), st.just(False)),
    ),
    max_size=40,
)


@pytest.mark.slow
@settings(deadline=None, max_examples=150)
@given(ACTIONS, st.sampled_from([0, 60, UNLIMITED]))
def test_a_crash_at_any_moment_leaves_the_states_of_the_last_checkpoint(
    tmp_path_factory: pytest.TempPathFactory, actions: list[tuple[str, int, bool]], max_bytes: int
) -> None:
    """`flush and crash` is a crash after the records were written and before the checkpoint that refers to them."""
    folder = tmp_path_factory.mktemp("clients")
    path = folder / "c"
    clients, saved_index = ClientStateStore(path, CPU, max_bytes), NO_CLIENTS
    saved, expected = dict[int, float](), dict[int, float]()
    for number, (action, client_id, has_correction) in enumerate(actions):
        if action == "put":
            clients[client_id] = make_state(number, has_correction)
            expected[client_id] = number
        elif action == "delete" and client_id in clients:
            del clients[client_id]
            del expected[client_id]
        elif action in ("save", "flush and crash"):
            index = clients.flush()
            if action == "save":
                saved_index, saved = index, dict(expected)
                clients.commit()
        if action in ("crash", "flush and crash"):
            clients.close()
            clients, expected = ClientStateStore(path, CPU, max_bytes, saved_index), dict(saved)
        assert values(clients) == expected
    max_file_bytes = 3 * MAX_CLIENTS * len(pack(make_state(0, has_correction=True)))  # free offsets are used again
    assert not path.exists() or path.stat().st_size <= max_file_bytes
    shutil.rmtree(folder)


def test_a_checkpoint_writes_only_what_has_changed(tmp_path: Path) -> None:
    clients = ClientStateStore(tmp_path / "c", CPU, UNLIMITED)
    clients.update({client_id: make_state(client_id) for client_id in range(100)})
    clients.flush()
    clients.commit()
    before = np.frombuffer((tmp_path / "c").read_bytes(), np.uint8)
    clients.update({client_id: make_state(-client_id) for client_id in (3, 50)})
    clients.flush()
    after = np.frombuffer((tmp_path / "c").read_bytes(), np.uint8)
    assert len(after) == len(before) + 2 * len(pack(make_state(0)))
    assert np.array_equal(after[: len(before)], before)


@pytest.mark.parametrize("max_bytes", [0, UNLIMITED])
def test_a_damaged_record_is_named_and_only_its_client_starts_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], max_bytes: int
) -> None:
    clients = ClientStateStore(tmp_path / "c", CPU, max_bytes)
    clients.update({client_id: make_state(client_id) for client_id in range(5)})
    index = clients.flush()
    data = bytearray((tmp_path / "c").read_bytes())
    data[offset_of(index, 3) + 2] ^= 1
    (tmp_path / "c").write_bytes(data)
    reopened = ClientStateStore(tmp_path / "c", CPU, max_bytes, index)
    assert reopened.get(3) is None
    message = f"The state of client 3 in {tmp_path / 'c'} is damaged: the client starts again from the shared model.\n"
    assert capsys.readouterr().err == message
    assert values(reopened) == {0: 0, 1: 1, 2: 2, 4: 4}
    reopened[3] = make_state(8)
    assert values(ClientStateStore(tmp_path / "c", CPU, max_bytes, reopened.flush()))[3] == 8


def test_a_truncated_file_damages_only_the_records_after_the_cut(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    clients = ClientStateStore(tmp_path / "c", CPU, 0)
    clients.update({client_id: make_state(client_id) for client_id in range(3)})
    index = clients.flush()
    with (tmp_path / "c").open("r+b") as file:
        file.truncate(offset_of(index, 1) + 6)
    reopened = ClientStateStore(tmp_path / "c", CPU, 0, index)
    assert [reopened.get(client_id) is None for client_id in range(3)] == [False, True, True]
    assert capsys.readouterr().err.count("\n") == 2


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    clients = ClientStateStore(tmp_path / "c", CPU, 0)
    clients[0] = make_state(1)
    index = clients.flush()
    (tmp_path / "c").unlink()
    with pytest.raises(ValueError, match="is missing and the checkpoint refers to it: restore the file or start a new"):
        ClientStateStore(tmp_path / "c", CPU, 0, index)


def test_a_process_that_does_not_write_works_on_a_copy(tmp_path: Path) -> None:
    clients = ClientStateStore(tmp_path / "c", CPU, 0)
    clients.update({client_id: make_state(client_id) for client_id in range(3)})
    index = clients.flush()
    before = (tmp_path / "c").read_bytes()
    copy = ClientStateStore(tmp_path / "c", CPU, 0, index, writes=False)
    copy.update({client_id: make_state(9) for client_id in range(6)})
    assert values(copy) == dict.fromkeys(range(6), 9)
    assert (tmp_path / "c").read_bytes() == before
