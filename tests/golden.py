"""Golden records: what is kept of a run, on which machine, and how a new record differs from the kept one."""

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
RELATIVE, ABSOLUTE = 1e-3, 1e-5  # how far numbers may be apart on machines of different kinds
FIRST = 8  # weights that a record spells out
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
    """Return what is kept of a run: its weights' hash and statistics, and its metrics."""
    weights = weights.detach().cpu()
    assert weights.dtype == torch.float32, f"weights are {weights.dtype}, and golden files hold float32"
    values = weights.double()
    about = {
        "sha256": hashlib.sha256(weights.numpy().astype("<f4").tobytes()).hexdigest(),
        "count": len(weights),
        "norm": float(values.norm()),
        "mean": float(values.mean()),
        "std": float(values.std(correction=0)),
        "first": values[:FIRST].tolist(),
    }
    return {"weights": about, "rounds": rounds, "final": final}


def differences(found: Any, golden: Any, exact: bool, name: str = "") -> list[str]:
    """Return where two records differ: in any bit if `exact`, else in more than the tolerance; hashes are left out."""
    if isinstance(golden, dict) and isinstance(found, dict):
        missing = [f"{name}.{key} is in one record only" for key in sorted(found.keys() ^ golden.keys())]
        shared = [key for key in golden if key in found and (exact or key != "sha256")]
        return missing + [
            text for key in shared for text in differences(found[key], golden[key], exact, f"{name}.{key}")
        ]
    if isinstance(golden, list) and isinstance(found, list):
        if len(found) != len(golden):
            return [f"{name} has {len(found)} entries instead of {len(golden)}"]
        pairs = enumerate(zip(found, golden, strict=True))
        return [text for i, (one, other) in pairs for text in differences(one, other, exact, f"{name}[{i}]")]
    numbers = isinstance(found, int | float) and isinstance(golden, int | float)
    close = numbers and not exact and math.isclose(found, golden, rel_tol=RELATIVE, abs_tol=ABSOLUTE)
    return [] if close or found == golden else [f"{name} is {found!r} instead of {golden!r}"]


def load(name: str) -> Record:
    """Return the golden file of that name."""
    found: Record = json.loads((FOLDER / f"{name}.json").read_text())
    return found


def save(name: str, cases: Record, portable: bool) -> None:
    """Write a golden file; `portable` numbers are the same on every machine."""
    about: Record = {"machine": "any"} if portable else {"machine": machine()}
    if not portable:
        about["tolerance_on_other_machines"] = {"relative": RELATIVE, "absolute": ABSOLUTE}
    FOLDER.mkdir(parents=True, exist_ok=True)
    (FOLDER / f"{name}.json").write_text(json.dumps(about | {"cases": cases}, indent=1) + "\n")


def _processor() -> str:
    """Return the kind of core, and the vector instructions that it has."""
    try:
        lines = Path("/proc/cpuinfo").read_text().partition("\n\n")[0].splitlines()
    except OSError:  # not Linux
        return platform.processor()
    rows = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
    vectors = sorted(flag for flag in rows.get("flags", "").split() if flag.startswith(("avx", "amx", "fma")))
    return ", ".join([rows[key] for key in CPU_NAMES if key in rows] + vectors)
