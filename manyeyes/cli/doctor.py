"""`manyeyes doctor`: what this machine has, which engine it will use, what is missing and how to get it."""

import os
import platform
import shutil
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from manyeyes import __version__
from manyeyes.engines.select import choose_device, describe_engine
from manyeyes.io.cpu_info import cpu_name
from manyeyes.training.environment import package_version

EXTRAS = {  # a package of each, and what it is for
    "tensorboard": ("track", "curves in TensorBoard (track=tensorboard)"),
    "mlflow": ("track", "curves in MLflow (track=mlflow)"),
    "wandb": ("track", "curves in Weights & Biases (track=wandb)"),
    "flwr": ("flower", "clients elsewhere (federate)"),
    "submitit": ("cluster", "sweeps over a cluster (run --multirun)"),
}


def main(words: list[str]) -> int:
    """Print it all; the exit status says whether training can start."""
    if words:
        raise ValueError(f"doctor takes no arguments, and got {' '.join(words)}")
    device = choose_device("auto")
    found = Table("", "found", "", title=f"manyeyes {__version__}", title_justify="left")
    found.add_row("Python", platform.python_version(), "")
    found.add_row("PyTorch", torch.__version__, "")
    found.add_row(
        "processors", f"{os.cpu_count()} x {cpu_name()}; {torch.get_num_threads()} threads", "engine.threads=N"
    )
    found.add_row("memory", _memory(), "")
    found.add_row("disk", f"{shutil.disk_usage(Path.cwd()).free / 2**30:.0f} GiB free here", "")
    found.add_row("GPU", _gpu(), "engine.device=cuda" if torch.cuda.is_available() else "")
    found.add_row("engine", f"{describe_engine(device)} on {device.type}", "engine.name=NAME", end_section=True)
    for package, (extra, purpose) in EXTRAS.items():
        have = package_version(package)
        found.add_row(package, have or "missing", purpose if have else f"pip install 'manyeyes[{extra}]': {purpose}")
    Console().print(found, markup=False)
    return 0


def _gpu() -> str:
    if not torch.cuda.is_available():
        return "none"
    about = torch.cuda.get_device_properties(0)
    return f"{torch.cuda.device_count()} x {about.name}, {about.total_memory / 2**30:.0f} GiB"


def _memory() -> str:
    try:
        return f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.0f} GiB"
    except (ValueError, OSError):
        return "unknown"
