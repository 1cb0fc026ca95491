"""What travels: tensors as typed arrays of plain bytes, and answers that are checked before anything is done."""

from __future__ import annotations

from collections.abc import Mapping
from io import BytesIO
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from numpy.lib import format as npy
from torch import Tensor

STYPE = "numpy.ndarray"  # Flower's name for the .npy format, which we read without pickle
TensorSpecs = Mapping[str, tuple[torch.dtype, tuple[int, ...]]]  # type and shape of each tensor


class InvalidReply(ValueError):
    """An answer that cannot be used; the words say what was wrong with it."""


def tensor_specs(tensors: Mapping[str, Tensor]) -> dict[str, tuple[torch.dtype, tuple[int, ...]]]:
    return {name: (tensor.dtype, tuple(tensor.shape)) for name, tensor in tensors.items()}


def to_record(tensors: Mapping[str, Tensor]) -> ArrayRecord:
    return ArrayRecord({name: Array(_bits(tensor.detach().cpu()).numpy()) for name, tensor in tensors.items()})


def from_record(record: Any, wanted: TensorSpecs, device: torch.device | None = None) -> dict[str, Tensor]:
    """The tensors of a record that holds exactly those that are wanted; any other record is refused."""
    if not isinstance(record, ArrayRecord) or set(record) != set(wanted):
        found = ", ".join(sorted(record)[:5]) if isinstance(record, ArrayRecord) else "none"
        raise InvalidReply(f"it sent the arrays {found} and not {', '.join(sorted(wanted))}")
    return {name: _tensor(name, record[name], *wanted[name]).to(device) for name in wanted}


def parse_config(content: RecordDict, kinds: Mapping[str, type]) -> dict[str, Any]:
    """The plain values of an answer, each of its type."""
    found = content.get("about")
    if not isinstance(found, ConfigRecord):
        raise InvalidReply("it sent no proper answer")
    for name, kind in kinds.items():
        value = found.get(name)
        if type(value) is not kind:
            raise InvalidReply(f"it sent no proper answer: {name} is {type(value).__name__}, not {kind.__name__}")
    return {name: found[name] for name in kinds}


def _bits(tensor: Tensor) -> Tensor:
    """NumPy has no bf16: its bits travel as int16."""
    return tensor.view(torch.int16) if tensor.dtype == torch.bfloat16 else tensor


def _tensor(name: str, array: Array, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    """The header is compared with what is wanted before a byte of memory is taken for it."""
    plain = _bits(torch.empty(0, dtype=dtype)).numpy().dtype
    if array.stype != STYPE:
        raise InvalidReply(f"it sent {name} as {array.stype[:40]!r}, which is not read")
    file = BytesIO(array.data)
    try:
        version = npy.read_magic(file)
        found_shape, fortran, found = npy.read_array_header_1_0(file) if version == (1, 0) else ((), False, None)
    except ValueError:
        raise InvalidReply(f"it sent {name} with a header that cannot be read") from None
    if found != plain or (array.dtype, tuple(array.shape)) != (str(plain), shape):
        raise InvalidReply(
            f"it sent {name} of type {array.dtype[:20]} {list(array.shape)[:4]}, not {plain} {list(shape)}"
        )
    start, count = file.tell(), int(np.prod(shape))
    if found_shape != shape or fortran or len(array.data) - start != count * plain.itemsize:
        raise InvalidReply(f"it sent {name} with {len(array.data)} bytes that are not its {list(shape)} numbers")
    return torch.from_numpy(np.frombuffer(array.data, plain, count, start).reshape(shape).copy()).view(dtype)
