"""`manyeyes fedper`: the settings of the FedPer baseline (Flower, baselines/fedper) as settings of `manyeyes run`."""

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

from manyeyes.cli import data, run
from manyeyes.cli.parser import Parser

HELP = """usage: manyeyes fedper [--multirun] [--raw DIR] [setting=value ...]

FedPer (Arivazhagan et al. 2019) against FedAvg, with the settings of the Flower baseline:

  algorithm=fedper|fedavg      also fedrep, fedbn, ditto, finetuned, local_only   (fedavg)
  model_name=mobile|resnet     MobileNet-v1 or ResNet34                           (mobile)
  model.num_head_layers=N      layers that stay with the client, for fedper       (2)
  dataset.name=cifar10|flickr  or --config-name                                   (cifar10)
  dataset.num_classes=N        CIFAR-10: classes per client                       (10)
  num_clients=N clients_per_round=N num_rounds=N num_epochs=N batch_size=N learning_rate=X
  repeat_num=N                 another seed: of the partition, the weights and the training
  server_device=cpu|cuda:0

  --raw DIR                    prepare the data from its raw files in DIR first, if it is not prepared yet

All settings of manyeyes run work too (manyeyes run --help), and take precedence.

  python -m manyeyes.fedper --multirun dataset.num_classes=4,8,10 model_name=resnet,mobile algorithm=fedper,fedavg \\
      model.num_head_layers=2,3 '+repeat_num=range(5)'
"""
COMMON = """
    algorithm=fedavg sampler=all algorithm.epochs=4 algorithm.lr=0.01 algorithm.momentum=0.9
    model=mobilenet_v1 model.norm=batch evaluate_every=1
"""
DATASETS = {  # each CIFAR-10 image is enlarged, and not cropped
    "cifar10": """
        data=cifar10 data.path=data/cifar10
        partitioner=classes partitioner.num_clients=10 partitioner.classes_per_client=10
        algorithm.batch_size=128 rounds=50 preprocess.crop=224 preprocess.scale=[1,1] preprocess.ratio=[1,1]
        preprocess.mean=[0.491,0.482,0.447] preprocess.std=[0.247,0.243,0.262]
    """,
    "flickr": """
        data=flickr_aes data.path=data/flickr_aes algorithm.batch_size=4 rounds=35
        preprocess.mean=[0.485,0.456,0.406] preprocess.std=[0.229,0.224,0.225]
    """,
}
ALGORITHMS_WITH_HEAD = ("fedper", "fedrep")
HEAD = {"algorithm.head_layers": "2"}
PREPARE = {  # the arguments of `manyeyes data prepare`; the partitioner replaces the users of CIFAR-10
    "cifar10": ("cifar10", "--partition", "iid", "--users", "10"),
    "flickr": ("flickr_aes",),
}
TRANSLATIONS = {
    "num_clients": "partitioner.num_clients",
    "dataset.num_clients": "partitioner.num_clients",
    "clients_per_round": "sampler.cohort_size",
    "num_epochs": "algorithm.epochs",
    "fit_config.epochs": "algorithm.epochs",
    "batch_size": "algorithm.batch_size",
    "fit_config.batch_size": "algorithm.batch_size",
    "num_rounds": "rounds",
    "learning_rate": "algorithm.lr",
    "model_name": "model",
    "model.num_head_layers": "algorithm.head_layers",
    "dataset.num_classes": "partitioner.classes_per_client",
    "dataset.seed": "seed",
    "repeat_num": "seed",
    "server_device": "engine.device",
}
MODELS = {"mobile": "mobilenet_v1", "resnet": "resnet34"}
CONFIGURATIONS = {"dataset.name": DATASETS, "model_name": MODELS, "algorithm": ("fedper", "fedavg")}
# Settings that follow from the data, or are for Ray only.
IGNORED = ("num_classes", "model.num_classes", "model._target_", "dataset.split", "client_resources.")


def main(argv: list[str]) -> int:
    """Translate the settings, prepare the data if its raw files are given, and run."""
    if "--help" in argv or "-h" in argv:
        print(HELP)
        return 0
    flags, baseline_settings, raw = _parse(argv)
    name = baseline_settings.pop("dataset.name", "cifar10").strip("'\"")
    if name not in DATASETS:
        raise ValueError(f"dataset.name is {name!r}: choose cifar10 or flickr, one at a time.")
    settings = dict(pair for setting in baseline_settings.items() for pair in _translate(*setting, name))
    if "resume" not in settings:  # a resumed run has its settings
        defaults = dict(setting.split("=", 1) for setting in (COMMON + DATASETS[name]).split())
        if "partitioner" in settings:  # other options than those of the baseline's
            defaults = {setting: value for setting, value in defaults.items() if not setting.startswith("partitioner")}
        settings = defaults | settings
        _prepare_data(name, Path(settings["data.path"]), raw)
    return max(run.main([*flags, *(f"{n}={value}" for n, value in sweep.items())]) for sweep in _sweeps(settings))


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
    """Return flags for Hydra, settings by name, and the folder of raw data."""
    parser = Parser("manyeyes fedper", add_help=False, allow_abbrev=False)
    parser.add_argument("--raw", type=Path)
    parser.add_argument("--config-name", "--config_name", default="")
    parser.add_argument("--config-path", "--config_path", default="")
    args, rest = parser.parse_known_args(argv)
    flags, overrides = run.split_flags(rest)
    settings = _named_configuration(args.config_path) | _named_configuration(args.config_name)
    for override in overrides:
        name, _, value = override.lstrip("+").partition("=")
        settings[name] = value
    return flags, settings, args.raw


def _named_configuration(path: str) -> dict[str, str]:
    """Return the settings that a configuration file of the baseline stands for, by the parts of its path."""
    settings: dict[str, str] = {}
    for part in Path(path).with_suffix("").parts if path else ():
        names = [name for name, values in CONFIGURATIONS.items() if part in values]
        if not names and part not in ("conf", "base", "."):
            raise ValueError(f"Unknown configuration {path!r}: choose base, cifar10 or flickr.")
        settings |= dict.fromkeys(names, part)
    return settings


def _translate(name: str, value: str, dataset: str) -> Iterator[tuple[str, str]]:
    """Yield our settings for one of the baseline's, or for one that is ours already."""
    if name.startswith(IGNORED) or (name == "dataset.num_classes" and dataset == "flickr" and value == "5"):
        return
    if name == "dataset.fraction":
        if value != "0.83":
            raise ValueError(f"dataset.fraction is {value}: only 0.83, the fraction of training images, is possible.")
        return
    setting = TRANSLATIONS.get(name, name)
    if dataset == "flickr" and setting.startswith("partitioner"):
        raise ValueError(
            f"{name} is for CIFAR-10: FLICKR-AES has five scores, and its clients are chosen when it is prepared "
            "(manyeyes data prepare flickr_aes --raters N)."
        )
    if name == "clients_per_round":
        yield "sampler", "uniform"
    if name == "model_name":
        if unknown := set(value.split(",")) - MODELS.keys():
            raise ValueError(f"model_name is {unknown.pop()!r}: choose mobile or resnet, or give model=...")
        value = ",".join(MODELS[model] for model in value.split(","))
    yield setting, value


def _prepare_data(name: str, path: Path, raw: Path | None) -> None:
    """Prepare the data from its raw files, or say how."""
    if (path / "meta.json").exists():
        return
    command = ["prepare", *PREPARE[name], "--raw", str(raw or "DIR"), "--out", str(path)]
    if raw is None:
        download = " (add --download to fetch it into DIR first)" if name == "cifar10" else ""
        raise ValueError(
            f"No prepared dataset at {path}: give --raw DIR with the folder of the raw files, or prepare it with "
            f"manyeyes data {' '.join(command)}{download}"
        )
    data.main(command)
