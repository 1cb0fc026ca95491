"""The runs of Hsu, Qi and Brown 2020: sections 5, 6.5 and appendix A.1 as settings."""

from manyeyes.papers.exhibit import DatasetRecipe, RunRecipe

IMAGENET = ("preprocess.mean=[0.485,0.456,0.406]", "preprocess.std=[0.229,0.224,0.225]")
LANDMARKS = DatasetRecipe("data/landmarks", ("landmarks", "--raw", "raw/landmarks", "--size", "224"))
ALPHAS = {10: (100, 10, 1, 0.5, 0.2, 0.1, 0.05, 0), 100: (1000, 0.5, 0)}  # that were released


def inaturalist(split: str) -> DatasetRecipe:
    words = ("inaturalist", "--raw", "raw/inaturalist", "--size", "299", "--split", split)
    return DatasetRecipe(f"data/inaturalist_{split}", words)


def cifar(classes: int, alpha: float) -> DatasetRecipe:
    """One of the released Dirichlet splits: 100 clients of 500 images."""
    released = ("--partition", "released", "--alpha", f"{alpha:g}", "--splits", f"raw/cifar{classes}_v1.1.zip")
    return DatasetRecipe(
        f"data/cifar{classes}_alpha_{alpha:.2f}", (f"cifar{classes}", "--raw", f"raw/cifar{classes}", *released)
    )


def method(
    name: str, cohort: int, vc: bool = False, ir: bool = False, lr: float = 0.01, beta: float = 0.9
) -> list[str]:
    """FedAvg or FedAvgM, with FedVC and FedIR where asked (sections 5 and 6.5)."""
    settings = ["algorithm=fedvc", "algorithm.virtual_client_size=256"] if vc else ["algorithm=fedavg"]
    settings += [f"algorithm.cohort_size={cohort}", f"algorithm.lr={lr:g}"]
    settings += ["server_optimizer=sgd", f"server_optimizer.momentum={beta:g}"] if name == "FedAvgM" else []
    return settings + (["example_weighting=importance"] if ir else [])


def named(*parts: str) -> str:
    """A run's name of the parts that are not empty."""
    return "-".join(part for part in parts if part)


def _species(split: str, start: str = "pretrained") -> tuple[str, ...]:
    return (
        "data=inaturalist",
        f"data.path={inaturalist(split).path}",
        "model=mobilenet_v2",
        "model.norm=group",
        *(("model.pretrained=imagenet",) if start == "pretrained" else ()),
        "preprocess.crop=299",
        "preprocess.scale=[0.08,1]",
        *IMAGENET,
        "algorithm.batch_size=64",
        "algorithm.weight_decay=4e-5",
    )


def species(split: str, name: str, cohort: int, vc: bool, ir: bool = False, rounds: int = 0) -> RunRecipe:
    """iNaturalist from pretrained weights; as long as table 2's batches last where it is in it.

    A round of User-120k without FedVC takes at least one batch, so that 50k rounds are always enough for 50k batches.
    Which round the 10k-th batch is in is not known then, only that it may be among the first hundreds.
    """
    long = {("user_120k", False): 50_000, ("user_120k", True): 12_500, ("geo_3k", True): 12_500}
    in_table2 = split in ("user_120k", "geo_3k") and cohort == 10 and not ir
    rounds = rounds or (long.get((split, vc), 5000) if in_table2 else 5000)
    early = ("evaluate_every_fraction=0.05",) if in_table2 and not vc else ()
    budget = ("max_local_batches=50000",) if rounds == 50_000 else ()
    label = named(split, name, "FedVC" if vc else "", "FedIR" if ir else "", f"K{cohort}")
    epochs = () if vc else ("algorithm.epochs=1",)
    words = (*_species(split), *method(name, cohort, vc, ir), *epochs, f"rounds={rounds}", *budget)
    return RunRecipe(label, (*words, "evaluate_every=50", *early), inaturalist(split))


def started(start: str, name: str, cohort: int) -> RunRecipe:
    """Table 5's runs on Geo-3k, evaluated often enough to count rounds; by table 2's accuracies they use FedVC."""
    rounds, every = (5000, 10) if start == "pretrained" else (50_000 if cohort == 10 else 20_000, 100)
    often = (f"evaluate_every={every}", "evaluate_every_fraction=0.05")
    words = (*_species("geo_3k", start), *method(name, cohort, vc=True), f"rounds={rounds}", *often)
    return RunRecipe(named("geo_3k", name, "FedVC", f"K{cohort}", start), words, inaturalist("geo_3k"))


def species_bound(start: str = "pretrained") -> RunRecipe:
    """The centralised run; the partition does not matter to it."""
    words = (*_species("user_120k", start), "algorithm=centralized", "algorithm.lr=0.01", "algorithm.momentum=0.9")
    name = named("inaturalist-centralized", "scratch" if start == "scratch" else "")
    return RunRecipe(name, (*words, "rounds=100", "evaluate_every=5"), inaturalist("user_120k"))


def _landmarks(layers: str) -> tuple[str, ...]:
    return (
        "data=landmarks",
        f"data.path={LANDMARKS.path}",
        "model=mobilenet_v2",
        "model.norm=group",
        "model.pretrained=imagenet",
        "model.bottleneck=64",
        f"model.trainable={'last:2' if layers == 'two' else 'all'}",
        "preprocess.crop=224",
        "preprocess.scale=[0.08,1]",
        *IMAGENET,
        "algorithm.batch_size=32",
        "algorithm.weight_decay=4e-5",
    )


def landmarks(layers: str, name: str, ir: bool, cohort: int) -> RunRecipe:
    words = (
        *_landmarks(layers),
        *method(name, cohort, ir=ir),
        "algorithm.epochs=5",
        "rounds=5000",
        "evaluate_every=50",
    )
    return RunRecipe(named("landmarks", layers, name, "FedIR" if ir else "", f"K{cohort}"), words, LANDMARKS)


def landmarks_bound(layers: str) -> RunRecipe:
    words = (*_landmarks(layers), "algorithm=centralized", "algorithm.lr=0.01", "algorithm.momentum=0.9")
    return RunRecipe(f"landmarks-{layers}-centralized", (*words, "rounds=100", "evaluate_every=5"), LANDMARKS)


def _cifar(classes: int, alpha: float) -> tuple[str, ...]:
    return (
        f"data=cifar{classes}",
        f"data.path={cifar(classes, alpha).path}",
        "model=lenet",
        "preprocess.crop=32",
        "preprocess.pad=4",
        "preprocess.flip_horizontal=true",
        "algorithm.batch_size=64",
        "algorithm.weight_decay=4e-4",
    )


def cifar_run(classes: int, alpha: float, cohort: int, epochs: int, rate: float, momentum: float) -> RunRecipe:
    """One point of the grid: eta_eff = 10^rate and 1 - beta = 10^momentum (appendix A.1)."""
    left = 10**momentum
    how = method("FedAvgM" if left < 1 else "FedAvg", cohort, lr=10**rate * left, beta=1 - left)
    rounds = 10_000 if classes == 10 else 20_000
    words = (*_cifar(classes, alpha), *how, f"algorithm.epochs={epochs}", f"rounds={rounds}")
    name = f"cifar{classes}-alpha_{alpha:.2f}-K{cohort}-E{epochs}-eta_eff_1e{rate:g}-left_1e{momentum:g}"
    return RunRecipe(name, (*words, "evaluate_every=100"), cifar(classes, alpha))


def cifar_bound(classes: int) -> RunRecipe:
    """The centralised run; the partition does not matter to it."""
    alpha = ALPHAS[classes][0]
    rate = ("algorithm.lr=0.02", "algorithm.momentum=0.9", "algorithm.schedule.kind=cosine")
    words = (*_cifar(classes, alpha), "algorithm=centralized", *rate)
    return RunRecipe(f"cifar{classes}-centralized", (*words, "rounds=100", "evaluate_every=5"), cifar(classes, alpha))
