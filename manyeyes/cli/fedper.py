"""`manyeyes fedper`: the words of the FedPer baseline (Flower, baselines/fedper) as settings of `manyeyes run`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from manyeyes.cli.data import data
from manyeyes.config.run import VALUE_FLAGS, run

HELP = """usage: manyeyes fedper [--multirun] [--raw DIR] [setting=value ...]

FedPer (Arivazhagan et al. 2019) against FedAvg, with the settings of the Flower baseline:

  algorithm=fedper|fedavg      also fedrep, fedbn, ditto, finetuned, local_only   (fedavg)
  model_name=mobile|resnet     MobileNet-v1 or ResNet34                           (mobile)
  model.num_head_layers=N      layers that stay with the client                   (2)
  dataset.name=cifar10|flickr  or --config-name                                   (cifar10)
  dataset.num_classes=N        CIFAR-10: classes a client                         (10)
  num_clients=N clients_per_round=N num_rounds=N num_epochs=N batch_size=N learning_rate=X
  repeat_num=N                 another seed: of the partition, the weights and the training
  server_device=cpu|cuda:0

  --raw DIR                    prepare the data from its raw files there first, where that is still to be done

All settings of manyeyes run are understood too (manyeyes run --help), and win.

  python -m manyeyes.fedper --multirun dataset.num_classes=4,8,10 model_name=resnet,mobile algorithm=fedper,fedavg \\
      model.num_head_layers=2,3 '+repeat_num=range(5)'
"""
COMMON = {
    "algorithm": "fedavg",
    "algorithm.select": "everyone",
    "algorithm.epochs": "4",
    "algorithm.lr": "0.01",
    "algorithm.momentum": "0.9",
    "algorithm.head_layers": "2",
    "model": "mobilenet_v1",
    "model.norm": "batch",
    "evaluate_every": "1",
}
CIFAR10 = {
    "data": "cifar10",
    "data.path": "data/cifar10",
    "data.users": "10",
    "data.classes_per_client": "10",
    "algorithm.batch": "128",
    "rounds": "50",
    "augment.crop": "224",  # the whole image, enlarged
    "augment.scale_min": "1",
    "augment.ratio_min": "1",
    "augment.ratio_max": "1",
    "augment.mean": "[0.491,0.482,0.447]",
    "augment.std": "[0.247,0.243,0.262]",
}
FLICKR = {
    "data": "flickr_aes",
    "data.path": "data/flickr_aes",
    "algorithm.batch": "4",
    "rounds": "35",
    "augment.mean": "[0.485,0.456,0.406]",
    "augment.std": "[0.229,0.224,0.225]",
}
DATASETS = {"cifar10": CIFAR10, "flickr": FLICKR}
PREPARE = {  # how a store is made; its own users do not matter where images are dealt out anew
    "cifar10": ("cifar10", "--partition", "iid", "--users", "10"),
    "flickr": ("flickr_aes",),
}
OURS = {
    "num_clients": "data.users",
    "dataset.num_clients": "data.users",
    "clients_per_round": "algorithm.cohort",
    "num_epochs": "algorithm.epochs",
    "fit_config.epochs": "algorithm.epochs",
    "batch_size": "algorithm.batch",
    "fit_config.batch_size": "algorithm.batch",
    "num_rounds": "rounds",
    "learning_rate": "algorithm.lr",
    "model_name": "model",
    "model.num_head_layers": "algorithm.head_layers",
    "dataset.num_classes": "data.classes_per_client",
    "dataset.seed": "seed",
    "repeat_num": "seed",
    "server_device": "engine.device",
}
MODELS = {"mobile": "mobilenet_v1", "resnet": "resnet34"}
# What follows from the data, or is for Ray alone.
WITHOUT_MEANING = ("num_classes", "model.num_classes", "model._target_", "dataset.split", "client_resources.")


def fedper(words: list[str]) -> int:
    """Translate, prepare the data where that is asked for, and run."""
    if "--help" in words or "-h" in words:
        print(HELP)
        return 0
    options, given, raw = _sorted(words)
    name = given.pop("dataset.name", "cifar10").strip("'\"")
    if name not in DATASETS:
        raise ValueError(f"dataset.name is {name!r}: choose cifar10 or flickr, one at a time")
    settings = dict(pair for word, value in given.items() for pair in _translated(word, value, name))
    if "resume" not in settings:  # a run that is continued has its settings
        settings = COMMON | DATASETS[name] | settings
        _have_data(name, Path(settings["data.path"]), raw)
    return run([*options, *(f"{word}={value}" for word, value in settings.items())])


def _sorted(words: list[str]) -> tuple[list[str], dict[str, str], Path | None]:
    """Options for Hydra, settings by name, and where raw data is."""
    options, given, raw, left = [], dict[str, str](), None, iter(words)
    for word in left:
        name, _, value = word.partition("=")
        if name in ("--raw", "--config-name", "--config_name", "--config-path", "--config_path"):
            value = value or next(left, "")
            if not value:
                raise ValueError(f"{name} is the last word: say which after it")
            if name == "--raw":
                raw = Path(value)
            else:  # cifar10, flickr, or conf/cifar10/mobile and fedper
                given |= _configured(value)
        elif word.startswith("-"):
            options += [word, next(left, "")] if word in VALUE_FLAGS else [word]
        else:
            given[name.lstrip("+")] = value
    return options, given, raw


def _configured(value: str) -> dict[str, str]:
    """The settings that a configuration of the baseline stands for by its name."""
    found = {}
    for part in Path(value).with_suffix("").parts:
        if part in DATASETS:
            found["dataset.name"] = part
        elif part in MODELS:
            found["model_name"] = part
        elif part in ("fedper", "fedavg"):
            found["algorithm"] = part
        elif part not in ("conf", "base", "."):
            raise ValueError(f"there is no configuration {value!r}: choose base, cifar10 or flickr")
    return found


def _translated(word: str, value: str, dataset: str) -> Iterator[tuple[str, str]]:
    """Our settings for one of the baseline's, or for one that is ours already."""
    if word.startswith(WITHOUT_MEANING):
        return
    if word == "dataset.fraction" and value != "0.83":
        raise ValueError(f"dataset.fraction is {value}: 0.83 of a client's images are for training, and no other share")
    if word == "dataset.fraction" or (word == "dataset.num_classes" and dataset == "flickr" and value == "5"):
        return
    name = OURS.get(word, word)
    if dataset == "flickr" and name in ("data.users", "data.classes_per_client"):
        raise ValueError(
            f"{word} is of CIFAR-10: FLICKR-AES has five scores, and its clients are chosen when it is prepared "
            "(manyeyes data prepare flickr_aes --workers N)"
        )
    if name == "data.users" and word != name and "0" in value.split(","):  # ours would be those of the store
        raise ValueError(f"{word} is {value}: give at least 1 client")
    if word == "clients_per_round":
        yield "algorithm.select", "uniform"
    if word == "model_name":
        unknown = [one for one in value.split(",") if one not in MODELS]
        if unknown:
            raise ValueError(f"model_name is {unknown[0]!r}: choose mobile or resnet, or give model=...")
        value = ",".join(MODELS[one] for one in value.split(","))
    yield name, value


def _have_data(name: str, path: Path, raw: Path | None) -> None:
    """Prepare the data from its raw files, or say how."""
    if (path / "meta.json").exists():
        return
    command = ["prepare", *PREPARE[name], "--raw", str(raw or "DIR"), "--out", str(path)]
    if raw is None:
        fetch = " (and --download to fetch it into DIR first)" if name == "cifar10" else ""
        raise ValueError(
            f"there is no prepared data in {path}: give --raw DIR with the folder of the raw files, or prepare it with "
            f"manyeyes data {' '.join(command)}{fetch}"
        )
    data(command)
