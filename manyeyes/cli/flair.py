"""`manyeyes flair`: the settings of the FLAIR baseline (Flower, baselines/flair) as settings of `manyeyes run`."""

from pathlib import Path

from manyeyes.cli.baseline import read_baseline, split_arguments, train, translate
from manyeyes.papers import flair as paper

BASELINE = read_baseline("flair")
DATA_PATHS = ("data/flair", "data/flair_federated.hdf5")  # where the data is looked for
FINE_LABELS = "dataset.use_fine_grained_labels"


def main(argv: list[str]) -> int:
    if "--help" in argv or "-h" in argv:
        print(BASELINE["help"])
        return 0
    flags, arguments = split_arguments(argv)
    settings: dict[str, str] = {}
    if "resume" not in arguments:  # a resumed run has its settings
        row = _choose("pretrained", arguments.pop("pretrained", "true"), {"true": "FL-F-17", "false": "FL-R-17"})
        settings = dict(setting.split("=", 1) for setting in paper.run(row).settings)
        values = arguments.pop(FINE_LABELS, "false").split(",")  # several in a sweep
        settings["data.task"] = ",".join(_choose(FINE_LABELS, v, {"true": "fine", "false": "coarse"}) for v in values)
    translated = translate(BASELINE, arguments)
    if settings and "data.path" not in translated and translated.get("data", "flair") == "flair":
        settings["data.path"] = _find_data()
    return train(flags, settings | translated)


def _choose(name: str, value: str, choices: dict[str, str]) -> str:
    if value.lower() not in choices:
        raise ValueError(f"{name} is {value!r}: it must be true or false, one at a time.")
    return choices[value.lower()]


def _find_data() -> str:
    """Return where the data is: as the paper's recipes have it, or the baseline."""
    if (path := next((path for path in DATA_PATHS if Path(path).exists()), None)) is None:
        fix = f"give dataset.data_path=PATH, or prepare it with {paper.COARSE.prepare_command}"
        raise ValueError(f"No data at {' or '.join(DATA_PATHS)}: {fix}")
    return path
