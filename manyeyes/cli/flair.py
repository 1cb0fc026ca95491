"""`manyeyes flair`: the words of the FLAIR baseline (Flower, baselines/flair) as settings of `manyeyes run`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from manyeyes.config.run import run
from manyeyes.papers import flair as paper

HELP = """usage: manyeyes flair [--multirun] [setting=value ...]

FLAIR's federated benchmark (Song et al. 2022, rows FL-* of table 1), with the settings of the Flower baseline:

  pretrained=true|false                         from ImageNet weights, or from scratch                (true)
  dataset.use_fine_grained_labels=true|false    1,628 classes instead of 17                           (false)
  dataset.max_num_user_images=N                 of a user in a round, drawn anew each time            (512)
  dataset.data_path=PATH                        the HDF5 file, or a store that manyeyes data prepare made
  num_clients_per_round=N num_rounds=N evaluation_frequency=N                     (200, 5000, 100)
  central_learning_rate=X strategy.beta_1=X strategy.beta_2=X strategy.tau=X      (0.1, 0.9, 0.99, 0.01)
  client.client_learning_rate=X                 (the paper's: 0.01 from ImageNet weights, 0.1 from scratch)
  client.batch_size=N client.epochs_per_round=N                                                       (16, 2)

All settings of manyeyes run are understood too (manyeyes run --help), and win. The model of the lowest validation loss
is tested on the test split, as in the paper; the baseline evaluates on the validation split.

  python -m manyeyes.flair pretrained=false dataset.use_fine_grained_labels=true
"""
PLACES = ("data/flair", "data/flair_federated.hdf5")  # where data is looked for
OURS = {
    "dataset.max_num_user_images": "algorithm.limit",
    "dataset.data_path": "data.path",
    "num_clients_per_round": "algorithm.cohort",
    "num_rounds": "rounds",
    "evaluation_frequency": "evaluate_every",
    "central_learning_rate": "algorithm.server_lr",
    "strategy.eta": "algorithm.server_lr",
    "strategy.beta_1": "algorithm.server_beta1",
    "strategy.beta_2": "algorithm.server_beta2",
    "strategy.tau": "algorithm.server_tau",
    "client.client_learning_rate": "algorithm.lr",
    "strategy.eta_l": "algorithm.lr",
    "client.batch_size": "algorithm.batch",
    "client.epochs_per_round": "algorithm.epochs",
}
WITHOUT_MEANING = ("cpus_per_client", "gpus_per_client", "num_cpus", "num_gpus", "strategy._target_")  # for Ray alone


def flair(words: list[str]) -> int:
    """Translate and run."""
    if "--help" in words or "-h" in words:
        print(HELP)
        return 0
    options = [word for word in words if word.startswith("-")]
    given = dict(_pair(word) for word in words if not word.startswith("-"))
    if "resume" in given:
        return run([*options, *(f"{name}={value}" for name, value in given.items())])
    start = "F" if _switch(given.pop("pretrained", "true"), "pretrained") else "R"
    fine = given.pop("dataset.use_fine_grained_labels", "false")
    recipe = paper.run(f"FL-{start}-17")
    settings = dict(word.split("=", 1) for word in recipe.settings) | {"data.task": ",".join(_tasks(fine))}
    settings |= {ours: value for name, value in given.items() for ours in _ours(name)}
    if "dataset.data_path" not in given and "data.path" not in given and settings["data"] == "flair":
        settings["data.path"] = _found()
    return run([*options, *(f"{name}={value}" for name, value in settings.items())])


def _pair(word: str) -> tuple[str, str]:
    name, _, value = word.lstrip("+").partition("=")
    return name, value


def _switch(value: str, name: str) -> bool:
    if value.lower() not in ("true", "false"):
        raise ValueError(f"{name} is {value!r}: it must be true or false, one at a time")
    return value.lower() == "true"


def _tasks(value: str) -> Iterator[str]:
    for one in value.split(","):
        yield "fine" if _switch(one, "dataset.use_fine_grained_labels") else "coarse"


def _ours(name: str) -> list[str]:
    """Our setting for one of the baseline's, or for one that is ours already; none where it has no meaning here."""
    return [] if name in WITHOUT_MEANING else [OURS.get(name, name)]


def _found() -> str:
    """The data, where the paper's recipes or the baseline have it."""
    there = next((place for place in PLACES if Path(place).exists()), None)
    if there is None:
        raise ValueError(
            f"there is no data in {' or '.join(PLACES)}: give dataset.data_path=PATH, or prepare it with "
            f"{paper.STORE.prepare}"
        )
    return there
