"""`manyeyes data`: prepare, verify, inspect or embed a dataset, or write a synthetic one in a dataset's raw format."""

import inspect
import shlex
import sys
import tomllib
from argparse import Action, BooleanOptionalAction, Namespace
from collections.abc import Callable, Iterator
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Any, get_args

import numpy as np
from rich.filesize import decimal as format_bytes

from manyeyes.cli.parser import Parser
from manyeyes.config.compose import quote_override
from manyeyes.core.population import Population
from manyeyes.data.manifest import Manifest, is_marked_synthetic
from manyeyes.data.partition import give_new_users
from manyeyes.data.registry import DATASETS, Dataset, dataset
from manyeyes.data.store.reader import open_population
from manyeyes.data.store.verify import add_checksums, find_damage
from manyeyes.data.store.writer import write_store
from manyeyes.data.synthetic.dataset import SyntheticImages
from manyeyes.io.steps import shows_progress
from manyeyes.metrics.heterogeneity import rare_classes_note
from manyeyes.report.population import show
from manyeyes.training.progress import counter, show_progress

# Keyword arguments of `read_manifest` that can be set, with their help.
DATASET_OPTIONS = tomllib.loads(files("manyeyes.cli").joinpath("dataset_options.toml").read_text("utf-8"))


def main(argv: list[str]) -> int:
    args = _parser().parse_args(argv)
    actions = {"prepare": _prepare, "verify": _verify, "inspect": _inspect, "embed": _embed, "synthesize": _synthesize}
    return actions[args.action](args)


def _parser() -> Parser:
    example = "manyeyes data prepare cifar10 --raw raw/cifar10 --download"
    parser = Parser("manyeyes data", description="Prepare, inspect and synthesize datasets.", example=example)
    actions = parser.add_subparsers(dest="action", required=True, parser_class=Parser)
    prepare = actions.add_parser("prepare", help="make a dataset to train on from raw files or a download")
    prepare.epilog = f"example:\n  {example}"
    names = prepare.add_subparsers(dest="name", required=True, parser_class=Parser)
    for name, source in DATASETS.items():
        _add_dataset_arguments(
            names.add_parser(
                name,
                help=source.description,
                description=source.description,
                example=f"manyeyes data prepare {name} " + ("ylecun/mnist" if source.on_hub else f"--raw raw/{name}"),
            ),
            name,
        )
    help = "print and draw what a prepared dataset contains, as one page"
    inspected = actions.add_parser("inspect", help=help, example="manyeyes data inspect cifar10")
    inspected.add_argument("path", type=Path, help="a prepared dataset, NAME for data/NAME, or an HDF5 file of FLAIR")
    inspected.add_argument("--task", help="which labels")
    inspected.add_argument(
        "--out", type=Path, help="the folder of the page and its charts (NAME_inspected, next to the dataset)"
    )
    help, example = "check all files of a prepared dataset against their checksums", "manyeyes data verify cifar10"
    verified = actions.add_parser("verify", help=help, example=example)
    verified.add_argument("path", type=Path, help="a prepared dataset, or NAME for data/NAME")
    verified.add_argument("--add-checksums", action="store_true", help="add those of the images to an older dataset")
    help = "compute the features on which a run trains the last layers, ahead of time"
    example = "manyeyes data embed data=store data.path=data/cifar10 model=mobilenet_v2 model.trainable=last:1"
    embed = actions.add_parser("embed", help=help, example=example)
    embed.add_argument("settings", nargs="*", metavar="setting=value", help="those of the run, as of `manyeyes run`")
    help, example = "write synthetic images in a dataset's own raw format", "manyeyes data synthesize flair --raw raw"
    synthesize = actions.add_parser("synthesize", help=help, example=example)
    synthesize.add_argument("name", help=", ".join(DATASETS))
    synthesize.add_argument("--raw", type=Path, required=True, help="the folder to write")
    synthesize.add_argument("--users", type=int, default=100, help="number of users (%(default)s)")
    synthesize.add_argument("--images-per-user", type=int, default=0, help="0: heavy-tailed as in FLAIR (%(default)s)")
    synthesize.add_argument("--size", type=int, default=64, help="pixels per side (%(default)s); 32 for CIFAR")
    synthesize.add_argument("--coarse", type=int, default=10, help="coarse classes (%(default)s)")
    synthesize.add_argument("--fine", type=int, default=100, help="fine classes (%(default)s)")
    synthesize.add_argument("--seed", type=int, default=0, help="seed of the images (%(default)s)")
    return parser


def _add_dataset_arguments(parser: Parser, name: str) -> None:
    source = DATASETS[name]
    if source.on_hub:
        parser.add_argument("raw", type=Path, metavar="NAME_OR_FOLDER", help="name on the hub, or a folder or file")
    else:
        parser.add_argument("--raw", type=Path, required=True, help="the folder of the raw files, or their one file")
    parser.add_argument("--out", type=Path, help=f"the prepared dataset (data/{name})")
    default_size = source.size or "that of the images"
    parser.add_argument("--size", type=int, default=source.size, help=f"pixels per side ({default_size})")
    parser.add_argument("--encoding", default="raw", help="raw: fast, or jpeg: a fifth of the disk space (%(default)s)")
    parser.add_argument("--processes", type=int, help="number of processes (one per core)")
    if source.remote_files:
        parser.add_argument("--download", action="store_true", help="download missing files into the raw folder first")
    for option, (kind, default) in options(source).items():
        action: dict[str, Any] = {"action": BooleanOptionalAction} if kind is bool else {"type": kind}
        if option == "partition":  # a partitioner of a library may have options of its own
            action |= {"nargs": "+", "action": JoinWords, "metavar": "PARTITION"}
        flag, text = "--" + option.replace("_", "-"), f"{DATASET_OPTIONS[option]} (%(default)s)"
        parser.add_argument(flag, default=default, help=text, **action)


class JoinWords(Action):
    """Keep the words of an option as one text: `--partition flwr:DirichletPartitioner alpha=0.3`."""

    def __call__(self, parser: Any, namespace: Namespace, values: Any, option_string: str | None = None) -> None:
        setattr(namespace, self.dest, " ".join(values))


def options(source: Dataset) -> dict[str, tuple[Any, Any]]:
    """Return the options of a dataset that can be set on the command line: name to (type, default)."""
    own = _options_of(source.read_manifest)
    return own if "partition" in own else own | _options_of(give_new_users)


def _options_of(function: Callable[..., Any]) -> dict[str, tuple[Any, Any]]:
    parameters = inspect.signature(function, eval_str=True).parameters
    return {
        name: ((get_args(parameter.annotation) or (parameter.annotation,))[0], parameter.default)  # X of X | None
        for name, parameter in parameters.items()
        if parameter.kind is parameter.KEYWORD_ONLY and name in DATASET_OPTIONS
    }


def _prepare(args: Namespace) -> int:
    source = dataset(args.name)
    if getattr(args, "download", False):
        if is_marked_synthetic(args.raw):
            raise ValueError(f"--raw={args.raw} has synthetic images: choose another folder for the download")
        with show_progress(
            f"preparing {args.name}", shows_progress() and not sys.stderr.isatty()
        ):  # it has its own bar
            source.download(args.raw)
    if not args.raw.exists() and not source.on_hub:
        raise ValueError(f"{args.raw} does not exist: give the folder of the raw files, or their one file")
    manifest = read_manifest(source, args)
    out = args.out or Path("data", args.name)
    with counter(f"preparing {args.name}", "images") as bar:
        options_of_store = {
            "encoding": args.encoding,
            "processes": args.processes,
            "announce": partial(print, flush=True),
        }
        summary = write_store(manifest, out, args.size, progress=bar, **options_of_store)
    print(f"{summary.path}: {summary.users:,} users, {summary.examples:,} examples, {format_bytes(summary.bytes)}")
    for note in filter(None, (*summary.caveats, *_store_notes(open_population(out)))):
        print(f"  note: {note}")
    for name, value in manifest.notes.items():
        print(f"  {name}: {value}")
    for problem, count in summary.problems.items():
        print(f"  {problem}: {count:,} (see prepare.log)")
    print(f"Train with: {shlex.join(['manyeyes', 'run', 'data=store', quote_override(f'data.path={out}')])}")
    return 0


def read_manifest(source: Dataset, args: Namespace) -> Manifest:
    """Return what a dataset contains, with new users where a partition is given."""
    own, new_users = (
        {name: getattr(args, name) for name in _options_of(function)}
        for function in (source.read_manifest, give_new_users)
    )
    manifest = source.read_manifest(args.raw, **own)
    return manifest if "partition" in own else give_new_users(manifest, **new_users)


def _store_notes(population: Population) -> Iterator[str]:
    """Yield what should be known before training on a prepared dataset."""
    is_train_N = np.asarray(population.columns["split"]) == "train"
    yield rare_classes_note(population.classes, population.labels.take(np.flatnonzero(is_train_N)).counts())
    height, width, _ = population.image_shape
    if height != width:
        yield (
            f"images of {height} x {width} pixels are not square, and lenet and linear need squares: "
            f"prepare them with --size {min(height, width)}, or train another model"
        )


def _store_path(path: Path) -> Path:
    """Return the path of a prepared dataset; NAME is data/NAME."""
    default_path = Path("data", path)
    return default_path if not path.exists() and default_path.exists() else path


def _verify(args: Namespace) -> int:
    path = _store_path(args.path)
    if path.is_file():
        raise ValueError(f"{path} has no checksums: only a dataset that `manyeyes data prepare` made can be verified")
    if args.add_checksums and add_checksums(path):
        print(f"{path}: the checksums of its images were added")
    problems = find_damage(path)
    print("\n".join(problems) or f"{path}: all files have their checksums")
    return 1 if problems else 0


def _inspect(args: Namespace) -> int:
    path = _store_path(args.path)
    population = open_population(path, args.task)
    if not population.classes:
        raise ValueError(f"{path} has no classes in the labels of --task={args.task}: choose another --task")
    print(show(population, path.name, args.out or path.with_name(f"{path.name}_inspected")))
    return 0


def _embed(args: Namespace) -> int:
    from manyeyes.cli.embed import embed  # which needs PyTorch, as the other actions do not

    return embed(args.settings)


def _synthesize(args: Namespace) -> int:
    source = dataset(args.name)
    if args.raw.exists() and any(args.raw.iterdir()):
        raise ValueError(f"{args.raw} is not empty: choose a new folder")
    size = 32 if args.name.startswith("cifar") else args.size
    counts = (args.users, size, args.seed, args.coarse, args.fine)
    source.write_synthetic(SyntheticImages(*counts, images_per_user=args.images_per_user), args.raw)
    raw = args.raw if source.on_hub else f"--raw {args.raw}"
    print(f"{args.raw}: synthetic images. Prepare them with: manyeyes data prepare {args.name} {raw}")
    return 0
