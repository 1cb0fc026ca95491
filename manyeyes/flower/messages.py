"""Messages: tensors as typed arrays of plain bytes, values whose types are checked before they are used, and replies.

A node that fails does not affect the others.
"""

import time
from collections.abc import Iterator, Mapping
from io import BytesIO
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid
from numpy.lib import format as npy
from torch import Tensor

CONFIG = "config"  # the record of a message that holds its plain values
POLL_SECONDS = 0.25
MAX_REASON_CHARACTERS = 200  # of a client's error message that are printed
NPY_FORMAT = "numpy.ndarray"  # Flower's name for .npy files, which are read without pickle
TensorSpecs = Mapping[str, tuple[torch.dtype, tuple[int, ...]]]  # type and shape of each tensor


class InvalidReply(ValueError):
    """A reply that cannot be used; its text says what is wrong with it."""


def to_record(tensors: Mapping[str, Tensor]) -> ArrayRecord:
    return ArrayRecord({name: Array(_as_numpy_type(tensor.detach().cpu()).numpy()) for name, tensor in tensors.items()})


def from_record(record: Any, specs: TensorSpecs, device: torch.device | None = None) -> dict[str, Tensor]:
    """Return the tensors of a record that must hold exactly those of `specs`."""
    if not isinstance(record, ArrayRecord) or set(record) != set(specs):
        sent = ", ".join(sorted(record)[:5]) if isinstance(record, ArrayRecord) else "none"
        raise InvalidReply(f"it sent the arrays {sent} instead of {', '.join(sorted(specs))}")
    return {name: _read_tensor(name, record[name], *specs[name]).to(device) for name in specs}


def parse_config(content: RecordDict, types: Mapping[str, type]) -> dict[str, Any]:
    """Return the plain values of a message; each must have exactly its type."""
    record = content.get(CONFIG)
    if not isinstance(record, ConfigRecord):
        raise InvalidReply("it sent no config record")
    for name, expected in types.items():
        value = record.get(name)
        if type(value) is not expected:
            raise InvalidReply(f"it sent {name} as {type(value).__name__}, not {expected.__name__}")
    return {name: record[name] for name in types}


def send_tasks(
    grid: Grid, tasks: Mapping[int, RecordDict], message_type: str, timeout: float, group: str = ""
) -> Iterator[tuple[int, Message | str]]:
    """Send each node its task and yield (node, reply) as replies arrive, or (node, reason) if there is none."""
    messages = [Message(task, node, message_type, ttl=timeout, group_id=group) for node, task in tasks.items()]
    message_ids: list[str | None] = [*grid.push_messages(messages)] or [None] * len(messages)
    waiting = {id: node for id, node in zip(message_ids, tasks, strict=True) if id is not None}
    sent = set(waiting.values())
    yield from ((node, "its task could not be sent") for node in tasks if node not in sent)
    deadline = time.monotonic() + timeout
    while waiting:
        # A reply that arrives twice counts once: its task is then no longer waited for.
        yield from ((waiting.pop(id), reply) for id, reply in _pull(grid, waiting) if id in waiting)
        if time.monotonic() >= deadline:
            break
        if waiting:
            time.sleep(POLL_SECONDS)
    yield from ((node, f"no reply within {timeout:g} seconds") for node in waiting.values())


def _pull(grid: Grid, nodes: Mapping[str, int]) -> Iterator[tuple[str, Message | str]]:
    """Yield the replies that have arrived; one that cannot be read does not block the others."""
    try:
        replies = list(grid.pull_messages(list(nodes)))
    except Exception as error:
        if len(nodes) == 1:
            yield next(iter(nodes)), f"its reply could not be read: {_first_line(str(error) or type(error).__name__)}"
            return
        for id, node in list(nodes.items()):
            yield from _pull(grid, {id: node})
        return
    for reply in replies:
        id = reply.metadata.reply_to_message_id
        if not reply.has_error() and reply.metadata.src_node_id != nodes.get(id):
            yield id, f"node {reply.metadata.src_node_id} replied in its place"
        elif reply.has_error():
            yield id, f"it failed: {_first_line(reply.error.reason or 'without a reason')}"
        elif not reply.has_content():
            yield id, "it sent an empty reply"
        else:
            yield id, reply


def _first_line(text: str) -> str:
    """Return the first line of a client's text, shortened and printable."""
    line = text.strip().splitlines()[0] if text.strip() else ""
    return "".join(c if c.isprintable() else "?" for c in line)[:MAX_REASON_CHARACTERS]


def _as_numpy_type(tensor: Tensor) -> Tensor:
    """Return the bits of a bf16 tensor as int16, because NumPy has no bf16."""
    return tensor.view(torch.int16) if tensor.dtype == torch.bfloat16 else tensor


def _read_tensor(name: str, array: Array, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    """Return the tensor of an array; its header is checked before any memory is allocated for it."""
    numpy_dtype = _as_numpy_type(torch.empty(0, dtype=dtype)).numpy().dtype
    if array.stype != NPY_FORMAT:
        raise InvalidReply(f"it sent {name} in the unsupported format {array.stype[:40]!r}")
    file = BytesIO(array.data)
    try:
        version = npy.read_magic(file)
        header = npy.read_array_header_1_0(file) if version == (1, 0) else None
    except Exception:  # NumPy tokenizes and evaluates the header, and a hostile one fails in many ways
        raise InvalidReply(f"it sent {name} with a header that cannot be read") from None
    if header is None:
        raise InvalidReply(f"it sent {name} in version {version[0]}.{version[1]} of NumPy's format, not 1.0")
    if header[2] != numpy_dtype or (array.dtype, tuple(array.shape)) != (str(numpy_dtype), shape):
        sent = f"{str(header[2])[:20]} {list(array.shape)[:4]}"
        raise InvalidReply(f"it sent {name} of type {sent}, not {numpy_dtype} {list(shape)}")
    start, count = file.tell(), int(np.prod(shape))
    if header != (shape, False, numpy_dtype) or len(array.data) - start != count * numpy_dtype.itemsize:
        raise InvalidReply(f"it sent {name} with {len(array.data)} bytes that do not match its shape {list(shape)}")
    values = np.frombuffer(array.data, numpy_dtype, count, start).reshape(shape)
    return torch.from_numpy(values.copy()).view(dtype)
