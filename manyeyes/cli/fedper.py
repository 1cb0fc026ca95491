"""`manyeyes fedper`: the settings of the FedPer baseline (Flower, baselines/fedper) as settings of `manyeyes run`."""

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

from manyeyes.cli import data
from manyeyes.cli.baseline import read_baseline, split_arguments, train, translate
from manyeyes.cli.parser import Parser

BASELINE = read_baseline("fedper")
DATASETS = BASELINE["datasets"]
MODELS = {"mobile": "mobilenet_v1", "resnet": "resnet34"}
CONFIGURATIONS = {"dataset.name": DATASETS, "model_name": MODELS, "algorithm": ("fedper", "fedavg")}
ALGORITHMS_WITH_HEAD = ("fedper", "fedrep")
HEAD = {"algorithm.head_layers": "2"}
TRAIN_FRACTION = "0.83"  # of the images, of every dataset


def main(argv: list[str]) -> int:
    if "--help" in argv or "-h" in argv:
        print(BASELINE["help"])
        return 0
    flags, arguments, raw = _parse(argv)
    name = arguments.pop("dataset.name", "cifar10").strip("'\"")
    if name not in DATASETS:
        raise ValueError(f"dataset.name is {name!r}: choose cifar10 or flickr, one at a time.")
    settings = _translate(arguments, name)
    if "resume" not in settings:  # a resumed run has its settings
        defaults = dict(text.split("=", 1) for text in (BASELINE["settings"] + DATASETS[name]["settings"]).split())
        if "partitioner" in settings:  # other options than those of the baseline's
            defaults = {setting: value for setting, value in defaults.items() if not setting.startswith("partitioner")}
        settings = defaults | settings
        _prepare_data(name, Path(settings["data.path"]), raw)
    return max(train(flags, sweep) for sweep in _sweeps(settings))


def _sweeps(settings: dict[str, str]) -> Iterator[dict[str, str]]:
    """Yield the settings, in two sweeps where only some of the algorithms have a number of head layers."""
    algorithms = settings.get("algorithm", "").split(",")
    with_head = [name for name in algorithms if name in ALGORITHMS_WITH_HEAD]
    without_head = [name for name in algorithms if name not in ALGORITHMS_WITH_HEAD]
    if with_head and "resume" not in settings:
        yield HEAD | settings | {"algorithm": ",".join(with_head)}
    if without_head:
        folder = {"hydra.sweep.dir": f"runs/{datetime.now():%Y-%m-%d_%H-%M-%S}_sweep_without_head"} if with_head else {}
        rest = {name: value for name, value in settings.items() if name not in HEAD}
        yield rest | ({"algorithm": ",".join(without_head)} if "algorithm" in settings else {}) | folder


def _parse(argv: list[str]) -> tuple[list[str], dict[str, str], Path | None]:
    parser = Parser("manyeyes fedper", add_help=False, allow_abbrev=False)
    parser.add_argument("--raw", type=Path)
    parser.add_argument("--config-name", "--config_name", default="")
    parser.add_argument("--config-path", "--config_path", default="")
    args, rest = parser.parse_known_args(argv)
    flags, settings = split_arguments(rest)
    return flags, _named_configuration(args.config_path) | _named_configuration(args.config_name) | settings, args.raw


def _named_configuration(path: str) -> dict[str, str]:
    """Return the settings that a configuration file of the baseline stands for, by the parts of its path."""
    settings: dict[str, str] = {}
    for part in Path(path).with_suffix("").parts if path else ():
        names = [name for name, values in CONFIGURATIONS.items() if part in values]
        if not names and part not in ("conf", "base", "."):
            raise ValueError(f"Unknown configuration {path!r}: choose base, cifar10 or flickr.")
        settings |= dict.fromkeys(names, part)
    return settings


def _translate(arguments: dict[str, str], dataset: str) -> dict[str, str]:
    """Return our settings for the baseline's; those that do not fit the dataset are refused."""
    if (fraction := arguments.pop("dataset.fraction", TRAIN_FRACTION)) != TRAIN_FRACTION:
        raise ValueError(f"dataset.fraction is {fraction}: set {TRAIN_FRACTION}, the fraction of training images.")
    if dataset == "flickr" and arguments.get("dataset.num_classes") == "5":
        del arguments["dataset.num_classes"]
    for name in arguments if dataset == "flickr" else ():
        if BASELINE["translations"].get(name, name).startswith("partitioner"):
            reason = "FLICKR-AES has five scores, and its clients are chosen when it is prepared"
            raise ValueError(f"{name} is for CIFAR-10: {reason} (manyeyes data prepare flickr_aes --raters N).")
    if "model_name" in arguments:
        models = arguments["model_name"].split(",")
        if unknown := set(models) - MODELS.keys():
            raise ValueError(f"model_name is {unknown.pop()!r}: choose mobile or resnet, or give model=...")
        arguments["model_name"] = ",".join(MODELS[model] for model in models)
    sampler = {"sampler": "uniform"} if "clients_per_round" in arguments else {}
    return sampler | translate(BASELINE, arguments)


def _prepare_data(name: str, path: Path, raw: Path | None) -> None:
    """Prepare the data from its raw files, or say how."""
    if (path / "meta.json").exists():
        return
    command = ["prepare", *DATASETS[name]["prepare"].split(), "--raw", str(raw or "DIR"), "--out", str(path)]
    if raw is None:
        download = " (add --download to fetch it into DIR first)" if name == "cifar10" else ""
        fix = f"or prepare it with manyeyes data {' '.join(command)}{download}"
        raise ValueError(f"No prepared dataset at {path}: give --raw DIR with the folder of the raw files, {fix}")
    data.main(command)
