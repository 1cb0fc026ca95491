"""The runs of Hsu, Qi and Brown 2020: sections 5, 6.5 and appendix A.1 as settings."""

from manyeyes.papers.choices import CIFAR_SCHEDULE, FEDIR_TARGET
from manyeyes.papers.exhibit import DatasetRecipe, RunRecipe, make_run

IMAGENET = "preprocess.mean=[0.485,0.456,0.406] preprocess.std=[0.229,0.224,0.225]"
MOBILENET = f"model=mobilenet_v2 model.norm=group preprocess.scale=[0.08,1] {IMAGENET} algorithm.weight_decay=4e-5"
CENTRALIZED = "algorithm=centralized algorithm.momentum=0.9 rounds=100 evaluate_every=5"
LANDMARKS = DatasetRecipe("data/landmarks", ("landmarks", "--raw", "raw/landmarks", "--size", "224"))
ALPHAS = {10: (100, 10, 1, 0.5, 0.2, 0.1, 0.05, 0), 100: (1000, 0.5, 0)}  # of the released partitions
INATURALIST_ROUNDS = {("user_120k", False): 50_000, ("user_120k", True): 12_500, ("geo_3k", True): 12_500}  # by FedVC


def inaturalist(split: str) -> DatasetRecipe:
    arguments = ("inaturalist", "--raw", "raw/inaturalist", "--size", "299", "--split", split)
    return DatasetRecipe(f"data/inaturalist_{split}", arguments)


def cifar(classes: int, alpha: float) -> DatasetRecipe:
    """Return one of the released Dirichlet partitions: 100 clients with 500 images each."""
    name = f"cifar{classes}"
    options = f"--raw raw/{name} --partition released --alpha {alpha:g} --splits raw/{name}_v1.1.zip"
    return DatasetRecipe(f"data/{name}_alpha_{alpha:.2f}", (name, *options.split()))


def inaturalist_run(
    split: str, method: str, cohort_size: int, vc: bool, ir: bool = False, rounds: int = 0
) -> RunRecipe:
    """Return a run from pretrained weights; a run of table 2 is long enough for its budgets of batches.

    A round of User-120k without FedVC takes at least one batch, so 50k rounds are always enough for 50k batches. The
    round of the 10k-th batch is then unknown, and may be among the first hundreds.
    """
    in_table2 = split in ("user_120k", "geo_3k") and cohort_size == 10 and not ir
    rounds = rounds or (INATURALIST_ROUNDS.get((split, vc), 5000) if in_table2 else 5000)
    settings = f"""
        {_method_settings(method, cohort_size, vc, ir)} {"" if vc else "algorithm.epochs=1"} rounds={rounds}
        {"max_local_batches=50000" if rounds == 50_000 else ""} evaluate_every=50
        {"evaluate_every_fraction=0.05" if in_table2 and not vc else ""}
    """
    name = (split, method, "FedVC" if vc else "", "FedIR" if ir else "", f"K{cohort_size}")
    return _inaturalist(name, split, settings)


def geo_3k_run(start: str, method: str, cohort_size: int) -> RunRecipe:
    """Return a run of table 5, evaluated often enough to count rounds; by table 2's accuracies they use FedVC."""
    rounds, interval = (5000, 10) if start == "pretrained" else (50_000 if cohort_size == 10 else 20_000, 100)
    schedule = f"rounds={rounds} evaluate_every={interval} evaluate_every_fraction=0.05"
    settings = f"{_method_settings(method, cohort_size, vc=True)} {schedule}"
    return _inaturalist(("geo_3k", method, "FedVC", f"K{cohort_size}", start), "geo_3k", settings, start)


def inaturalist_baseline(start: str = "pretrained") -> RunRecipe:
    """Return the centralized run, which does not depend on the partition."""
    name = ("inaturalist-centralized", "" if start == "pretrained" else start)
    return _inaturalist(name, "user_120k", f"{CENTRALIZED} algorithm.lr=0.01", start)


def landmarks_run(layers: str, method: str, ir: bool, cohort_size: int) -> RunRecipe:
    settings = f"{_method_settings(method, cohort_size, ir=ir)} algorithm.epochs=5 rounds=5000 evaluate_every=50"
    return _landmarks((layers, method, "FedIR" if ir else "", f"K{cohort_size}"), layers, settings)


def landmarks_baseline(layers: str) -> RunRecipe:
    return _landmarks((layers, "centralized"), layers, f"{CENTRALIZED} algorithm.lr=0.01")


def cifar_run(classes: int, alpha: float, cohort_size: int, epochs: int, rate: float, momentum: float) -> RunRecipe:
    """Return one point of the grid: eta_eff = 10^rate and 1 - beta = 10^momentum (appendix A.1)."""
    undamped = 10**momentum
    method, lr = "FedAvgM" if undamped < 1 else "FedAvg", 10**rate * undamped
    settings = f"""
        {_method_settings(method, cohort_size, lr=lr, beta=1 - undamped)} algorithm.epochs={epochs}
        rounds={10_000 if classes == 10 else 20_000} evaluate_every=100
    """
    grid_point = f"eta_eff_1e{rate:g}-left_1e{momentum:g}"
    return _cifar(f"cifar{classes}-alpha_{alpha:.2f}-K{cohort_size}-E{epochs}-{grid_point}", classes, alpha, settings)


def cifar_baseline(classes: int) -> RunRecipe:
    """Return the centralized run, which does not depend on the partition."""
    settings = f"{CENTRALIZED} {CIFAR_SCHEDULE.answers[CIFAR_SCHEDULE.default]}"
    return _cifar(f"cifar{classes}-centralized", classes, ALPHAS[classes][0], settings)


def _inaturalist(name: tuple[str, ...], split: str, settings: str, start: str = "pretrained") -> RunRecipe:
    model = f"{MOBILENET} {'model.pretrained=imagenet' if start == 'pretrained' else ''}"
    common = f"{model} preprocess.crop=299 algorithm.batch_size=64"
    return make_run("-".join(filter(None, name)), inaturalist(split), f"{common} {settings}")


def _landmarks(name: tuple[str, ...], layers: str, settings: str) -> RunRecipe:
    trainable = f"model.trainable={'last:2' if layers == 'two' else 'all'}"
    model = f"{MOBILENET} model.pretrained=imagenet model.bottleneck=64 {trainable}"
    common = f"{model} preprocess.crop=224 algorithm.batch_size=32"
    return make_run("-".join(["landmarks", *filter(None, name)]), LANDMARKS, f"{common} {settings}")


def _cifar(name: str, classes: int, alpha: float, settings: str) -> RunRecipe:
    preprocess = "preprocess.crop=32 preprocess.pad=4 preprocess.flip_horizontal=true"
    common = f"model=lenet {preprocess} algorithm.batch_size=64 algorithm.weight_decay=4e-4"
    return make_run(name, cifar(classes, alpha), f"{common} {settings}")


def _method_settings(
    method: str, cohort_size: int, vc: bool = False, ir: bool = False, lr: float = 0.01, beta: float = 0.9
) -> str:
    """Return FedAvg or FedAvgM, with or without FedVC and FedIR (sections 5 and 6.5)."""
    settings = "algorithm=fedvc algorithm.virtual_client_size=256" if vc else "algorithm=fedavg"
    settings += f" algorithm.cohort_size={cohort_size} algorithm.lr={lr:g}"
    settings += f" server_optimizer=sgd server_optimizer.momentum={beta:g}" if method == "FedAvgM" else ""
    target = FEDIR_TARGET.answers[FEDIR_TARGET.default]
    return settings + (f" example_weighting=importance {target}" if ir else "")
