"""Messages: tensors as typed arrays of plain bytes, and values whose types are checked before they are used."""

from collections.abc import Mapping
from io import BytesIO
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from numpy.lib import format as npy
from torch import Tensor

CONFIG = "config"  # the record of a message that holds its plain values
NPY_FORMAT = "numpy.ndarray"  # Flower's name for .npy files, which are read without pickle
TensorSpecs = Mapping[str, tuple[torch.dtype, tuple[int, ...]]]  # type and shape of each tensor


class InvalidReply(ValueError):
    """A reply that cannot be used; its text says what is wrong with it."""


def tensor_specs(tensors: Mapping[str, Tensor]) -> dict[str, tuple[torch.dtype, tuple[int, ...]]]:
    """Return the type and shape of each tensor."""
    return {name: (tensor.dtype, tuple(tensor.shape)) for name, tensor in tensors.items()}


def to_record(tensors: Mapping[str, Tensor]) -> ArrayRecord:
    """Return a Flower record of the tensors."""
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
    except ValueError:
        raise InvalidReply(f"it sent {name} with a header that cannot be read") from None
    sent_dtype = None if header is None else header[2]
    if sent_dtype != numpy_dtype or (array.dtype, tuple(array.shape)) != (str(numpy_dtype), shape):
        raise InvalidReply(
            f"it sent {name} of type {array.dtype[:20]} {list(array.shape)[:4]}, not {numpy_dtype} {list(shape)}"
        )
    start, count = file.tell(), int(np.prod(shape))
    if header != (shape, False, numpy_dtype) or len(array.data) - start != count * numpy_dtype.itemsize:
        raise InvalidReply(f"it sent {name} with {len(array.data)} bytes that do not match its shape {list(shape)}")
    values = np.frombuffer(array.data, numpy_dtype, count, start).reshape(shape)
    return torch.from_numpy(values.copy()).view(dtype)
