"""The fingerprint of a run, by which a resumed run recognizes its checkpoint."""

from __future__ import annotations

import hashlib
import json
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
from torch import Tensor

from manyeyes.core.algorithm import SLOTS, Algorithm
from manyeyes.core.population import Population
from manyeyes.core.registry import describe, import_path
from manyeyes.data.preprocess import Preprocess
from manyeyes.models.flat import FlatModel

DIGEST_BYTES = 16


def fingerprint(
    algorithm: Algorithm, preprocess: Preprocess, seed: int, model: FlatModel, population: Population
) -> str:
    """Return a hash of everything that the weights depend on, apart from their initial values."""
    slots = {slot: _content(slot, getattr(algorithm, slot)) for slot in SLOTS}
    parts = (slots, _content("preprocess", preprocess), seed, repr(model.shapes))
    digest = hashlib.blake2b(digest_size=DIGEST_BYTES)
    digest.update(json.dumps(parts, sort_keys=True, default=_plain).encode())
    for array in (population.offsets, population.user_ids, population.image_indices, *population.labels.nonzero()):
        digest.update(array.tobytes())
    return digest.hexdigest()


def _content(slot: str, component: Any) -> Any:
    """Return what a component is: its description and, of a plain class, its attributes."""
    if component is None:
        return None
    attributes = {} if is_dataclass(component) else getattr(component, "__dict__", {})
    return [describe(slot, component), {str(name): value for name, value in attributes.items()}]


def _plain(value: Any) -> Any:
    """Return what stands for a value that JSON cannot hold."""
    if isinstance(value, Tensor):
        value = value.detach().cpu().numpy()
    if isinstance(value, np.ndarray | np.generic):
        return [str(value.dtype), value.shape, hashlib.sha256(value.tobytes()).hexdigest()]
    if isinstance(value, set | frozenset):
        return sorted(value, key=repr)
    if is_dataclass(value) and not isinstance(value, type):
        return [import_path(value), {one.name: getattr(value, one.name) for one in fields(value) if one.repr}]
    return import_path(value)
