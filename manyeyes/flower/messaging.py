"""Asking nodes and waiting for their answers; whatever a node does, the others are heard."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

POLL_SECONDS = 0.25  # seconds
LONGEST = 200  # characters that are told of what a client says went wrong


def send_and_receive(
    grid: Grid,
    tasks: Mapping[int, RecordDict],
    kind: str,
    timeout: float,
    group: str = "",
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[tuple[int, Message | str]]:
    """One task for each node; each node's answer as it comes, or in words why there is none."""
    messages = [Message(task, node, kind, ttl=timeout, group_id=group) for node, task in tasks.items()]
    sent: list[str | None] = [*grid.push_messages(messages)] or [None] * len(messages)
    waiting = {number: node for number, node in zip(sent, tasks, strict=True) if number is not None}
    for number, node in zip(sent, tasks, strict=True):
        if number is None:
            yield node, "its task could not be sent"
    deadline = time.monotonic() + timeout
    while waiting:
        for number, answer in _pull(grid, list(waiting)):
            if number in waiting:
                yield waiting.pop(number), answer
        if time.monotonic() >= deadline:
            break
        if waiting:
            sleep(POLL_SECONDS)
    for node in waiting.values():
        yield node, f"no answer within {timeout:g} seconds"


def _pull(grid: Grid, numbers: list[str]) -> Iterator[tuple[str, Message | str]]:
    """The answers that are there; one that cannot be read does not hide the others."""
    try:
        found = list(grid.pull_messages(numbers))
    except Exception as error:
        if len(numbers) == 1:
            yield numbers[0], f"its answer could not be read: {_short(str(error) or type(error).__name__)}"
            return
        for number in numbers:
            yield from _pull(grid, [number])
        return
    for message in found:
        number = message.metadata.reply_to_message_id
        if message.has_error():
            yield number, f"it failed: {_short(message.error.reason or 'it did not say why')}"
        elif not message.has_content():
            yield number, "it sent nothing"
        else:
            yield number, message


def _short(text: str) -> str:
    """One printable line of what others say."""
    line = text.strip().splitlines()[0] if text.strip() else ""
    return "".join(c if c.isprintable() else "?" for c in line)[:LONGEST]
