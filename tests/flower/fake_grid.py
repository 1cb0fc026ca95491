"""A Flower grid in one process, which carries real messages, serialized to bytes, to real client apps."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import count
from typing import Any

os.environ["FLWR_TELEMETRY_ENABLED"] = "0"

from flwr.app import Context, Error, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

from manyeyes.flower.client import app as client_app

Change = Callable[[Message, Message], Message | None]  # (task, reply) to what is sent instead


@dataclass
class Node:
    """A client in this process; its replies go through `change` before they are sent."""

    context: Context
    app: ClientApp = client_app
    change: Change = lambda task, reply: reply


class FakeGrid(Grid):
    """A grid that carries real messages, serialized to bytes, to clients in this process."""

    def __init__(self, nodes: dict[int, Node]) -> None:
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1
        self.nodes, self.sent = nodes, list[Message]()
        self.unreadable = set[int]()  # nodes whose replies cannot be read
        self.duplicated = set[int]()  # nodes whose replies arrive twice
        self._replies: dict[str, Message] = {}
        self._counter = count()

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        message_ids = []
        for message in messages:
            task = serialize_and_read(message)
            task.metadata.__dict__["_message_id"] = f"message {next(self._counter)}"
            message_ids.append(task.metadata.message_id)
            self.sent.append(task)
            node = self.nodes.get(task.metadata.dst_node_id)
            if node is None:
                continue
            try:
                reply = node.app(task, node.context)
            except Exception as error:
                reply = Message(Error(0, str(error)), reply_to=task)
            changed = node.change(task, reply)
            if changed is not None:
                self._replies[task.metadata.message_id] = serialize_and_read(changed)
        return message_ids

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        arrived = [id for id in message_ids if id in self._replies]
        if any(self._replies[id].metadata.src_node_id in self.unreadable for id in arrived):
            raise RuntimeError("these bytes are not a message")
        replies = [self._replies.pop(id) for id in arrived]
        return replies + [reply for reply in replies if reply.metadata.src_node_id in self.duplicated]

    def get_node_ids(self) -> list[int]:
        return list(self.nodes)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        raise NotImplementedError

    def create_message(self, *arguments: Any, **more: Any) -> Message:
        raise NotImplementedError

    def set_run(self, run: Run) -> None:
        raise NotImplementedError

    @property
    def run(self) -> Run:
        raise NotImplementedError


def serialize_and_read(message: Message) -> Message:
    """Return the message that is read from the bytes of this one."""
    objects = {id: nested.deflate() for id, nested in get_all_nested_objects(message).items()}
    copy = inflate_object_from_contents(message.object_id, objects)
    assert isinstance(copy, Message)
    return copy
