"""Work is shared out by what it costs."""

from __future__ import annotations

import numpy as np

from manyeyes.algorithm import Client
from manyeyes.engine.sharing import share_clients, share_out


def client(examples: int, whole: int | None = None) -> Client:
    rows = np.append(np.arange(examples), -1)[None]
    return Client(0, 0, 0, 1.0, rows, rows, None, rows, None if whole is None else np.arange(whole), None)


def test_clients_are_shared_out_by_what_they_cost() -> None:
    """5 and 4 open the shares; 3 goes to the 4, 3 to the 5, and the last 3 to the 7."""
    clients = tuple(client(examples) for examples in (3, 5, 3, 4, 3))
    assert share_clients(clients, 2) == [[1, 2], [0, 3, 4]]
    assert share_clients((client(3), client(1, whole=9), client(4)), 2) == [[1], [0, 2]]
    assert share_clients((client(3),), 3) == [[0], [], []]


def test_what_costs_most_comes_first_in_its_share() -> None:
    assert share_out([3, 5, 3, 4, 3], 2) == [[1, 2], [3, 0, 4]]
