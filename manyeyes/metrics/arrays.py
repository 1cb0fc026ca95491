"""Checked NumPy arrays from whatever array or tensor a caller has."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Scores = NDArray[np.floating[Any]]


def as_array(values: Any) -> NDArray[Any]:
    """Convert anything array-like or a torch tensor, without a copy where none is needed."""
    if hasattr(values, "detach"):
        values = values.detach().cpu()
        values = (values.float() if str(values.dtype) == "torch.bfloat16" else values).numpy()  # NumPy has no bfloat16
    return np.asarray(values)


def as_scores(scores: Any) -> Scores:
    """Convert scores [N, C] to float32 or float64; float64 is never rounded, since rounding would make ties."""
    array = as_array(scores)
    if array.ndim != 2 or array.shape[1] == 0:
        raise ValueError(f"scores has shape {array.shape}: give one row for each example, one column for each class")
    if array.dtype.kind not in "fiu":
        raise ValueError(f"scores has type {array.dtype}: give real numbers")
    dtype = np.float32 if array.dtype in (np.float16, np.float32) else np.float64
    return refuse_nan("scores", np.asarray(array, dtype))


def as_ints(name: str, values: Any, num_examples: int) -> Ints:
    """Convert one integer for each example."""
    array = as_array(values)
    if array.shape != (num_examples,):
        raise ValueError(f"{name} has shape {array.shape} but there are {num_examples} examples: give one for each")
    if array.size and not np.issubdtype(array.dtype, np.integer):
        raise ValueError(f"{name} has type {array.dtype}: give whole numbers")
    return array.astype(np.int64)


def as_class_ids(name: str, values: Any, num_examples: int, num_classes: int) -> Ints:
    """Convert one class id for each example."""
    ids_N = as_ints(name, values, num_examples)
    if len(invalid := ids_N[(ids_N < 0) | (ids_N >= num_classes)]):
        raise ValueError(f"{name} has class {invalid[0]} but there are {num_classes} classes: count them from 0")
    return ids_N


def refuse_nan(name: str, values: Scores) -> Scores:
    """Return the values, or raise ValueError for a NaN: it has no rank and no sum, so results would be meaningless."""
    if len(rows := np.argwhere(np.isnan(values))):
        raise ValueError(f"{name} has a NaN in row {rows[0][0]}: the model has diverged, so train it with a lower rate")
    return values


def ratio(numerator: Any, denominator: Any) -> Floats:
    """Divide; 0 where the denominator is 0, as scikit-learn's `zero_division=0`."""
    numerator, denominator = np.asarray(numerator, np.float64), np.asarray(denominator, np.float64)
    zeros = np.zeros(np.broadcast(numerator, denominator).shape)
    return np.asarray(np.divide(numerator, denominator, out=zeros, where=denominator != 0))
