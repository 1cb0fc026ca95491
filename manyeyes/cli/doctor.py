"""`manyeyes doctor`: what this machine has, and which engine it will use; or whether the files of runs are damaged."""

import os
import platform
import shutil
from contextlib import suppress
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from manyeyes import __version__
from manyeyes.cli.parser import Parser
from manyeyes.engines.select import choose_device, describe_engine
from manyeyes.io.cpu_info import cpu_name
from manyeyes.io.packages import install_command, optional_requirements
from manyeyes.training.description import package_version
from manyeyes.training.verify import UNCHECKED, verify_run

PURPOSES = {  # of the extras
    "data": "datasets: manyeyes data, data=NAME",
    "privacy": "privacy accounting: privacy=central, manyeyes privacy",
    "dashboard": "the live page: manyeyes dashboard",
    "track": "trackers=[NAME]",
    "flower": "training on separate clients: manyeyes flower",
    "cluster": "sweeps on a cluster: hydra/launcher=submitit_slurm",
    "png": "charts as PNG",
    "frames": "result.to_pandas(), result.per_user()",
    "heif": "photos in HEIC and HEIF",
    "onnx": "manyeyes export --onnx",
    "hub": "manyeyes export --push",
    "timm": "model=timm:NAME, model=torchvision:NAME",
    "hf": "model=transformers:NAME",
    "weights": "model.pretrained=true of mobilenet_v2 and efficientnet_lite0",
}


def main(argv: list[str]) -> int:
    description = "What this machine has, or whether the files of runs are damaged."
    parser = Parser("manyeyes doctor", description=description, example="manyeyes doctor runs/mine")
    parser.add_argument("runs", type=Path, nargs="*", metavar="RUN", help="a run folder whose files are checked")
    args = parser.parse_args(argv)
    return _check_runs(args.runs) if args.runs else _describe_machine()


def _check_runs(folders: list[Path]) -> int:
    """Print the state of each file of runs; return 1 if one is damaged."""
    results = {folder / file: problem for folder in folders for file, problem in verify_run(folder).items()}
    for path, problem in results.items():
        print(problem if problem not in ("", UNCHECKED) else f"{path}: {problem or 'ok'}")
    return int(any(problem not in ("", UNCHECKED) for problem in results.values()))


def _describe_machine() -> int:
    device = choose_device("auto")
    table = Table(title=f"manyeyes {__version__}", title_justify="left")
    for header in ("", "installed", "set with, or needed for"):
        table.add_column(header, overflow="fold")  # nothing is cut on a narrow terminal
    table.add_row("Python", platform.python_version(), "")
    table.add_row("PyTorch", torch.__version__, "")
    table.add_row("CPU", f"{os.cpu_count()} x {cpu_name()}; {torch.get_num_threads()} threads", "engine.threads=N")
    table.add_row("memory", _memory(), "")
    table.add_row("disk", f"{shutil.disk_usage(Path.cwd()).free / 2**30:.0f} GiB free in this folder", "")
    table.add_row("GPU", _gpu(), "engine.device=cuda" if torch.cuda.is_available() else "")
    table.add_row("engine", f"{describe_engine(device)} on {device.type}", "engine=NAME", end_section=True)
    packages = optional_requirements()
    for extra, purpose in PURPOSES.items():
        versions = {package: package_version(package) for package, (_, of) in packages.items() if of == extra}
        installed = [f"{package} {version or 'missing'}" for package, version in versions.items()]
        fixes = [install_command(package) for package, version in versions.items() if not version]
        table.add_row(extra, "\n".join(installed), "\n".join([purpose, *fixes]))
    Console().print(table, markup=False)
    return 0


def _gpu() -> str:
    if not torch.cuda.is_available():
        return "none"
    properties = torch.cuda.get_device_properties(0)
    return f"{torch.cuda.device_count()} x {properties.name}, {properties.total_memory / 2**30:.0f} GiB"


def _memory() -> str:
    with suppress(ValueError, OSError):
        return f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.0f} GiB"
    return "unknown"
