"""The rows of Hsu, Qi and Brown 2020: what its tables print, and the runs behind it."""

from collections.abc import Iterator

from manyeyes.papers.exhibit import ExhibitRow, Expected, PrintedValue, RunRecipe, cells
from manyeyes.papers.hsu2020_runs import (
    ALPHAS,
    LANDMARKS,
    cifar,
    cifar_bound,
    cifar_run,
    inaturalist,
    landmarks,
    landmarks_bound,
    species,
    species_bound,
    started,
)
from manyeyes.papers.metric import AfterRounds, Final, Multiple, Relative, RoundsTo, WithinBatches
from manyeyes.papers.statistics import Count

SPLITS = {"User-120k": "user_120k", "Geo-100": "geo_100", "Geo-1k": "geo_1k", "Geo-3k": "geo_3k", "Geo-30k": "geo_30k"}
# Figures 4 and 8 print neither: reporting clients and local epochs, of which figure 8's last two rows differ in epochs.
REPORTING = ((5, 1), (10, 1), (20, 1), (20, 5))
RATES = [step / 2 for step in range(-6, 1)]  # exponents of the effective learning rate: 10^-3 to 10^0
MOMENTA = RATES[1:]  # exponents of 1 - beta: 10^-2.5 to 10^0, where there is none

# Clients, classes, training examples, and the accuracy of centralised training in %.
TABLE1 = """
dataset                clients  classes  examples  centralised
CIFAR-10               100      10       50000     86.16
CIFAR-100              100      100      50000     55.21
iNaturalist-Geo        11-3606  1203     120300    57.90
iNaturalist-User-120k  9275     1203     120300    57.90
Landmarks-User-160k    1262     2028     164172    67.05
"""
# Accuracy in %: after 1k, 2.5k, 5k rounds, and when the largest clients have taken 10k, 25k, 50k batches.
TABLE2 = """
data       method   FedVC  K    1k    2.5k  5k    10k   25k   50k
Geo-3k     FedAvg   no     10   47.0  47.9  48.7  37.8  44.4  46.5
Geo-3k     FedAvgM  no     10   47.2  50.4  45.0  42.5  47.1  44.9
Geo-3k     FedAvg   yes    10   37.4  46.2  52.8  46.2  53.1  55.5
Geo-3k     FedAvgM  yes    10   49.7  54.8  56.7  54.8  56.7  57.1
User-120k  FedAvg   no     10   34.7  39.7  41.3  37.8  39.8  42.9
User-120k  FedAvgM  no     10   31.9  39.2  41.3  32.3  41.6  43.4
User-120k  FedAvg   yes    10   31.3  39.7  43.9  39.7  48.9  52.8
User-120k  FedAvgM  yes    10   37.9  43.7  49.1  43.7  47.4  54.6
"""
TABLE3 = """
method   FedVC  FedIR  K    1k    2.5k  5k
FedAvg   yes    no     10   31.3  39.7  43.9
FedAvg   yes    no     100  36.9  46.5  51.4
FedAvg   yes    yes    10   30.1  41.3  47.5
FedAvg   yes    yes    100  35.5  44.8  49.8
FedAvgM  yes    no     10   37.9  43.7  49.1
FedAvgM  yes    no     100  53.0  56.1  57.2
FedAvgM  yes    yes    10   38.4  42.1  47.0
FedAvgM  yes    yes    100  51.3  54.3  56.2
"""
# Two layers are trained in the first three columns, all in the others.
TABLE4 = """
method   FedIR  K    1k    2.5k  5k    1k    2.5k  5k
FedAvg   no     10   4.2   14.6  24.6  18.2  38.1  49.7
FedAvg   no     50   4.5   16.5  26.0  20.9  42.0  53.3
FedAvg   no     100  4.9   16.5  26.3  21.9  42.3  53.4
FedAvg   yes    10   6.3   17.4  26.6  19.6  38.5  51.7
FedAvg   yes    50   7.4   19.7  28.8  26.0  45.2  55.0
FedAvg   yes    100  7.2   20.1  29.0  26.5  45.7  55.2
FedAvgM  no     10   23.0  30.1  30.8  29.4  44.1  53.7
FedAvgM  no     50   29.9  36.4  38.6  55.2  62.0  64.8
FedAvgM  no     100  31.9  37.4  39.6  56.3  63.4  65.0
FedAvgM  yes    10   26.5  32.1  31.3  27.9  45.1  53.5
FedAvgM  yes    50   31.6  37.5  38.9  53.1  61.6  63.2
FedAvgM  yes    100  33.7  38.3  39.8  57.7  64.1  65.9
"""
# Rounds to 10, 50 and 90 % relative accuracy, each with its multiple of the first.
TABLE5 = """
method   start       K    10%         50%          90%
FedAvg   pretrained  10   165(1.0)    669(4.1)     4912(29.8)
FedAvg   pretrained  100  165(1.0)    567(3.4)     3780(22.9)
FedAvgM  pretrained  10   79(1.0)     249(3.2)     1505(19.1)
FedAvgM  pretrained  100  60(1.0)     116(1.9)     420(6.9)
FedAvg   scratch     10   9005(1.0)   39236(4.4)   >50k
FedAvg   scratch     100  7793(1.0)   >20k         >20k
FedAvgM  scratch     10   1463(1.0)   5788(4.0)    >50k
FedAvgM  scratch     100  977(1.0)    3733(3.8)    >20k
"""
BALANCED = "balanced training set consisting of 1,203 classes and 120,300 examples"
TRAIN = "164,172 images of 2,028 landmarks from 1,262 users"
SKEWS = "Landmarks-User-160k dataset, with a mean EMD of 1.94"
SPECIES_SKEW = "iNaturalist-User-120k, with a mean EMD of 1.83"
STARTS = "different centralized learning accuracy (51.4% from scratch and 57.9% from pretrained)"
FULL = "1,835 of the landmarks have exactly 10 test images"
CLIENTS = "partition each into 100 clients, with 500 training examples each"
COUNTS = {  # clients of the partitions of iNaturalist, where the text says
    "user_120k": (9275, "Section 4.1", "a population of 9,275 clients"),
    "geo_100": (3606, "Section 4.1", "ranges from 11 to 3,606"),
    "geo_3k": (135, "Figure 6", "Geo-3k and user split User-120k each with 135 clients and 9275 clients"),
    "geo_30k": (11, "Section 4.1", "ranges from 11 to 3,606"),
}
ROUNDS = {"1k": 1000, "2.5k": 2500, "5k": 5000}
BATCHES = {"10k": 10_000, "25k": 25_000, "50k": 50_000}


def _label(name: str, vc: str, ir: str, cohort: str) -> str:
    """What a method is called in a row."""
    parts = [name, "FedVC" if vc == "yes" else "", "FedIR" if ir == "yes" else ""]
    return f"{' + '.join(part for part in parts if part)}, K={cohort}"


def _after(printed: list[str], where: str) -> Expected:
    """Accuracies after 1k, 2.5k and 5k rounds."""
    return {
        AfterRounds("accuracy", rounds): PrintedValue(float(text), "%", f"{where}, {column}")
        for (column, rounds), text in zip(ROUNDS.items(), printed, strict=True)
    }


def table2() -> Iterator[ExhibitRow]:
    for data, name, vc, cohort, *printed in cells(TABLE2)[1:]:
        row = f"{data}, {_label(name, vc, 'no', cohort)}"
        within: Expected = {
            WithinBatches("accuracy", batches): PrintedValue(float(text), "%", f"Table 2, row {row}, {column} batches")
            for (column, batches), text in zip(BATCHES.items(), printed[3:], strict=True)
        }
        expected = _after(printed[:3], f"Table 2, row {row}") | within
        yield ExhibitRow(row, (species(SPLITS[data], name, int(cohort), vc == "yes"),), expected, species_bound())
    yield _centralized(species_bound(), "Centralized", 57.9, "Table 2, row Centralized")


def table3() -> Iterator[ExhibitRow]:
    for name, vc, ir, cohort, *printed in cells(TABLE3)[1:]:
        row = _label(name, vc, ir, cohort)
        run = species("user_120k", name, int(cohort), vc == "yes", ir == "yes")
        yield ExhibitRow(row, (run,), _after(printed, f"Table 3, row {row}"), species_bound())
    yield _centralized(species_bound(), "Centralized", 57.9, "Table 3, row Centralized")


def table4(layers: tuple[str, ...] = ("two", "all")) -> Iterator[ExhibitRow]:
    for name, ir, cohort, *printed in cells(TABLE4)[1:]:
        for part in layers:
            row = f"{_label(name, 'no', ir, cohort)}, {part} layers"
            numbers = printed[:3] if part == "two" else printed[3:]
            run = landmarks(part, name, ir == "yes", int(cohort))
            yield ExhibitRow(row, (run,), _after(numbers, f"Table 4, row {row}"), landmarks_bound(part))
    for part in layers:
        row, value = f"Centralized, {part} layers", 40.27 if part == "two" else 67.05
        yield _centralized(landmarks_bound(part), row, value, f"Table 4, row {row}")


def table5() -> Iterator[ExhibitRow]:
    for name, start, cohort, *printed in cells(TABLE5)[1:]:
        row = f"{name}, {start}, K={cohort}"
        expected: Expected = {}
        for share, text in zip((0.1, 0.5, 0.9), printed, strict=True):
            where, beyond = f"Table 5, row {row}, {share:.0%}", text[0] == ">"
            rounds, _, multiple = text.strip(">)").replace("k", "000").partition("(")
            expected[RoundsTo(share)] = PrintedValue(int(rounds), "rounds", where, beyond=beyond)
            if multiple:
                expected[Multiple(share)] = PrintedValue(float(multiple), "times", where)
        yield ExhibitRow(row, (started(start, name, int(cohort)),), expected, species_bound(start))
    for start, value in (("scratch", 51.4), ("pretrained", 57.9)):
        yield _centralized(species_bound(start), f"Centralized, {start}", value, f'Table 5: "{STARTS}"')


def _centralized(run: RunRecipe, row: str, value: float, where: str) -> ExhibitRow:
    return ExhibitRow(row, (run,), {Final("accuracy"): PrintedValue(value, "%", where)})


def at_rounds(rows: tuple[ExhibitRow, ...], rounds: int) -> tuple[ExhibitRow, ...]:
    """Rows of a table with what it says after so many rounds alone."""
    after = AfterRounds("accuracy", rounds)
    return tuple(
        ExhibitRow(row.name, row.runs, {after: row.expected[after]}, row.centralized_baseline)
        for row in rows
        if after in row.expected
    )


def partitions() -> Iterator[ExhibitRow]:
    """Figure 6c: every partition of iNaturalist, at 2.5k rounds."""
    for data, split in SPLITS.items():
        for name in ("FedAvg", "FedAvgM"):
            for vc in ("no", "yes"):
                run = species(split, name, 10, vc == "yes", rounds=0 if data in ("Geo-3k", "User-120k") else 2500)
                expected: Expected = {Relative(2500): None}
                yield ExhibitRow(f"{data}, {_label(name, vc, 'no', '10')}, relative", (run,), expected, species_bound())


def figure4() -> Iterator[ExhibitRow]:
    """For each partition, the best of the grid."""
    for classes, alphas in ALPHAS.items():
        for name, momenta in (("FedAvg", MOMENTA[-1:]), ("FedAvgM", MOMENTA[:-1])):
            for cohort, epochs in REPORTING[:3]:
                for alpha in alphas:
                    grid = [(rate, momentum) for rate in RATES for momentum in momenta]
                    runs = tuple(cifar_run(classes, alpha, cohort, epochs, *point) for point in grid)
                    row = f"CIFAR-{classes}, {name}, K={cohort}, alpha={alpha:g}"
                    yield ExhibitRow(row, runs, {Relative(): None}, cifar_bound(classes))


def figure8() -> Iterator[ExhibitRow]:
    """For each partition and effective learning rate, the best momentum."""
    for classes, alphas in ALPHAS.items():
        for cohort, epochs in REPORTING:
            for alpha in alphas:
                for rate in RATES:
                    runs = tuple(cifar_run(classes, alpha, cohort, epochs, rate, momentum) for momentum in MOMENTA)
                    row = f"CIFAR-{classes}, K={cohort}, E={epochs}, alpha={alpha:g}, eta_eff=10^{rate:g}"
                    yield ExhibitRow(row, runs, {Relative(): None}, cifar_bound(classes))


def _text(value: float, unit: str, section: str, quote: str) -> PrintedValue:
    return PrintedValue(value, unit, f'{section}: "{quote}"')


def table1() -> Iterator[ExhibitRow]:
    datasets = {
        "CIFAR-10": (cifar_bound(10), [cifar(10, ALPHAS[10][0])]),
        "CIFAR-100": (cifar_bound(100), [cifar(100, ALPHAS[100][0])]),
        "iNaturalist-Geo": (species_bound(), [inaturalist("geo_30k"), inaturalist("geo_100")]),
        "iNaturalist-User-120k": (species_bound(), [inaturalist("user_120k")]),
        "Landmarks-User-160k": (landmarks_bound("all"), [LANDMARKS]),
    }
    for row, clients, classes, examples, accuracy in cells(TABLE1)[1:]:
        run, stores = datasets[row]
        where = f"Table 1, row {row}"
        expected: Expected = {
            Count("classes"): PrintedValue(int(classes), "classes", f"{where}, classes"),
            Count("train images"): PrintedValue(int(examples), "images", f"{where}, examples"),
            Final("accuracy"): PrintedValue(float(accuracy), "%", f"{where}, centralised accuracy"),
        }
        for store, text in zip(stores, clients.split("-"), strict=True):
            split = store.path.removeprefix("data/inaturalist_") if len(stores) > 1 else ""
            expected[Count("train users", split)] = PrintedValue(int(text), "clients", f"{where}, clients")
        yield ExhibitRow(row, (run,), expected, stores=tuple(stores))


def figure2() -> Iterator[ExhibitRow]:
    for data, split in SPLITS.items():
        expected: Expected = {Count("train users"): None}
        if split in COUNTS:
            count, section, quote = COUNTS[split]
            expected[Count("train users")] = _text(count, "clients", section, quote)
        if data == "User-120k":
            expected[Count("classes")] = _text(1203, "classes", "Section 4.1", BALANCED)
            expected[Count("train images")] = _text(120_300, "images", "Section 4.1", BALANCED)
            expected[Count("mean EMD")] = _text(1.83, "", "Section 6.2", SPECIES_SKEW)
        yield ExhibitRow(data, expected=expected, stores=(inaturalist(split),))


def figure3() -> Iterator[ExhibitRow]:
    expected: Expected = {
        Count("train images"): _text(164_172, "images", "Section 4.2", TRAIN),
        Count("classes"): _text(2028, "classes", "Section 4.2", TRAIN),
        Count("train users"): _text(1262, "clients", "Section 4.2", TRAIN),
        Count("test images"): _text(19_526, "images", "Section 4.2", "contains 19,526 images"),
        Count("classes with 10 test images"): _text(1835, "classes", "Section 4.2", FULL),
        Count("mean EMD"): _text(1.94, "", "Section 6.2", SKEWS),
    }
    yield ExhibitRow("Landmarks-User-160k", expected=expected, stores=(LANDMARKS,))


def figure10() -> Iterator[ExhibitRow]:
    expected: Expected = {
        Count("train users"): _text(100, "clients", "Appendix B.1", CLIENTS),
        Count("fewest train images of a user"): _text(500, "images", "Appendix B.1", CLIENTS),
        Count("most train images of a user"): _text(500, "images", "Appendix B.1", CLIENTS),
    }
    for classes, alphas in ALPHAS.items():
        for alpha in alphas:
            yield ExhibitRow(f"CIFAR-{classes}, alpha={alpha:g}", expected=expected, stores=(cifar(classes, alpha),))
