"""Song, Granqvist and Talwar 2022, "FLAIR: Federated Learning Annotated Image Repository" (arXiv:2207.08869)."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

from manyeyes.papers.exhibit import DatasetRecipe, ExhibitRow, Expected, RunRecipe, make_run
from manyeyes.papers.hsu2020_runs import IMAGENET, LANDMARKS, cifar, inaturalist
from manyeyes.papers.metric import AfterRounds, ClassMetric, Frequency, UserQuantile
from manyeyes.papers.printed import dataset_rows, make_exhibits, percentages, printed_table
from manyeyes.papers.statistics import Statistic

COARSE = DatasetRecipe("data/flair", ("flair", "--raw", "raw/flair", "--size", "256"), "coarse")
FINE = replace(COARSE, task="fine")

METRICS = {  # its AP is that of the released benchmark, at 200 thresholds
    "C-AP": "macro_ap_200", "C-P": "macro_precision", "C-R": "macro_recall", "C-F1": "c_f1",
    "O-AP": "micro_ap_200", "O-P": "micro_precision", "O-R": "micro_recall", "O-F1": "micro_f1",
}  # fmt: skip
EXACT_AP = {"exact C-AP": AfterRounds("macro_ap"), "exact O-AP": AfterRounds("micro_ap")}
SETTINGS = ("C-R", "FL-R", "PFL-R", "C-F", "FL-F", "PFL-F")  # of the 17 coarse classes
COLUMNS = {column: AfterRounds(metric) for column, metric in METRICS.items()}
NOISE_COHORT_SIZES = (200, 1000, 5000)  # that figure 6 compares; the text has only the first and the last


def run(setting: str, noise_cohort_size: int = 5000, split: str = "test") -> RunRecipe:
    """Return a setting of table 1, such as FL-F-17: section 5.1, and what only released code says.

    The paper prints neither the clipping norm, the client weights nor Adam's constants. Server Adam has beta2 0.99 and
    epsilon 0.01, as in the configuration of the Flower baseline, by an author of the paper; the paper's own release
    has Keras's default of 0.999. That release clips the gradient of each layer to norm 10, and here it is the gradient
    of all layers. It tests the model with the lowest validation loss, as is done here.
    """
    method, start, classes = setting.split("-")
    is_tuned, dataset = start == "F", COARSE if classes == "17" else FINE
    settings = f"""
        model=resnet18
        {"model.norm=frozen model.pretrained=imagenet" if is_tuned else "model.norm=group"}
        preprocess.crop=224 preprocess.flip_horizontal=true preprocess.flip_vertical=true {IMAGENET}
        {"select_best_on=val" if split == "test" else ""} eval_split={split}
        {_centralized(is_tuned) if method == "C" else _federated(method, is_tuned)}
    """
    if method == "PFL":
        settings += f"""
            client_weighting=uniform privacy=central privacy.epsilon=2 privacy.clipping_norm=0.1
            privacy.target_quantile=0.1 privacy.noise_cohort_size={noise_cohort_size}
        """
    noise = f"-noise_of_{noise_cohort_size}" if noise_cohort_size != 5000 else ""
    return make_run(f"{setting}{noise}{'' if split == 'test' else '-val'}", dataset, settings)


def _centralized(is_tuned: bool) -> str:
    adam = "client_optimizer=adam client_optimizer.max_grad_norm=10 client_optimizer.persist_state=true"
    rate = "client_optimizer.lr=1e-4 rounds=50" if is_tuned else "client_optimizer.lr=5e-4 rounds=100"
    return f"algorithm=centralized algorithm.batch_size=512 {adam} {rate} evaluate_every=1"


def _federated(method: str, is_tuned: bool) -> str:
    sampler = "sampler=poisson sampler.cohort_size=200" if method == "PFL" else "algorithm.cohort_size=200"
    return f"""
        algorithm=fedadam {sampler} algorithm.epochs=2 algorithm.batch_size=16 algorithm.max_examples=512
        algorithm.lr={0.01 if is_tuned else 0.1} algorithm.max_grad_norm=10
        server_optimizer=adam server_optimizer.beta1=0.9 server_optimizer.beta2=0.99 server_optimizer.tau=0.01
        server_optimizer.bias_correction=true server_optimizer.lr={0.1 if method == "FL" else 0.02}
        rounds=5000 evaluate_every=100
    """


def _table1() -> Iterator[ExhibitRow]:
    for setting, *printed in printed_table("flair", "table1")[1:]:
        expected = percentages(COLUMNS, printed, f"Table 1, row {setting}")
        yield ExhibitRow(setting, (run(setting),), {**expected, **dict.fromkeys(EXACT_AP.values())})


def _class_scores() -> Iterator[ExhibitRow]:
    (_, *labels), *lines = printed_table("flair", "figure4")
    for setting, *printed in lines:
        expected = percentages({label: ClassMetric(label) for label in labels}, printed, f"Figure 4, row {setting}")
        exact: Expected = {ClassMetric(label, is_exact=True): None for label in labels}
        yield ExhibitRow(setting, (run(f"{setting}-17"),), {**expected, Frequency(): None, **exact})


def _user_scores() -> Iterator[ExhibitRow]:
    for setting in SETTINGS:
        yield ExhibitRow(setting, (run(f"{setting}-17"),), dict.fromkeys(map(UserQuantile, (5, 25, 50, 75, 95))))


def _noise_cohorts() -> Iterator[ExhibitRow]:
    for start, cohort_size in product("RF", NOISE_COHORT_SIZES):
        names = product(("macro_ap_200", "macro_ap"), (1000, 2500, 5000))
        expected: Expected = {AfterRounds(name, rounds): None for name, rounds in names}
        noisy_run = run(f"PFL-{start}-17", cohort_size, "val")
        yield ExhibitRow(f"PFL-{start}, cohort of {cohort_size}", (noisy_run,), expected)


SKEWED = {
    "FLAIR": COARSE,
    "iNaturalist-User-120k": inaturalist("user_120k"),
    "Landmarks-User-160k": LANDMARKS,
    "CIFAR-10": cifar(10, 0.1),
}
EXHIBITS = make_exhibits(
    "flair",
    {
        "table1": _table1(),
        "figure2": dataset_rows("flair", "figure2", SKEWED, [Statistic("users with half of the images")]),
        "figure3": dataset_rows("flair", "figure3", {"coarse": COARSE, "fine": FINE}),
        "figure4": _class_scores(),
        "figure5": _user_scores(),
        "figure6": _noise_cohorts(),
    },
    {"table1": COLUMNS | EXACT_AP},
)
