"""Sending tasks to nodes and receiving their replies; a failing node does not affect the others."""

import time
from collections.abc import Callable, Iterator, Mapping

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

POLL_SECONDS = 0.25
MAX_REASON_CHARACTERS = 200  # of a client's error message that are printed


def send_and_receive(
    grid: Grid,
    tasks: Mapping[int, RecordDict],
    message_type: str,
    timeout: float,
    group: str = "",
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[tuple[int, Message | str]]:
    """Send each node its task and yield (node, reply) as replies arrive, or (node, reason) if there is none."""
    messages = [Message(task, node, message_type, ttl=timeout, group_id=group) for node, task in tasks.items()]
    message_ids: list[str | None] = [*grid.push_messages(messages)] or [None] * len(messages)
    waiting = {id: node for id, node in zip(message_ids, tasks, strict=True) if id is not None}
    sent = set(waiting.values())
    yield from ((node, "its task could not be sent") for node in tasks if node not in sent)
    deadline = time.monotonic() + timeout
    while waiting:
        yield from ((waiting.pop(id), reply) for id, reply in _pull(grid, list(waiting)) if id in waiting)
        if time.monotonic() >= deadline:
            break
        if waiting:
            sleep(POLL_SECONDS)
    yield from ((node, f"no reply within {timeout:g} seconds") for node in waiting.values())


def _pull(grid: Grid, message_ids: list[str]) -> Iterator[tuple[str, Message | str]]:
    """Yield the replies that have arrived; one that cannot be read does not block the others."""
    try:
        replies = list(grid.pull_messages(message_ids))
    except Exception as error:
        if len(message_ids) == 1:
            yield message_ids[0], f"its reply could not be read: {_first_line(str(error) or type(error).__name__)}"
            return
        for id in message_ids:
            yield from _pull(grid, [id])
        return
    for reply in replies:
        id = reply.metadata.reply_to_message_id
        if reply.has_error():
            yield id, f"it failed: {_first_line(reply.error.reason or 'without a reason')}"
        elif not reply.has_content():
            yield id, "it sent an empty reply"
        else:
            yield id, reply


def _first_line(text: str) -> str:
    """Return the first line of a client's text, shortened and printable."""
    line = text.strip().splitlines()[0] if text.strip() else ""
    return "".join(c if c.isprintable() else "?" for c in line)[:MAX_REASON_CHARACTERS]
