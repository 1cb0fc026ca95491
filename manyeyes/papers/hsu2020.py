"""Hsu, Qi and Brown 2020, "Federated Visual Classification with Real-World Data Distribution" (arXiv:2003.08082)."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

from manyeyes.papers import hsu2020_runs as runs
from manyeyes.papers.exhibit import ExhibitRow, Expected, PrintedValue, RunRecipe
from manyeyes.papers.hsu2020_runs import ALPHAS, LANDMARKS, cifar, inaturalist
from manyeyes.papers.metric import AfterRounds, Multiple, RoundsTo, WithinBatches, relative_after
from manyeyes.papers.printed import dataset_rows, make_exhibits, percentages, printed_table
from manyeyes.papers.statistics import Statistic

SPLITS = {"User-120k": "user_120k", "Geo-100": "geo_100", "Geo-1k": "geo_1k", "Geo-3k": "geo_3k", "Geo-30k": "geo_30k"}
# Clients per round and local epochs, which figures 4 and 8 do not print; figure 8's last two rows differ in epochs.
COHORTS = ((5, 1), (10, 1), (20, 1), (20, 5))
LEARNING_RATES = [step / 2 for step in range(-6, 1)]  # exponents of the effective learning rate: 10^-3 to 10^0
MOMENTA = LEARNING_RATES[1:]  # exponents of 1 - beta: 10^-2.5 to 10^0, without momentum
ROUNDS = {text: AfterRounds("accuracy", rounds) for text, rounds in (("1k", 1000), ("2.5k", 2500), ("5k", 5000))}
BATCHES = {f"{thousands}k batches": WithinBatches("accuracy", 1000 * thousands) for thousands in (10, 25, 50)}
BASELINES = 'Table 5: "different centralized learning accuracy (51.4% from scratch and 57.9% from pretrained)"'


def table1() -> Iterator[ExhibitRow]:
    recipes = {
        "CIFAR-10": (runs.cifar_baseline(10), [cifar(10, ALPHAS[10][0])]),
        "CIFAR-100": (runs.cifar_baseline(100), [cifar(100, ALPHAS[100][0])]),
        "iNaturalist-Geo": (runs.inaturalist_baseline(), [inaturalist("geo_30k"), inaturalist("geo_100")]),
        "iNaturalist-User-120k": (runs.inaturalist_baseline(), [inaturalist("user_120k")]),
        "Landmarks-User-160k": (runs.landmarks_baseline("all"), [LANDMARKS]),
    }
    for row, clients, classes, examples, accuracy in printed_table("hsu2020", "table1")[1:]:
        run, datasets = recipes[row]
        source = f"Table 1, row {row}"
        expected: Expected = {
            Statistic("classes"): PrintedValue(int(classes), "classes", f"{source}, classes"),
            Statistic("train images"): PrintedValue(int(examples), "images", f"{source}, examples"),
            AfterRounds("accuracy"): PrintedValue(float(accuracy), "%", f"{source}, centralized accuracy"),
        }
        for dataset, text in zip(datasets, clients.split("-"), strict=True):
            split = dataset.path.removeprefix("data/inaturalist_") if len(datasets) > 1 else ""
            users = Statistic("train users", path_suffix=split)
            expected[users] = PrintedValue(int(text), "clients", f"{source}, clients")
        yield ExhibitRow(row, (run,), expected, datasets=tuple(datasets))


def table2() -> Iterator[ExhibitRow]:
    baseline = runs.inaturalist_baseline()
    for data, method, vc, cohort_size, *printed in printed_table("hsu2020", "table2")[1:]:
        row = f"{data}, {_label(method, vc, 'no', cohort_size)}"
        run = runs.inaturalist_run(SPLITS[data], method, int(cohort_size), vc == "yes")
        yield ExhibitRow(row, (run,), percentages({**ROUNDS, **BATCHES}, printed, f"Table 2, row {row}"), baseline)
    yield _centralized(baseline, "Centralized", 57.9, "Table 2, row Centralized")


def table3() -> Iterator[ExhibitRow]:
    baseline = runs.inaturalist_baseline()
    for method, vc, ir, cohort_size, *printed in printed_table("hsu2020", "table3")[1:]:
        row = _label(method, vc, ir, cohort_size)
        run = runs.inaturalist_run("user_120k", method, int(cohort_size), vc == "yes", ir == "yes")
        yield ExhibitRow(row, (run,), percentages(ROUNDS, printed, f"Table 3, row {row}"), baseline)
    yield _centralized(baseline, "Centralized", 57.9, "Table 3, row Centralized")


def table4(trained: tuple[str, ...] = ("two", "all")) -> Iterator[ExhibitRow]:
    for method, ir, cohort_size, *printed in printed_table("hsu2020", "table4")[1:]:
        for layers in trained:
            row = f"{_label(method, 'no', ir, cohort_size)}, {layers} layers"
            columns = printed[:3] if layers == "two" else printed[3:]
            expected = percentages(ROUNDS, columns, f"Table 4, row {row}")
            run = runs.landmarks_run(layers, method, ir == "yes", int(cohort_size))
            yield ExhibitRow(row, (run,), expected, runs.landmarks_baseline(layers))
    for layers in trained:
        row, value = f"Centralized, {layers} layers", 40.27 if layers == "two" else 67.05
        yield _centralized(runs.landmarks_baseline(layers), row, value, f"Table 4, row {row}")


def table5() -> Iterator[ExhibitRow]:
    for method, start, cohort_size, *printed in printed_table("hsu2020", "table5")[1:]:
        row = f"{method}, {start}, K={cohort_size}"
        expected: Expected = {}
        for fraction, text in zip((0.1, 0.5, 0.9), printed, strict=True):
            source = f"Table 5, row {row}, {fraction:.0%}"
            rounds, _, multiple = text.strip(">)").replace("k", "000").partition("(")
            expected[RoundsTo(fraction)] = PrintedValue(int(rounds), "rounds", source, is_lower_bound=text[0] == ">")
            if multiple:
                expected[Multiple(fraction)] = PrintedValue(float(multiple), "times", source)
        run = runs.geo_3k_run(start, method, int(cohort_size))
        yield ExhibitRow(row, (run,), expected, runs.inaturalist_baseline(start))
    for start, value in (("scratch", 51.4), ("pretrained", 57.9)):
        yield _centralized(runs.inaturalist_baseline(start), f"Centralized, {start}", value, BASELINES)


def at_rounds(rows: tuple[ExhibitRow, ...], rounds: int) -> tuple[ExhibitRow, ...]:
    """Return rows of a table with only what it prints after a number of rounds."""
    metric = AfterRounds("accuracy", rounds)
    return tuple(replace(row, expected={metric: row.expected[metric]}) for row in rows if metric in row.expected)


def partitions() -> Iterator[ExhibitRow]:
    """Figure 6c: every partition of iNaturalist, after 2.5k rounds."""
    for (data, split), method, vc in product(SPLITS.items(), ("FedAvg", "FedAvgM"), ("no", "yes")):
        rounds = 0 if data in ("Geo-3k", "User-120k") else 2500
        run = runs.inaturalist_run(split, method, 10, vc == "yes", rounds=rounds)
        row = f"{data}, {_label(method, vc, 'no', '10')}, relative"
        yield ExhibitRow(row, (run,), {relative_after(2500): None}, runs.inaturalist_baseline())


def figure4() -> Iterator[ExhibitRow]:
    """Yield a row for each partition, with the grid whose best run counts."""
    methods = {"FedAvg": MOMENTA[-1:], "FedAvgM": MOMENTA[:-1]}
    for classes, method, (cohort_size, epochs) in product(ALPHAS, methods, COHORTS[:3]):
        for alpha in ALPHAS[classes]:
            grid = product(LEARNING_RATES, methods[method])
            recipes = tuple(runs.cifar_run(classes, alpha, cohort_size, epochs, *point) for point in grid)
            row = f"CIFAR-{classes}, {method}, K={cohort_size}, alpha={alpha:g}"
            yield ExhibitRow(row, recipes, {relative_after(): None}, runs.cifar_baseline(classes))


def figure8() -> Iterator[ExhibitRow]:
    """Yield a row for each partition and effective learning rate, with the momenta of which the best counts."""
    for classes, (cohort_size, epochs) in product(ALPHAS, COHORTS):
        for alpha, rate in product(ALPHAS[classes], LEARNING_RATES):
            recipes = tuple(runs.cifar_run(classes, alpha, cohort_size, epochs, rate, beta) for beta in MOMENTA)
            row = f"CIFAR-{classes}, K={cohort_size}, E={epochs}, alpha={alpha:g}, eta_eff=10^{rate:g}"
            yield ExhibitRow(row, recipes, {relative_after(): None}, runs.cifar_baseline(classes))


def _label(method: str, vc: str, ir: str, cohort_size: str) -> str:
    return f"{method}{' + FedVC' if vc == 'yes' else ''}{' + FedIR' if ir == 'yes' else ''}, K={cohort_size}"


def _centralized(run: RunRecipe, row: str, value: float, source: str) -> ExhibitRow:
    return ExhibitRow(row, (run,), {AfterRounds("accuracy"): PrintedValue(value, "%", source)})


INATURALIST = {data: inaturalist(split) for data, split in SPLITS.items()}
CLIENTS = [Statistic(name) for name in ("train users", "median classes per user", "mean EMD")]
CIFAR = {f"CIFAR-{n}, alpha={alpha:g}": cifar(n, alpha) for n, alphas in ALPHAS.items() for alpha in alphas}
EXHIBITS = make_exhibits(
    "hsu2020",
    {
        "table1": table1(),
        "table2": table2(),
        "table3": table3(),
        "table4": table4(),
        "table5": table5(),
        "figure2": dataset_rows("hsu2020", "figure2", INATURALIST, CLIENTS),
        "figure3": dataset_rows("hsu2020", "figure3", {"Landmarks-User-160k": LANDMARKS}, CLIENTS),
        "figure4": figure4(),
        "figure5": at_rounds((*table3(), *table4()), 2500),
        "figure6": (*table2(), *partitions()),
        "figure7": table4(("two",)),
        "figure8": figure8(),
        "figure9": table5(),
        "figure10": dataset_rows("hsu2020", "figure10", CIFAR, CLIENTS),
    },
)
