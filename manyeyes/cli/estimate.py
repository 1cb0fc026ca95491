"""`manyeyes plan`: the settings of a run, and a table of what it would take."""

from __future__ import annotations

import math
from argparse import ArgumentTypeError
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from manyeyes.cli.parser import Parser
from manyeyes.components.samplers import Centralized
from manyeyes.config.build import build_algorithm, build_model, build_population, build_preprocess, build_run_config
from manyeyes.config.compose import compose_config
from manyeyes.core.algorithm import Algorithm
from manyeyes.core.population import Population, SingleLabels
from manyeyes.core.state import communication_cost
from manyeyes.cost.formulas import ModelSize, Network, Throughput, client_disk, client_memory, mean_round, server_memory
from manyeyes.cost.measure import describe, remembered, time_clients
from manyeyes.data.synthetic.dataset import SyntheticImages, splits, user_sizes
from manyeyes.engines.base import EngineSetup
from manyeyes.engines.distributed.data_parallel import GroupCache
from manyeyes.engines.reference import ReferenceEngine
from manyeyes.engines.select import choose_device
from manyeyes.models.flat import FlatModel
from manyeyes.training.setup import calibrate_privacy, check_norm_statistics

Planned = dict[int, tuple[Algorithm, int]]  # by cohort: the algorithm, and the rounds that its privacy budget allows

USAGE = """manyeyes plan [group=option ...] [setting=value ...] [--cohorts K,K] [--ranks R,R] [--images-per-second N]

What a run would take, with the settings of `manyeyes run`: nothing is trained or written. Seconds come from a few
clients that are timed here, on one thread or on the GPU, or from --images-per-second."""


def main(words: list[str]) -> int:
    """Print the table."""
    given = _parser().parse_intermixed_args(words)
    config = compose_config(given.settings)
    build_run_config(config)  # which refuses what no run can be
    if config.engine.threads:
        torch.set_num_threads(config.engine.threads)
    people, algorithm = population_of(config), build_algorithm(config)
    if isinstance(algorithm.sampler, Centralized):
        raise ValueError("centralised training has no clients to plan for: choose another algorithm")
    planned = _planned(algorithm, people, given.cohorts, config.rounds)
    augment, device = build_preprocess(config), choose_device(config.engine.device)
    config.model.pretrained = None  # which change neither time nor size
    flat = FlatModel(build_model(config, people).to(device))
    check_norm_statistics(algorithm, flat)
    personal = 0
    if algorithm.personal_layers is not None:
        personal = int(
            ReferenceEngine(EngineSetup(flat, people, augment, device)).personal_mask(algorithm.personal_layers).sum()
        )
    host = FlatModel(build_model(config, people))
    model = describe(host, personal, augment, people.image_shape, algorithm.batching.batch_size)
    if given.images_per_second is None:
        name = f"{config.model} {people.image_shape} {augment} {algorithm.batching.batch_size} {algorithm.client_optimizer} {device}"
        pace = remembered(
            name, lambda: time_clients(algorithm, flat, people.image_shape, augment, device), given.measure
        )
    else:
        pace = Throughput(0.0, 0.0, 1 / given.images_per_second)
    agreeing = (
        GroupCache(host, augment.shape(*people.image_shape[:2])).allreduce_cost if device.type == "cpu" else math.inf
    )
    if algorithm.correction is not None and algorithm.correction.needs_full_gradient:
        agreeing = math.inf
    network = Network(given.bandwidth * 1e6, agreeing)
    print("\n".join(lines(config, algorithm, people, model, pace, network, planned, given.ranks)))
    return 0


def lines(
    config: Any,
    algorithm: Algorithm,
    people: Population,
    model: ModelSize,
    pace: Throughput,
    network: Network,
    planned: Planned,
    ranks: Iterable[int],
) -> Iterator[str]:
    """What is said: of the model and each client, then a row for each cohort and number of ranks, then of privacy."""
    up, down = communication_cost(algorithm, model.num_shared, model.num_trainable)
    disk = client_disk(algorithm, model)
    yield (
        f"{config.model.name}: {model.num_parameters:,} numbers, {model.num_shared:,} of them shared; "
        f"{len(people.user_ids):,} users with {len(people):,} images, {people.num_examples.mean():.1f} on average and "
        f"{people.num_examples.max():,} at most; {config.algorithm.name}, {config.rounds:,} rounds"
    )
    yield (
        f"a client: sends {size(up)} and is sent {size(down)} a round, needs {size(client_memory(algorithm, model))} "
        f"of memory, keeps {size(disk)} between rounds ({size(disk * len(people.user_ids))} for all users)"
    )
    yield (
        f"a rank: {pace.client * 1e3:.3g} ms a client, {pace.step * 1e3:.3g} ms a step, {pace.image * 1e3:.3g} ms an "
        "image"
    )
    yield ""
    head = ("cohort", "ranks", "images", "s a round", "idle", "up", "down", "server", "clients", "the run")
    yield "| " + " | ".join(head) + " |"
    yield "|" + "---:|" * len(head)
    alone = False
    for cohort, (sized, rounds) in planned.items():
        for count in ranks:
            found = mean_round(sized, people, pace, model, count, network, config.seed)
            alone |= found.longest >= 0.5
            row = (
                f"{cohort:,}",
                f"{count}",
                f"{found.images:,.0f}",
                f"{found.seconds:.3g}" if found.seconds < 1000 else f"{found.seconds:,.0f}",
                f"{found.idle_fraction:.0%}" + (" *" if found.longest >= 0.5 else ""),
                size(found.clients * up),
                size(found.clients * down),
                size(server_memory(sized, model, cohort)),
                size(min(count, cohort) * client_memory(sized, model)),
                duration(found.seconds * rounds),
            )
            yield "| " + " | ".join(row) + " |"
    yield ""
    yield "Means over the run's first 50 cohorts; without evaluation. Clients: memory of those that train at once."
    if alone:
        yield "* In half of the rounds or more the slowest rank has one client alone: more ranks bring little."
    if config.max_local_batches:
        yield f"max_local_batches={config.max_local_batches} may end the run earlier; its time is that of all rounds."
    for cohort, (sized, rounds) in planned.items():
        if rounds < config.rounds:
            allowed = f"{rounds:,} of {config.rounds:,} rounds"
            yield f"Cohort {cohort:,}: the privacy budget allows {allowed}: the run ends there."
        if sized.privacy is not None:
            yield f"Cohort {cohort:,}: {sized.privacy.describe()}"


def population_of(config: Any) -> Population:
    """Who would be trained on; of a world everything but its photographs, so that it may have any size."""
    if config.data.name == "synthetic":
        world = SyntheticImages(**{name: value for name, value in config.data.items() if name not in ("name", "task")})
        counts = user_sizes(world)
        total = int(counts.sum())
        classes = {"single": world.coarse, "coarse": world.coarse, "fine": world.fine, "rating": 5}
        if config.data.task not in classes:
            raise ValueError(f"no labels are called {config.data.task!r}: a world has {', '.join(classes)}")
        images = np.broadcast_to(np.uint8(0), (total, world.size, world.size, 3))
        names = tuple(str(number) for number in range(classes[config.data.task]))
        labels = SingleLabels(np.zeros(total, np.int64), names)
        owners = np.repeat(np.arange(world.users), counts)
        found = Population.from_arrays(images, labels, owners, split=splits(world, counts))
    else:
        found = build_population(config)
    return found.split("train") if "split" in found.columns else found


def of_size(algorithm: Algorithm, cohort: int) -> Algorithm:
    """The algorithm with another number of clients a round."""
    if not hasattr(algorithm.sampler, "clients"):
        return algorithm
    return replace(algorithm, sampler=replace(algorithm.sampler, clients=cohort))  # type: ignore[type-var]


def size(count: float) -> str:
    """Bytes as a person writes them."""
    if count < 1000:
        return f"{count:.0f} B"
    power = min(int(math.log10(count)) // 3, 5)
    return f"{count / 1000**power:.3g} {'kMGTP'[power - 1]}B"


def duration(seconds: float) -> str:
    """Seconds as a person writes them."""
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.1f} {unit}"
    return f"{seconds:.3g} s"


def _planned(algorithm: Algorithm, people: Population, cohorts: list[int] | None, rounds: int) -> Planned:
    """For each cohort the algorithm, and how many rounds would be played."""
    found: Planned = {}
    for cohort in cohorts or [getattr(algorithm.sampler, "cohort_size", len(people.user_ids))]:
        if not hasattr(algorithm.sampler, "clients") and cohort != len(people.user_ids):
            raise ValueError(
                f"{type(algorithm.sampler).__name__} takes all {len(people.user_ids)}: leave out --cohorts"
            )
        sized = of_size(algorithm, cohort)
        sized.validate(people)
        found[cohort] = calibrate_privacy(sized, people, rounds)
    return found


def _counts(word: str) -> list[int]:
    if not all(part.isdecimal() and int(part) for part in word.split(",")):
        raise ArgumentTypeError(f"{word!r}: give whole numbers of at least 1 with commas between")
    return [int(part) for part in word.split(",")]


def _speed(word: str) -> float:
    with suppress(ValueError):
        if 0 < float(word) < math.inf:
            return float(word)
    raise ArgumentTypeError(f"{word!r}: give a number above 0")


def _parser() -> Parser:
    parser = Parser("manyeyes plan", usage=USAGE)
    parser.add_argument("settings", nargs="*", metavar="setting=value", help="as for manyeyes run")
    parser.add_argument("--cohorts", type=_counts, help="clients a round, with commas between (the setting's)")
    parser.add_argument("--ranks", type=_counts, default=[1, 2, 4, 8], help="processes or GPUs (1,2,4,8)")
    parser.add_argument("--images-per-second", type=_speed, help="of a rank, instead of a measurement")
    parser.add_argument("--bandwidth", type=_speed, default=1000.0, help="MB/s between ranks (%(default)g)")
    parser.add_argument("--measure", action="store_true", help="measure again, though this model was measured before")
    return parser
