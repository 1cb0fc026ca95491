"""The roll: which node is which member, kept up to date while nodes come, go and return."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from flwr.app import ConfigRecord, MessageType, RecordDict
from flwr.serverapp import Grid

from manyeyes.flower.config import FederationConfig
from manyeyes.flower.members import ClientInfo, Members, read_client_info, resolve_members
from manyeyes.flower.messaging import send_and_receive
from manyeyes.flower.wire import InvalidReply


@dataclass
class ClientRegistry:
    """Asks every node that it does not know who it is, at most `repeats` times more."""

    grid: Grid
    rules: FederationConfig
    counts: bool  # whether clients are asked how often they hold each class
    sleep: Callable[[float], None] = time.sleep
    members: Members | None = None
    _node: dict[int, int] = field(default_factory=dict)  # of each key
    _asked: Counter[int] = field(default_factory=Counter)
    _told: set[str] = field(default_factory=set)

    def wait_for_clients(self, least: int) -> Members:
        """Wait for so many clients, and take all that are there."""
        said: dict[int, ClientInfo] = {}
        deadline = time.monotonic() + self.rules.join_timeout
        while True:
            said |= self._query(set(self.grid.get_node_ids()) - said.keys())
            if said:
                members, nodes, why = resolve_members(said)
                if len(members.all) >= least:
                    break
            if time.monotonic() >= deadline:
                there = len(resolve_members(said)[0].all) if said else 0
                raise ValueError(
                    f"{there} good clients came within {self.rules.join_timeout:g} seconds, and {least} are needed: "
                    "start more nodes, or wait longer"
                )
            self.sleep(1.0)
        for reason in why.values():
            self._tell(reason)
        self.members, self._node = members, {key: node for node, key in nodes.items()}
        return members

    def connected(self) -> dict[int, int]:
        """The node of each member that is connected now; one that returns may have become another node."""
        assert self.members is not None, "the members have not been called yet"
        nodes = set(self.grid.get_node_ids())
        for node, one in self._query(nodes - set(self._node.values())).items():
            mine = next((m for m in self.members.all if m.name == one.name), None)
            what = (self.members.classes, self.members.multi, self.members.height, self.members.width)
            if mine is None:
                self._tell(f"{one.name}: it came after the start and is not in this run")
            elif self._node.get(mine.key) in nodes:
                self._tell(f"{one.name}: another client that is connected has this name")
            elif one.what != what or one.examples != mine.examples:
                self._tell(f"{one.name}: it does not hold what it held at the start")
            else:
                self._node[mine.key] = node
        return {key: node for key, node in self._node.items() if node in nodes}

    def _query(self, nodes: Iterable[int]) -> dict[int, ClientInfo]:
        """What nodes say of themselves; one that gives no good answer is asked again the next times."""
        strangers = [node for node in nodes if self._asked[node] <= self.rules.max_retries]
        self._asked.update(strangers)
        tasks = {node: RecordDict({"about": ConfigRecord({"counts": int(self.counts)})}) for node in strangers}
        said: dict[int, ClientInfo] = {}
        for node, answer in send_and_receive(self.grid, tasks, MessageType.QUERY, self.rules.timeout, sleep=self.sleep):
            try:
                if isinstance(answer, str):
                    raise InvalidReply(answer)
                said[node] = read_client_info(answer.content, self.rules, self.counts)
            except InvalidReply as reason:
                self._tell(f"node {node}: {reason}")
        return said

    def _tell(self, what: str) -> None:
        if what not in self._told:
            self._told.add(what)
            print(f"left out: {what}", file=sys.stderr, flush=True)
