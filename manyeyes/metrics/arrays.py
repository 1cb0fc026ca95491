"""Arrays: what a caller gives, as NumPy arrays that are known to be sound."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Scores = NDArray[np.floating[Any]]


def as_array(values: Any) -> NDArray[Any]:
    """Anything array-like or a torch tensor, without a copy where there need be none."""
    if hasattr(values, "detach"):
        values = values.detach().cpu()
        if str(values.dtype) == "torch.bfloat16":  # NumPy has no such type
            values = values.float()
        return np.asarray(values.numpy())
    return np.asarray(values)


def as_scores(scores: Any) -> Scores:
    """Scores [N, C] as given, float32 or float64; never rounded, since rounding would make ties."""
    given = as_array(scores)
    if given.ndim != 2 or given.shape[1] == 0:
        raise ValueError(f"scores has shape {given.shape}: give one row for each example, one column for each class")
    if not (np.issubdtype(given.dtype, np.floating) or np.issubdtype(given.dtype, np.integer)):
        raise ValueError(f"scores has type {given.dtype}: give real numbers")
    single = given.dtype in (np.float16, np.float32)
    sound: Scores = np.asarray(given, np.float32) if single else np.asarray(given, np.float64)
    refuse_nan("scores", sound)
    return sound


def as_ints(name: str, values: Any, count: int) -> Ints:
    """One whole number for each of `count` examples."""
    given = as_array(values)
    if given.shape != (count,):
        raise ValueError(f"{name} has shape {given.shape} but there are {count} examples: give one number for each")
    if given.size and not np.issubdtype(given.dtype, np.integer):
        raise ValueError(f"{name} has type {given.dtype}: give whole numbers")
    return given.astype(np.int64)


def refuse_nan(name: str, values: NDArray[Any]) -> None:
    """A NaN has no rank and no sum, so it would make every result below it meaningless."""
    bad = np.isnan(values)
    if bad.any():
        row = int(np.argwhere(bad)[0][0])
        raise ValueError(f"{name} has a NaN in row {row}: the model has diverged, so train it with a lower rate")


def ratio(part: Any, whole: Any) -> Floats:
    """part / whole, and 0 where whole is 0, as scikit-learn's `zero_division=0`."""
    part, whole = np.asarray(part, np.float64), np.asarray(whole, np.float64)
    return np.asarray(np.divide(part, whole, out=np.zeros(np.broadcast(part, whole).shape), where=whole != 0))
