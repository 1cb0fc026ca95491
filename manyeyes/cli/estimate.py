"""`manyeyes estimate`: what a run will take, with the settings of `manyeyes run`."""

import math
import re
from argparse import ArgumentTypeError, Namespace
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import Any

import torch
from rich.filesize import decimal as format_bytes

from manyeyes.cli.parser import Parser
from manyeyes.components.client_optimizers import resolve_schedules
from manyeyes.components.samplers import Centralized
from manyeyes.config.build import (
    build_algorithm,
    build_model,
    build_population,
    build_preprocess,
    build_run_config,
    privacy_notes,
)
from manyeyes.config.compose import compose_config
from manyeyes.core.algorithm import Algorithm
from manyeyes.core.population import Population
from manyeyes.core.state import communication_cost
from manyeyes.cost.formulas import Cluster, ModelSize, Throughput, client_disk, client_memory, mean_round, server_memory
from manyeyes.cost.measure import blank_population, cached_throughput, measure_throughput, model_size
from manyeyes.data.synthetic.dataset import SyntheticImages, splits, user_sizes
from manyeyes.engines.base import EngineBase, EngineSetup
from manyeyes.engines.distributed.data_parallel import GroupCache
from manyeyes.engines.select import choose_device
from manyeyes.io.steps import announce, shows_progress
from manyeyes.models.flat import FlatModel
from manyeyes.report.text import format_duration
from manyeyes.training.progress import show_progress
from manyeyes.training.setup import calibrate_privacy, check_norm_statistics

USAGE = """manyeyes estimate [setting=value ...] [--cohorts K,K] [--ranks R,R] [--images-per-second N]

What a run will take, with the settings of `manyeyes run`; nothing is trained or written. A few clients are timed on
this machine, on one thread or on the GPU, unless --images-per-second gives the speed."""
BOTTLENECK = 0.5  # of the rounds, from which a single client is named as what limits the speed


@dataclass(frozen=True, eq=False)
class Estimate:
    """What the costs of a run are computed from."""

    config: Any
    population: Population
    algorithms: dict[int, tuple[Algorithm, int]]  # by cohort size, with the rounds that the privacy budget allows
    model: ModelSize
    cluster: Cluster


def main(argv: list[str]) -> int:
    args = _parser().parse_intermixed_args(argv)
    with show_progress("estimate", shows_progress()):
        lines = [*report(make_estimate(args), args.ranks)]
    print("\n".join(lines))
    return 0


def make_estimate(args: Namespace) -> Estimate:
    """Build the run that the arguments describe, without images, and measure how fast its clients train."""
    config = compose_config(args.settings)
    build_run_config(config)  # refuses invalid settings
    if config.engine.threads:
        torch.set_num_threads(config.engine.threads)
    population, preprocess = training_population(config), build_preprocess(config)
    channels = population.image_shape[2]
    algorithm = resolve_schedules(build_algorithm(config), config.rounds)
    if isinstance(algorithm.sampler, Centralized):
        raise ValueError("sampler=centralized has no clients to estimate the cost of: choose another sampler")
    algorithms = _with_cohorts(algorithm, population, args.cohorts, config.rounds)
    config.model.pretrained = None  # changes neither time nor size
    device = choose_device(config.engine.device)
    model, host_model = (FlatModel(build_model(config, population).to(kind)) for kind in (device, "cpu"))
    check_norm_statistics(algorithm, model)
    setup = EngineSetup(host_model, population, preprocess, torch.device("cpu"))
    layers = algorithm.personal_layers
    num_personal = 0 if layers is None else int(EngineBase(setup).personal_mask(layers).sum())
    batch_size = algorithm.batching.batch_size
    if args.images_per_second:
        throughput = Throughput(0.0, 0.0, 1 / args.images_per_second)
    else:
        key = f"{config.model} {population.image_shape} {preprocess} {batch_size} {algorithm.client_optimizer} {device}"
        measure = partial(measure_throughput, algorithm, model, population, preprocess, device)
        announce("timing a few clients on this machine", "about 10 s")
        throughput = cached_throughput(key, measure, args.measure)
    needs_full_gradient = algorithm.correction is not None and algorithm.correction.needs_full_gradient
    can_group = device.type == "cpu" and not needs_full_gradient
    allreduce_cost = GroupCache(host_model, setup.image_size, channels).allreduce_cost if can_group else math.inf
    cluster = Cluster(throughput, args.bandwidth * 1e6, allreduce_cost)
    size = model_size(host_model, num_personal, batch_size, setup.image_size, channels)
    return Estimate(config, population, algorithms, size, cluster)


def report(estimate: Estimate, ranks: list[int]) -> Iterator[str]:
    """Yield lines about the model and each client, a row for each cohort and number of ranks, then notes."""
    config, population, model = estimate.config, estimate.population, estimate.model
    algorithm = next(iter(estimate.algorithms.values()))[0]
    up, down = communication_cost(algorithm, model.num_shared, model.num_trainable)
    disk, num_users, speed = client_disk(algorithm, model), len(population.user_ids), estimate.cluster.throughput
    yield (
        f"{config.model.name}: {model.num_parameters:,} parameters, {model.num_shared:,} of them shared; "
        f"{num_users:,} users with {len(population):,} images, {population.num_examples.mean():.1f} on average and "
        f"{population.num_examples.max():,} at most; {config.algorithm.name}, {config.rounds:,} rounds"
    )
    yield (
        f"A client uploads {format_bytes(up)} and downloads {format_bytes(down)} per round, needs "
        f"{format_bytes(client_memory(algorithm, model))} of memory, and keeps {format_bytes(disk)} between rounds "
        f"({format_bytes(disk * num_users)} for all users)"
    )
    times = (f"{1e3 * getattr(speed, f'per_{unit}'):.3g} ms per {unit}" for unit in ("client", "step", "image"))
    yield f"A rank takes {', '.join(times)}"
    rows = []
    for (cohort_size, (sized, rounds)), num_ranks in product(estimate.algorithms.items(), ranks):
        cost = mean_round(sized, population, model, estimate.cluster, num_ranks, config.seed)
        row = {
            "cohort": f"{cohort_size:,}",
            "ranks": f"{num_ranks}",
            "images": f"{cost.images:,.0f}",
            "s per round": f"{cost.seconds:.3g}" if cost.seconds < 1000 else f"{cost.seconds:,.0f}",
            "idle": f"{cost.idle_fraction:.0%}" + (" *" if cost.single_client >= BOTTLENECK else ""),
            "up": format_bytes(int(cost.clients * up)),
            "down": format_bytes(int(cost.clients * down)),
            "server": format_bytes(server_memory(sized, model, cohort_size)),
            "clients": format_bytes(min(num_ranks, cohort_size) * client_memory(sized, model)),
            "whole run": format_duration(cost.seconds * rounds),
        }
        rows.append(row)
    yield from ("", f"| {' | '.join(rows[0])} |", f"|{'---:|' * len(rows[0])}")
    yield from (f"| {' | '.join(row.values())} |" for row in rows)
    yield "\nMeans over the first 50 rounds, without evaluation. Clients: memory of those that train at the same time."
    if any(row["idle"].endswith("*") for row in rows):
        yield "* In half of the rounds or more the slowest rank has a single client: more ranks bring little."
    yield from _limits(estimate)


def _limits(estimate: Estimate) -> Iterator[str]:
    """Yield what may end the run before its last round, and what its privacy guarantees."""
    config = estimate.config
    yield from privacy_notes(config)
    if config.max_local_batches:
        yield f"max_local_batches={config.max_local_batches} may end the run before the {config.rounds:,} rounds above."
    for cohort_size, (algorithm, rounds) in estimate.algorithms.items():
        if rounds < config.rounds:
            yield f"Cohort {cohort_size:,}: the privacy budget allows {rounds:,} of {config.rounds:,} rounds."
        if algorithm.privacy is not None:
            yield f"Cohort {cohort_size:,}: {algorithm.privacy.describe()}"


def training_population(config: Any) -> Population:
    """Return the users that would be trained on; synthetic ones without images, so that there may be any number."""
    if config.data.name != "synthetic" or config.partitioner is not None:
        population = build_population(config)
        return population.split("train") if "split" in population.columns else population
    options = {name: value for name, value in config.data.items() if name not in ("name", "task")}
    dataset = SyntheticImages(**options)
    num_classes = {"single": dataset.coarse, "coarse": dataset.coarse, "fine": dataset.fine, "rating": 5}
    if config.data.task not in num_classes:
        raise ValueError(f"data.task is {config.data.task!r}: choose {', '.join(num_classes)}")
    counts_U, shape = user_sizes(dataset), (dataset.size, dataset.size, 3)
    return blank_population(counts_U, shape, num_classes[config.data.task], splits(dataset, counts_U)).split("train")


def _with_cohorts(
    algorithm: Algorithm, population: Population, cohort_sizes: list[int] | None, rounds: int
) -> dict[int, tuple[Algorithm, int]]:
    """Return the algorithm with each cohort size, and the number of rounds that its privacy budget allows."""
    sampler, num_users = algorithm.sampler, len(population.user_ids)
    sized = {}
    for cohort_size in cohort_sizes or [getattr(sampler, "cohort_size", num_users)]:
        if hasattr(sampler, "cohort_size"):
            algorithm = replace(algorithm, sampler=replace(sampler, cohort_size=cohort_size))  # type: ignore[type-var]
        elif cohort_size != num_users:
            raise ValueError(f"{type(sampler).__name__} takes all {num_users} users: leave out --cohorts")
        algorithm.validate(population)
        sized[cohort_size] = calibrate_privacy(algorithm, population, rounds)
    return sized


def _positive_ints(text: str) -> list[int]:
    if not all(re.fullmatch(r"0*[1-9]\d{0,8}", number) for number in text.split(",")):
        raise ArgumentTypeError(f"{text!r}: give whole numbers of at least 1, separated by commas")
    return [int(number) for number in text.split(",")]


def _positive_float(text: str) -> float:
    with suppress(ValueError):
        if 0 < float(text) < math.inf:
            return float(text)
    raise ArgumentTypeError(f"{text!r}: give a number above 0")


def _parser() -> Parser:
    parser = Parser("manyeyes estimate", usage=USAGE, example="manyeyes estimate algorithm.cohort_size=100 --ranks 1,8")
    parser.add_argument("settings", nargs="*", metavar="setting=value", help="as for manyeyes run")
    parser.add_argument("--cohorts", type=_positive_ints, help="clients per round, separated by commas (the setting)")
    parser.add_argument("--ranks", type=_positive_ints, default=[1, 2, 4, 8], help="processes or GPUs (1,2,4,8)")
    parser.add_argument("--images-per-second", type=_positive_float, help="of a rank, instead of a measurement")
    parser.add_argument("--bandwidth", type=_positive_float, default=1000.0, help="MB/s between ranks (%(default)g)")
    parser.add_argument("--measure", action="store_true", help="measure again, even if there is a cached measurement")
    return parser
