"""`manyeyes flair`: the settings of the FLAIR baseline (Flower, baselines/flair) as settings of `manyeyes run`."""

from pathlib import Path

from manyeyes.cli import run
from manyeyes.papers import flair as paper

HELP = """usage: manyeyes flair [--multirun] [setting=value ...]

FLAIR's federated benchmark (Song et al. 2022, rows FL-* of table 1), with the settings of the Flower baseline:

  pretrained=true|false                         from ImageNet weights, or from scratch                (true)
  dataset.use_fine_grained_labels=true|false    1,628 classes instead of 17                           (false)
  dataset.max_num_user_images=N                 images of a user per round, drawn in every round      (512)
  dataset.data_path=PATH                        the HDF5 file, or a dataset that manyeyes data prepare made
  num_clients_per_round=N num_rounds=N evaluation_frequency=N                     (200, 5000, 100)
  central_learning_rate=X strategy.beta_1=X strategy.beta_2=X strategy.tau=X      (0.1, 0.9, 0.99, 0.01)
  client.client_learning_rate=X                 (the paper's: 0.01 from ImageNet weights, 0.1 from scratch)
  client.batch_size=N client.epochs_per_round=N                                                       (16, 2)

All settings of manyeyes run work too (manyeyes run --help), and take precedence. The model of the lowest validation
loss is tested on the test split, as in the paper; the baseline evaluates on the validation split.

  python -m manyeyes.flair pretrained=false dataset.use_fine_grained_labels=true
"""
DATA_PATHS = ("data/flair", "data/flair_federated.hdf5")  # where the data is looked for
FINE_LABELS = "dataset.use_fine_grained_labels"
TRANSLATIONS = {
    "dataset.max_num_user_images": "algorithm.max_examples",
    "dataset.data_path": "data.path",
    "num_clients_per_round": "algorithm.cohort_size",
    "num_rounds": "rounds",
    "evaluation_frequency": "evaluate_every",
    "central_learning_rate": "server_optimizer.lr",
    "strategy.eta": "server_optimizer.lr",
    "strategy.beta_1": "server_optimizer.beta1",
    "strategy.beta_2": "server_optimizer.beta2",
    "strategy.tau": "server_optimizer.tau",
    "client.client_learning_rate": "algorithm.lr",
    "strategy.eta_l": "algorithm.lr",
    "client.batch_size": "algorithm.batch_size",
    "client.epochs_per_round": "algorithm.epochs",
}
IGNORED = ("cpus_per_client", "gpus_per_client", "num_cpus", "num_gpus", "strategy._target_")  # for Ray only


def main(argv: list[str]) -> int:
    """Translate the settings, and run."""
    if "--help" in argv or "-h" in argv:
        print(HELP)
        return 0
    flags, overrides = run.split_flags(argv)
    baseline = dict(override.lstrip("+").partition("=")[::2] for override in overrides)
    settings: dict[str, str] = {}
    if "resume" not in baseline:  # a resumed run has its settings
        row = _choose("pretrained", baseline.pop("pretrained", "true"), {"true": "FL-F-17", "false": "FL-R-17"})
        settings = dict(setting.split("=", 1) for setting in paper.run(row).settings)
        values = baseline.pop(FINE_LABELS, "false").split(",")  # several in a sweep
        settings["data.task"] = ",".join(_choose(FINE_LABELS, v, {"true": "fine", "false": "coarse"}) for v in values)
    translated = {TRANSLATIONS.get(name, name): value for name, value in baseline.items() if name not in IGNORED}
    if settings and "data.path" not in translated and translated.get("data", "flair") == "flair":
        settings["data.path"] = _find_data()
    return run.main([*flags, *(f"{name}={value}" for name, value in (settings | translated).items())])


def _choose(name: str, value: str, choices: dict[str, str]) -> str:
    if value.lower() not in choices:
        raise ValueError(f"{name} is {value!r}: it must be true or false, one at a time.")
    return choices[value.lower()]


def _find_data() -> str:
    """Return where the data is: as the paper's recipes have it, or the baseline."""
    for path in DATA_PATHS:
        if Path(path).exists():
            return path
    raise ValueError(
        f"No data at {' or '.join(DATA_PATHS)}: give dataset.data_path=PATH, or prepare it with {paper.COARSE.prepare_command}"
    )
