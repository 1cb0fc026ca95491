"""Numbers of the README and of docs/, taken from the records, so that a page cannot differ from what was measured.

    python -m benchmarks.page_numbers

A page has `<!-- record: NAME -->` before a number or a table and `<!-- end -->` behind it; this command replaces what is
between them by the text of `NUMBERS`. `tests/test_page_numbers.py` fails if a page has another text.
"""

import csv
import itertools
import json
import re
import statistics
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from manyeyes.report.chart import Axis, Chart, Series
from manyeyes.report.svg import render_svg

ROOT = Path(__file__).parents[1]
RECORDS = ROOT / "benchmarks" / "records"
FIGURE = ROOT / "docs" / "papers" / "hsu2020_figure4_cifar10_chart-1.csv"
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
MARKED = re.compile(r"(<!-- record: ([\w.]+) -->)(.*?)(<!-- end -->)", re.S)
MIB = 2**20
TORCH = "PyTorch's"  # in records of layers
UNBOUNDED = ("", ", without protection")  # ends of the names of runs in benchmarks/hostile_clients.py
HONEST = {
    "alike": "",
    "sizes from 1 to 6": "unequal",
    "Dirichlet, alpha 0.5": "dirichlet 0.5",
    "Dirichlet, alpha 0.1": "dirichlet 0.1",
}
Rows = list[dict[str, Any]]


@cache
def record(name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((RECORDS / f"{name}.json").read_text())
    return content


def rows(name: str, workload: str = "") -> Rows:
    """Return the rows of a record, of one of its workloads if one is named."""
    return [row for row in record(name)["rows"] if workload in ("", row["case"]["work"])]


def ours(name: str, private: bool = False) -> float:
    """Return the seconds of the first row of manyeyes."""
    return next(
        seconds(row) for row in rows(name) if row["case"]["runner"] == "ours" and row["case"]["private"] == private
    )


def best(name: str, runner: str, bf16: bool | None = None) -> float:
    """Return the seconds of a peer in its fastest setting, of those in bf16 or in float32 if asked for."""
    return min(
        seconds(row)
        for row in rows(name)
        if row["case"]["runner"] == runner and (bf16 is None or bf16 == ("bf16" in row["label"]))
    )


def seconds(row: dict[str, Any]) -> float:
    return statistics.median(row["seconds"])


def ratio(name: str, peer: str) -> float:
    return best(name, peer) / ours(name)


def table(header: str, *lines: str, left: tuple[int, ...] = (0,)) -> str:
    """Return a table whose columns `left` are aligned to the left, and the others to the right."""
    names = header.split(" | ")
    rule = "|".join("---" if column in left else "---:" for column in range(len(names)))
    return "\n".join([f"| {header} |" if names[0] else f"|{header} |", f"|{rule}|", *(f"| {line} |" for line in lines)])


def milliseconds(value: float) -> str:
    return f"{1000 * value:.1f} ms" if value < 0.02 else f"{1000 * value:.0f} ms"


def precise(value: float) -> str:
    """Return a time with at least two digits that count."""
    return f"{value:.2f}" if value < 1 else f"{value:.1f}"


def cpu_rounds() -> str:
    names = {
        "ours": "manyeyes, auto (`multiprocess`, 2 workers)",
        "pfl": "pfl, best setting: 2 processes",
        "plain": "plain loop, 2 threads",
        "flower": "Flower's simulation",
    }
    return table(
        "seconds per round | float32 | bf16",
        *(
            f"{text} | {best('small', peer, False):.3f} | {best('small', peer, True):.3f}"
            for peer, text in names.items()
        ),
    )


def cpu_layers() -> str:
    names = {
        "5 x 5, 50 x 16 x 16 x 64": "5 x 5, 50 x 16 x 16 x 64 (LeNet)",
        "5 x 5, 4 x 16 x 16 x 64": "5 x 5, 4 x 16 x 16 x 64",
        "3 x 3, 16 x 28 x 28 x 128": "3 x 3, 16 x 28 x 28 x 128",
        "3 x 3, 16 x 14 x 14 x 256": "3 x 3, 16 x 14 x 14 x 256",
        "linear, 50 x 4096 to 384": "linear, 50 rows, 4096 to 384 (LeNet)",
        "linear, 10 x 1600 to 512": "linear, 10 rows, 1600 to 512",
        "linear, 64 x 1280 to 1203": "linear, 64 rows, 1280 to 1203",
    }
    layers = record("cpu_layers")["milliseconds"]
    pairs = {text: (layers[name]["ours"], layers[name]["PyTorch's"]) for name, text in names.items()}
    return table(
        "float32, images x height x width x channels | manyeyes | PyTorch",
        *(f"{text} | {precise(ours)} | {precise(torch)}" for text, (ours, torch) in pairs.items()),
    )


def memory() -> str:
    names = {"lenet": "LeNet", "resnet18": "ResNet18-GN", "mobilenet_v2": "MobileNetV2-GN"}
    lines = []
    for name, text in names.items():
        cells = record("memory")["seconds"][name]
        cell = [f"{cells[kind][what]:.2f}" for what in ("round", "evaluation") for kind in ("kept", "given back")]
        lines.append(" | ".join([text, *cell]))
    return table(" | round, retained | returned | evaluation, retained | returned", *lines)


def crowd() -> str:
    lines = []
    for row in rows("scaling"):
        digits = 4 if seconds(row) < 1 else 3
        median, low, high = (
            f"{value:.{digits}f}" for value in (seconds(row), min(row["seconds"]), max(row["seconds"]))
        )
        images, mib = f"{row['images_per_second']:,.0f}", f"{row['host_bytes'] / MIB:,.0f}"
        size = f"{row['case']['users']:,} | {row['case']['cohort']:,}"
        lines.append(f"{size} | {median} ({low} to {high}) | {images} | {mib}")
    return table("users | clients per round | seconds per round | images/s | host MiB", *lines, left=())


GOALS = {
    "hsu": ("h200_hsu", "9 ms, 24"),
    "pflcifar": ("h200_pflcifar", "10 ms, 70"),
    "flair": ("h200_flair", "0.40 s, 18"),
    "mobilenet": ("h200_mobilenet", "5"),
}
PRIVATE = {"hsu": "h200_hsu_private", "pflcifar": "h200_pflcifar", "flair": "h200_flair_private"}


def duration(value: float) -> str:
    """Return the time of a round in milliseconds, or from a tenth of a second in seconds with three digits."""
    return f"{value:.3g} s" if value > 1 else f"{value:.3f} s"


def round_time(workload: str, value: float) -> str:
    return milliseconds(value) if workload in ("hsu", "pflcifar") else duration(value)


def h200() -> str:
    lines = []
    for workload, (name, goal) in GOALS.items():
        times = [round_time(workload, value) for value in (ours(name), best(name, "pfl"))]
        lines.append(f"`{workload}` | {times[0]} | {times[1]} | {ratio_text(workload)} | {goal} | `{name}.json`")
    for workload, name in PRIVATE.items():
        private, public = (round_time(workload, ours(name, private=is_private)) for is_private in (True, False))
        lines.append(f"`{workload}`, private | {private} ({public} without) | | | +10 % | `{name}.json`")
    return table(" | manyeyes | pfl | ratio | goal | record", *lines, left=(0, 5))


def ratio_text(workload: str) -> str:
    value = ratio(GOALS[workload][0], "pfl")
    return f"{value:.0f}" if value > 50 else f"{value:.1f}"


def central() -> str:
    names = {"ours": "manyeyes, bf16", "handwritten": "handwritten, autocast, compiled"}
    lines = [
        f"{names[row['case']['runner']]} | {seconds(row):.3f} | {row['images_per_second']:,.0f}"
        for row in rows("h200_central")
    ]
    return table(" | seconds per epoch of 16 batches | images/s", *lines)


def kernels() -> str:
    layers: dict[str, dict[str, float]] = record("h200_kernels")["microseconds"]
    return table(
        "bf16, images x height x width x channels | manyeyes | PyTorch | memory",
        *(f"{name} | {row['ours']:.0f} | {row[TORCH]:.0f} | {row['memory']:.0f}" for name, row in layers.items()),
    )


def private_rounds() -> str:
    """Return how long a private round takes, next to the same round without privacy."""
    cases: list[tuple[str, str, str, str]] = [
        ("vmap", "H200, bf16, `hsu`", "h200_hsu_private", ""),
        ("vmap", "H200, bf16, `pflcifar`", "h200_pflcifar", ""),
        ("cuda_graphs", "H200, bf16, `flair`", "h200_flair_private", ""),
        ("vmap", "one core, `small`", "private_cpu", "vector"),
        ("cuda_graphs", "one core, `small`", "private_cpu", "lanes"),
    ]
    lines = []
    for engine, machine, name, former in cases:  # `former` is what the record calls the engine
        of_engine = [row for row in rows(name) if former in row["label"] and row["case"]["runner"] == "ours"]
        public, private = (
            next(seconds(row) for row in of_engine if row["case"]["private"] == kind) for kind in (False, True)
        )
        digits = 2 if public > 1 else 3
        times = [milliseconds(seconds) if seconds < 0.1 else f"{seconds:.{digits}f} s" for seconds in (public, private)]
        change = 100 * (private / public - 1)
        percent = f"{change:+.1f}" if abs(change) < 0.5 else f"{change:+.0f}"
        lines.append(
            f"`{engine}` | {machine} (`benchmarks/records/{name}.json`) | {times[0]} | {times[1]} | {percent} %"
        )
    return table("engine | machine, workload, record | without | private | difference", *lines, left=(0, 1))


def figure4() -> str:
    """Return the relative accuracies of figure 4 of Hsu et al. on the real CIFAR-10."""
    with FIGURE.open() as file:
        points = [*csv.DictReader(file)]
    lines = []
    for name in ("FedAvg", "FedAvgM"):
        cells = [f"{float(point['relative accuracy']):.2f}" for point in points if point["series"] == f"{name}, K=10"]
        lines.append(" | ".join([name, *cells]))
    header = "Dirichlet concentration | 100 | 10 | 1 | 0.5 | 0.2 | 0.1 | 0.05 | 0"
    return table(header, *lines, left=(*range(9),))


FORMER_NAMES = {"centralised": "centralized", "half the rate": "half the learning rate"}  # in records
MODELS = {"resnet34": "ResNet34", "mobilenet_v1": "MobileNet-v1"}
METHODS = ("FedPer", "FedAvg", "FedAvg, fine-tuned")


def study(population: str) -> str:
    """Return the accuracy of each algorithm on one of the populations of benchmarks/algorithms.py."""
    runs, lines = record("algorithms")[population], []
    centralized = statistics.mean(runs["centralised"]["accuracy"])
    for name, run in runs.items():
        for former, text in FORMER_NAMES.items():
            name = name.replace(former, text)
        mean, deviation = statistics.mean(run["accuracy"]), statistics.stdev(run["accuracy"])
        cells = [f"{100 * mean:.1f} ± {100 * deviation:.1f}", f"{mean / centralized:.2f}"]
        cells += [f"{100 * statistics.mean(run['unrest']):.1f}", f"{statistics.mean(run['batches']):,.0f}"]
        lines.append(" | ".join([name, *cells]))
    return table(" | accuracy % | relative | fluctuation % | batches of the largest client", *lines)


def balance() -> str:
    lines = []
    for row in record("balance")["rows"]:
        alone, groups = row["alone"], row["teams"]
        cells = [f"{100 * alone['longest']:.0f}% of rounds", f"{100 * alone['idle']:.1f}%"]
        cells += [f"{100 * groups[name]:.1f}%" for name in ("idle", "useful")]
        lines.append(" | ".join([f"{row['cohort']:,}", str(row["ranks"]), *cells]))
    columns = "largest client exceeds a fair part | idle without groups | idle with groups | useful with groups"
    return table(f"cohort | ranks | {columns}", *lines, left=())


def ranks() -> str:
    names = {"even": "20 clients of 50 images, LeNet, 32 px", "flair": "50 clients with FLAIR's user sizes"}
    work = record("ranks")["work"]
    return table(
        " | 1 rank | 2 ranks | speedup",
        *(
            f"{text} | {work[name]['one']:.2f} s | {work[name]['two']:.2f} s | {work[name]['speedup']:.2f}"
            for name, text in names.items()
        ),
    )


def personal_rows(rounds: int, classes: int) -> dict[tuple[str, str], dict[str, float]]:
    """Return the curves of each model and method, in percent by round."""
    return {
        (row["model"], row["method"]): {round: 100 * value for round, value in row["user_mean"].items()}
        for row in record("h200_personal")["rows"]
        if (row["rounds"], row["classes"]) == (rounds, classes)
    }


def personal() -> str:
    lines = []
    for model, text in MODELS.items():
        for classes in (4, 8, 10):
            curves = personal_rows(12, classes)
            cells = [f"{curves[model, method]['12']:.1f}" for method in METHODS]
            lines.append(" | ".join([text, str(classes), *cells]))
    return table(f"model | classes per client | {' | '.join(METHODS)}", *lines)


def personal_flickr() -> str:
    curves = personal_rows(20, 0)
    cells = {model: [f"{curves[model, method]['20']:.1f}" for method in METHODS] for model in MODELS}
    lines = (" | ".join([text, *cells[model]]) for model, text in MODELS.items())
    return table(f"model | {' | '.join(METHODS)}", *lines)


def personal_curve() -> str:
    curve = personal_rows(50, 4)["mobilenet_v1", "FedPer"]
    rounds = [str(round) for round in range(5, 51, 5)]
    line = " | ".join(["MobileNet-v1", *(f"{curve[round]:.1f}" for round in rounds)])
    return table(f"rounds | {' | '.join(rounds)}", line)


def batch_statistics(run: str) -> str:
    """Return how many points a run gains with the statistics of test batches."""
    means = next(row["user_mean"] for row in record("h200_statistics")["rows"] if row["run"] == run)
    return f"{100 * (means['of batches'] - means['learned']):.1f}"


def run_of(name: str, **features: Any) -> dict[str, Any]:
    """Return the run of a record of `benchmarks/pretrained.py` that has these features."""
    runs = record(name)["runs"].values()
    return next(run for run in runs if all(run[key] == value for key, value in features.items()))


def percent(value: float) -> str:
    return f"{100 * value:.1f}"


def pretrained_heads(name: str) -> str:
    """Return the accuracy of classifiers on frozen features, for each split of CIFAR and each model."""
    lines = []
    models = {"mobilenet_v2": "MobileNetV2", "efficientnet_lite0": "EfficientNet-Lite0"}
    for dataset, alphas in {"cifar10": (100.0, 0.5, 0.0), "cifar100": (1000.0, 0.5, 0.0)}.items():
        for alpha, (model, text) in itertools.product(alphas, models.items()):
            of_model = {"dataset": dataset, "model": model, "trains": "head"}
            fedavg, fedvc, fedper = (
                run_of(name, **of_model, alpha=alpha, algorithm=algorithm, rounds=300)
                for algorithm in ("FedAvg", "FedVC + FedIR", "FedPer")
            )
            shared = (fedavg, fedvc, run_of(name, **of_model, algorithm="centralized"))
            own = (fedavg["personalized_user_mean"], fedper["user_mean"])
            cells = " | ".join(map(percent, (*(run["accuracy"] for run in shared), *own)))
            lines.append(f"{dataset.upper().replace('CIFAR', 'CIFAR-')} | {alpha:g} | {text} | {cells}")
    header = "dataset | alpha | model | FedAvg | FedVC + FedIR | centralized | own images: fine-tuned | head of its own"
    return table(header, *lines, left=(0, 2))


def pretrained_chart() -> Chart:
    """Return which model suits the images of a client, by how different clients are."""
    kinds = {
        "one model for all": ("FedAvg", "user_mean"),
        "fine-tuned": ("FedAvg", "personalized_user_mean"),
        "a head of its own": ("FedPer", "user_mean"),
    }
    alphas = (100.0, 0.5, 0.0)
    series = []
    for color, (text, (algorithm, score)) in enumerate(kinds.items()):
        case = {"dataset": "cifar10", "model": "mobilenet_v2", "algorithm": algorithm}
        scores = [run_of("pretrained_cpu", **case, alpha=alpha)[score] for alpha in alphas]
        series.append(Series(text, range(len(alphas)), scores, kind="bars", color=color))
    clients = Axis("clients", names=("alike (alpha 100)", "different (alpha 0.5)", "one class each (alpha 0)"))
    title = "CIFAR-10, classifier of MobileNetV2 at 96 px: accuracy of each client on its own images"
    return Chart("pretrained", title, clients, Axis("mean accuracy", percent=True, low=0, high=1), series)


def pretrained_times() -> str:
    """Return how long features take, and runs on them."""
    lines = []
    for name, text, size in (("pretrained_cpu", "two CPU cores, 96 px", 96), ("pretrained_h200", "H200, 224 px", 224)):
        for model in ("mobilenet_v2", "efficientnet_lite0"):
            extraction = record(name)["features"][f"cifar10-{model}-head-{size}px"]["seconds"]
            runs = [run for run in record(name)["runs"].values() if run["model"] == model and run["trains"] == "head"]
            fedavg = [run for run in runs if (run["algorithm"], run["rounds"]) == ("FedAvg", 300)]
            run_seconds, round_seconds = (
                statistics.median(run[key] for run in fedavg) for key in ("seconds", "seconds_per_round")
            )
            lines.append(
                f"{text} | `{model}` | {extraction:.0f} s | {run_seconds:.0f} s | {1000 * round_seconds:.0f} ms"
            )
    return table("machine | model | features of 60,000 images | a run of 300 rounds | a round", *lines, left=(0, 1))


def pretrained_layers() -> str:
    """Return the runs in which all layers of a pretrained model train, or adapters."""
    lines = [
        f"`{run['model']}` | {run['trains']} | {percent(run['accuracy'])} | {run['bytes_up_per_client'] / MIB:.2f} | "
        f"{run['seconds_per_round']:.2f}"
        for run in record("pretrained_h200_layers")["runs"].values()
    ]
    return table("model | trains | accuracy | MiB sent by a client per round | seconds per round", *lines, left=(0, 1))


def pretrained_people() -> str:
    """Return the runs on the photos of 207 people."""
    lines = []
    for run in record("pretrained_people")["runs"].values():
        is_new = run["dataset"] == "sign_digits"
        tested = "new people" if is_new else "other photos of the same people"
        trains = "all, from scratch" if run["model"] == "lenet" else run["trains"]
        tuned = percent(run["personalized_user_mean"]) if "personalized_user_mean" in run else ""
        cells = f"{percent(run['user_mean'])} | {tuned} | {run['rounds']} | {run['seconds']:.0f} s"
        lines.append(f"{tested} | `{run['model']}` | {trains} | {run['algorithm']} | {cells}")
    header = "tested on | model | trains | algorithm | accuracy | fine-tuned | rounds | time"
    return table(header, *sorted(lines), left=(0, 1, 2, 3))


def accuracies(name: str) -> list[float]:
    """Return the accuracy of every seed in a cell of benchmarks/hostile_clients.py, in percent."""
    return [100 * outcome["accuracy"] for outcome in record("hostile_clients")["outcomes"][name]]


def mean_and_least(name: str) -> str:
    values = accuracies(name)
    return f"{statistics.mean(values):.1f} ({min(values):.1f})" if any(values) else "stops"


def hostile_clients() -> str:
    """Return the accuracy next to hostile clients, with the bounds of a federation and without them."""
    federations = ("1 of 4 hostile", "2 of 10 hostile")
    attacks = [name.removeprefix(f"{federations[0]}: ") for name in record("hostile_clients")["outcomes"]]
    lines = [
        " | ".join([attack, *(mean_and_least(f"{f}: {attack}{bounds}") for f in federations for bounds in UNBOUNDED)])
        for attack in attacks
        if f"{federations[1]}: {attack}{UNBOUNDED[1]}" in record("hostile_clients")["outcomes"]
    ]
    return table("the hostile clients | 1 of 4 | without bounds | 2 of 10 | without bounds", *lines)


def honest_clients() -> str:
    """Return what the bounds cost where all clients are honest."""
    lines = []
    for text, data in HONEST.items():
        cells, clipped, left_out = [], 0, 0
        for clients, federation in ((4, "1 of 4 hostile"), (10, "2 of 10 hostile")):
            name = f"{clients} honest clients, {data}" if data else f"{federation}: behave"
            lost = [free - bound for free, bound in zip(accuracies(name + UNBOUNDED[1]), accuracies(name), strict=True)]
            cells += [mean_and_least(name), f"{statistics.mean(lost):.1f}"]
            clipped += sum(outcome["honest_clipped"] for outcome in record("hostile_clients")["outcomes"][name])
            left_out += sum(outcome["honest_left_out"] for outcome in record("hostile_clients")["outcomes"][name])
        lines.append(" | ".join([text, *cells, f"{clipped}, {left_out}"]))
    return table("honest clients | 4 | points lost | 10 | points lost | updates clipped, left out", *lines)


def planning(name: str) -> str:
    return f"{sum(record('planning')['microseconds'][name].values()):.0f}"


def numbers() -> dict[str, str]:
    """Return the text of every name."""
    cpu = {peer: [best("small", peer, bf16) for bf16 in (False, True)] for peer in ("ours", "pfl", "flower")}
    small, medium, large = rows("scaling")
    few_gpu, many_gpu = rows("h200_scaling")
    values = {
        "cpu_rounds": cpu_rounds(),
        "cpu_layers": cpu_layers(),
        "memory": memory(),
        "crowd": crowd(),
        "h200": h200(),
        "central": central(),
        "kernels": kernels(),
        "private_rounds": private_rounds(),
        "figure4": figure4(),
        "hostile_clients": hostile_clients(),
        "honest_clients": honest_clients(),
        "pretrained.cpu": pretrained_heads("pretrained_cpu"),
        "pretrained.h200": pretrained_heads("pretrained_h200"),
        "pretrained.times": pretrained_times(),
        "pretrained.layers": pretrained_layers(),
        "pretrained.people": pretrained_people(),
        **{f"study.{population}": study(population) for population in ("alike", "skew", "imbalance")},
        "balance": balance(),
        "ranks": ranks(),
        "personal": personal(),
        "personal.flickr": personal_flickr(),
        "personal.curve": personal_curve(),
        "hsu.time": milliseconds(ours("h200_hsu")),
        "hsu.ratio": f"{ratio('h200_hsu', 'pfl'):.0f}",
        "flair.ratio": ratio_text("flair"),
        "pflcifar.ratio": ratio_text("pflcifar"),
        "mobilenet.later": duration(ours("h200_mobilenet_ours")),
        "central.percent": f"{100 * ratio('h200_central', 'handwritten'):.0f} %",
        "central.bf16_weights": f"{best('h200_central_earlier', 'handwritten'):.3f} s",
        "central.earlier": f"{ours('h200_central_earlier'):.3f} s",
        "crowd.longer": f"{100 * (seconds(medium) / seconds(small) - 1):.0f} %",
        "crowd.memory": f"{(large['host_bytes'] - medium['host_bytes']) / MIB:.0f} MiB",
        "crowd.h200_few": milliseconds(seconds(few_gpu)),
        "crowd.h200_many": milliseconds(seconds(many_gpu)),
        "planning.few": f"{planning('50 clients of 5 images')} us",
        "planning.many": f"{planning('5,000 clients of 5 images')} us",
        "planning.flair": planning("200 users of FLAIR's sizes") + " us",
    }
    for classes in (8, 10):
        for method in ("fedper", "fedavg"):
            run = f"mobilenet_v1-64px-{classes}_classes-{method}"
            values[f"statistics.{method}_{classes}"] = batch_statistics(run)
    for peer in ("pfl", "flower"):
        for kind, precision in enumerate(("float32", "bf16")):
            values[f"cpu.{peer}_{precision}"] = f"{cpu[peer][kind] / cpu['ours'][kind]:.2f}"
    return values


def fill(page: str, texts: dict[str, str]) -> str:
    """Return a page with the numbers of the records."""

    def replaced(match: re.Match[str]) -> str:
        start, name, _, end = match.groups()
        text = texts[name]
        return f"{start}\n\n{text}\n\n{end}" if "\n" in text else f"{start}{text}{end}"

    return MARKED.sub(replaced, page)


def outdated(texts: dict[str, str]) -> Iterator[Path]:
    """Yield the pages with other numbers than the records."""
    for path in PAGES:
        page = path.read_text()
        if fill(page, texts) != page:
            yield path


def main() -> None:
    texts = numbers()
    (ROOT / "docs" / "images" / "pretrained.svg").write_text(render_svg(pretrained_chart()))
    for path in outdated(texts):
        path.write_text(fill(path.read_text(), texts))
        print(f"{path.relative_to(ROOT)}: numbers renewed")


if __name__ == "__main__":
    main()
