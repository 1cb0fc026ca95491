"""`manyeyes data`: from raw files to a store, a look at it, and stand-ins in each dataset's own raw format."""

import inspect
import shlex
import types
from argparse import BooleanOptionalAction, Namespace
from pathlib import Path
from typing import Any, Union, get_args, get_origin

from manyeyes.cli.parser import Parser
from manyeyes.config.compose import quote_override
from manyeyes.data.registry import DATASETS, Dataset, dataset
from manyeyes.data.store.reader import open_population
from manyeyes.data.store.writer import write_store
from manyeyes.data.synthetic.dataset import SyntheticImages
from manyeyes.report.population import show
from manyeyes.training.progress import counter

MEANINGS = {  # of the options that a dataset's listing takes
    "partition": "how images get users: dirichlet, released, classes or iid",
    "users": "how many users",
    "alpha": "concentration of the Dirichlet draw; small is more skewed",
    "classes_per_client": "classes that each user holds",
    "splits": "the file or folder of the released splits",
    "task": "the labels that come first",
    "split": "which split: see the dataset's page",
    "construct": "make the split from the annotations instead of the released CSVs",
    "per_class": "training images a class, when constructing",
    "raters": "number of raters",
    "min_ratings": "minimum number of ratings of a rater",
    "max_ratings": "maximum number of ratings of a rater",
    "min_per_score": "minimum number of images that a rater gave each score",
    "seed": "decides every random choice",
}


def main(words: list[str]) -> int:
    """Prepare, show or make."""
    given = _parser().parse_args(words)
    return {"prepare": _prepare, "show": _show, "make": _make}[given.action](given)


def _parser() -> Parser:
    parser = Parser("manyeyes data", description="Datasets: from raw files to a store, and what is in it.")
    actions = parser.add_subparsers(dest="action", required=True, parser_class=Parser)
    prepare = actions.add_parser("prepare", help="from raw files (or a download) to a store to train on")
    named = prepare.add_subparsers(dest="name", required=True, parser_class=Parser)
    for name, one in DATASETS.items():
        asked = named.add_parser(name, help=one.description, description=one.description)
        asked.add_argument("--raw", type=Path, required=True, help="the folder of the raw files")
        asked.add_argument("--out", type=Path, help=f"the store to make (data/{name})")
        asked.add_argument("--size", type=int, default=one.size, help="pixels a side (%(default)s)")
        asked.add_argument("--encoding", default="raw", help="raw (fast) or jpeg (a fifth of the disk)")
        asked.add_argument("--processes", type=int, help="how many work at once (one a core)")
        if one.remote_files:
            asked.add_argument(
                "--download", action="store_true", help="fetch what is missing into the raw folder first"
            )
        for option, (kind, default) in options(one).items():
            how: dict[str, Any] = {"action": BooleanOptionalAction} if kind is bool else {"type": kind}
            flag = "--" + option.replace("_", "-")
            asked.add_argument(flag, default=default, help=f"{MEANINGS[option]} (%(default)s)", **how)
    look = actions.add_parser("show", help="print and draw what a store holds")
    look.add_argument("path", type=Path, help="a store, a dataset's name (for data/NAME), or an HDF5 file of FLAIR")
    look.add_argument("--task", help="which labels")
    look.add_argument("--out", type=Path, help="where the pictures and the page go (PATH's name + _shown)")
    imitate = actions.add_parser("make", help="write a procedural stand-in in a dataset's own raw format")
    imitate.add_argument("name", help=", ".join(DATASETS))
    imitate.add_argument("--raw", type=Path, required=True, help="the folder to write")
    imitate.add_argument("--users", type=int, default=100, help="people (%(default)s)")
    imitate.add_argument("--photos", type=int, default=0, help="photos a person; 0: heavy-tailed as FLAIR")
    imitate.add_argument("--size", type=int, default=64, help="pixels a side (%(default)s); CIFAR's is 32")
    imitate.add_argument("--coarse", type=int, default=10, help="coarse classes (%(default)s)")
    imitate.add_argument("--fine", type=int, default=100, help="fine classes (%(default)s)")
    imitate.add_argument("--seed", type=int, default=0)
    return parser


def options(one: Dataset) -> dict[str, tuple[Any, Any]]:
    """The options of a dataset's listing that fit on a command line: name to (type, default)."""
    taken = {}
    for name, parameter in inspect.signature(one.read_manifest, eval_str=True).parameters.items():
        kinds = get_args(parameter.annotation) if get_origin(parameter.annotation) in (Union, types.UnionType) else ()
        kind = next((k for k in kinds if k is not type(None)), parameter.annotation)
        if parameter.kind is parameter.KEYWORD_ONLY and kind in (int, float, str, bool, Path) and name in MEANINGS:
            taken[name] = (kind, parameter.default)
    return taken


def _prepare(given: Namespace) -> int:
    one = dataset(given.name)
    if getattr(given, "download", False):
        one.download(given.raw)
    if not given.raw.is_dir():
        raise ValueError(f"there is no folder {given.raw}: give the one that holds the raw files")
    listing = one.read_manifest(given.raw, **{name: getattr(given, name) for name in options(one)})
    out = given.out or Path("data", given.name)
    with counter(f"preparing {given.name}", "images") as progress:
        made = write_store(
            listing, out, given.size, encoding=given.encoding, processes=given.processes, progress=progress
        )
    print(f"{made.path}: {made.users:,} users, {made.examples:,} examples, {made.bytes / 1e9:.2f} GB")
    for name, value in listing.notes.items():
        print(f"  {name}: {value}")
    for problem, count in made.problems.items():
        print(f"  {problem}: {count:,} (named in prepare.log)")
    print(f"Train with: {shlex.join(['manyeyes', 'run', 'data=store', quote_override(f'data.path={out}')])}")
    return 0


def _show(given: Namespace) -> int:
    named = Path("data", given.path)
    path = named if not given.path.exists() and named.exists() else given.path
    out = given.out or Path(f"{path.name}_shown")
    population = open_population(path, given.task)
    if not population.classes:
        raise ValueError(
            f"{path} has no class in these labels, so that there is nothing to show: choose another --task"
        )
    print(show(population, path.name, out))
    return 0


def _make(given: Namespace) -> int:
    one = dataset(given.name)
    if given.raw.exists() and any(given.raw.iterdir()):
        raise ValueError(f"{given.raw} is not empty: choose a new folder")
    size = 32 if given.name.startswith("cifar") else given.size
    world = SyntheticImages(given.users, size, given.seed, given.coarse, given.fine, images_per_user=given.photos)
    one.write_synthetic(world, given.raw)
    print(f"{given.raw}: a stand-in; prepare it with: manyeyes data prepare {given.name} --raw {given.raw}")
    return 0
