"""Golden records: the pinned numbers of a run, their machine, and how a new record differs from a pinned one."""

from __future__ import annotations

import hashlib
import json
import math
import platform
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

Record = dict[str, Any]

FOLDER = Path(__file__).parent / "assets" / "golden"
RTOL, ATOL = 1e-3, 1e-5  # between machines of different kinds
NUM_FIRST_WEIGHTS = 8  # that a record contains
CPU_NAMES = ("vendor_id", "cpu family", "model", "model name")


def machine() -> Record:
    """Return everything that the bits of a result depend on, apart from the code."""
    return {
        "torch": torch.__version__,
        "numpy": np.__version__,
        "capability": torch.backends.cpu.get_cpu_capability(),
        "mkldnn": torch.backends.mkldnn.is_available(),
        "mkl": torch.backends.mkl.is_available(),
        "machine": platform.machine(),
        "processor": _processor(),
        "threads": 1,
    }


def record(weights: Tensor, rounds: list[dict[str, float]], final: dict[str, float]) -> Record:
    """Return the record of a run: the hash and statistics of its weights, and its metrics."""
    weights = weights.detach().cpu()
    assert weights.dtype == torch.float32, f"weights are {weights.dtype}, and golden files hold float32"
    values = weights.double()
    summary = {
        "sha256": hashlib.sha256(weights.numpy().astype("<f4").tobytes()).hexdigest(),
        "count": len(weights),
        "norm": float(values.norm()),
        "mean": float(values.mean()),
        "std": float(values.std(correction=0)),
        "first": values[:NUM_FIRST_WEIGHTS].tolist(),
    }
    return {"weights": summary, "rounds": rounds, "final": final}


def differences(record: Any, golden: Any, exact: bool, name: str = "") -> list[str]:
    """Return where two records differ: in any bit if `exact`, else in more than the tolerance; hashes are left out."""
    if isinstance(golden, dict) and isinstance(record, dict):
        missing = [f"{name}.{key} is in one record only" for key in sorted(record.keys() ^ golden.keys())]
        shared = [key for key in golden if key in record and (exact or key != "sha256")]
        return missing + [
            text for key in shared for text in differences(record[key], golden[key], exact, f"{name}.{key}")
        ]
    if isinstance(golden, list) and isinstance(record, list):
        if len(record) != len(golden):
            return [f"{name} has {len(record)} entries instead of {len(golden)}"]
        pairs = enumerate(zip(record, golden, strict=True))
        return [text for i, (new, pinned) in pairs for text in differences(new, pinned, exact, f"{name}[{i}]")]
    are_numbers = isinstance(record, int | float) and isinstance(golden, int | float)
    is_close = are_numbers and not exact and math.isclose(record, golden, rel_tol=RTOL, abs_tol=ATOL)
    return [] if is_close or record == golden else [f"{name} is {record!r} instead of {golden!r}"]


def load(name: str) -> Record:
    """Return the golden file of that name."""
    content: Record = json.loads((FOLDER / f"{name}.json").read_text())
    return content


def save(name: str, cases: Record, portable: bool) -> None:
    """Write a golden file; `portable` numbers are the same on every machine."""
    header: Record = {"machine": "any"} if portable else {"machine": machine()}
    if not portable:
        header["tolerance_on_other_machines"] = {"relative": RTOL, "absolute": ATOL}
    FOLDER.mkdir(parents=True, exist_ok=True)
    (FOLDER / f"{name}.json").write_text(json.dumps(header | {"cases": cases}, indent=1) + "\n")


def _processor() -> str:
    """Return the kind of core, and the vector instructions that it has."""
    try:
        lines = Path("/proc/cpuinfo").read_text().partition("\n\n")[0].splitlines()
    except OSError:  # not Linux
        return platform.processor()
    rows = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
    vectors = sorted(flag for flag in rows.get("flags", "").split() if flag.startswith(("avx", "amx", "fma")))
    return ", ".join([rows[key] for key in CPU_NAMES if key in rows] + vectors)
