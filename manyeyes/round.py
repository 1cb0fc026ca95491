"""The round: Algorithm 1 of Hsu, Qi and Brown (2020), the same for every algorithm, engine and federation."""

from __future__ import annotations

import math
import secrets
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from manyeyes.algorithm import BESIDE, Algorithm, Diverged, Privacy, Report, State, check_private, traffic
from manyeyes.chance import generator, generators
from manyeyes.chance import key as chance_key
from manyeyes.guarantee import check_plan, protected
from manyeyes.population import Floats, Ints, Population
from manyeyes.work import Aggregate, Client, Clients, ClientStore, Engine, Plan, Work, nothing

STRIDE = 1_000_003  # between the seeds of two steps: more than a model has layers


def start(algorithm: Algorithm, weights: Tensor, trained: int) -> State:
    """The state before round 1."""
    theta = weights[:trained]
    correction = None if algorithm.correct is None else algorithm.correct.start(theta)
    privacy = {} if algorithm.privacy is None else algorithm.privacy.start()
    return State(0, weights, algorithm.server.start(theta), correction, privacy)


def plan_round(algorithm: Algorithm, population: Population, seed: int, round: int, dice: int = 0) -> Plan:
    """Select clients and draw what each trains on, with `dice` random numbers for each example's augmentation."""
    users = algorithm.cohort.select(population, generator(seed, "cohort", round))
    keys, held = population.users[users].tolist(), population.sizes[users].tolist()
    if not keys:  # chance may choose nobody
        return Plan(seed, round, ())
    drawn = [algorithm.draw.rows(n, rng) for n, rng in zip(held, generators(seed, "draw", round, keys), strict=True)]
    rolling = generators(seed, "augment", round, keys if dice else ())
    rolled = [rng.random((*rows.shape, dice), np.float32) for rows, rng in zip(drawn, rolling, strict=False)]
    dropout_K = np.array([chance_key(seed, "dropout", round, key) % 2**40 for key in keys])
    sizes_K, steps_K = np.array([algorithm.draw.size(n) for n in held]), np.array([len(rows) for rows in drawn])
    weights_K = algorithm.weigh.weights(algorithm, sizes_K, steps_K, round)

    # the T steps of all clients in one array, of which each has a part: many times quicker than arrays of their own
    ends_K = np.cumsum(steps_K)
    rows_TB, step_T = np.concatenate(drawn), np.arange(ends_K[-1]) - np.repeat(ends_K - steps_K, steps_K)
    if (rows_TB >= np.repeat(held, steps_K)[:, None]).any():  # which would be an example of another user
        raise ValueError(f"draw={type(algorithm.draw).__name__} returned a position beyond the examples of a client")
    real_TB = rows_TB >= 0
    examples_TB = np.where(real_TB, rows_TB + np.repeat(population.offsets[users], steps_K)[:, None], -1)
    weights_TB = real_TB.astype(np.float32)
    seeds_T = np.repeat(dropout_K, steps_K) + STRIDE * step_T
    clients, first = [], 0
    columns = zip(users.tolist(), keys, sizes_K.tolist(), weights_K.tolist(), ends_K.tolist(), strict=True)
    for k, (user, key, size, weight, last) in enumerate(columns):
        ratios = example_weights(algorithm, population, user)
        if ratios is not None:
            weights_TB[first:last] *= ratios[drawn[k]]
        whole = population.examples(user) if algorithm.correct and algorithm.correct.whole else None
        client = Client(
            user=user,
            key=key,
            size=size,
            weight=weight,
            rows_SB=examples_TB[first:last],
            weights_SB=weights_TB[first:last],
            dice_SBD=rolled[k] if dice else None,
            seeds_S=seeds_T[first:last],
            whole=whole,
            whole_weights=ratios if ratios is not None or whole is None else np.ones(len(whole), np.float32),
            only_S=algorithm.draw.only(last - first),
        )
        clients.append(client)
        first = last
    return Plan(seed, round, tuple(clients))


def example_weights(algorithm: Algorithm, population: Population, user: int) -> Floats | None:
    """The weight of each example that a user holds; None where all count alike."""
    if algorithm.reweigh is None:
        return None
    counts = population.class_counts if algorithm.privacy is None else np.ones(len(population.classes), np.int64)
    ratios = algorithm.reweigh.ratios(population.histogram(user), counts)  # private: no count of other users' examples
    return ratios[population.labels.targets(population.examples(user))]


def play_round(
    algorithm: Algorithm,
    state: State,
    population: Population,
    engine: Engine,
    clients: ClientStore,
    seed: int,
    plan: Plan | None = None,
    noise: int | None = None,
) -> tuple[State, Report]:
    """One round: select clients, update locally, aggregate, step the server; a `plan` made ahead is not made again.

    `noise` decides what privacy adds, where several processes have to add the same; else the operating system does.
    """
    check_private(algorithm)
    plan = plan or plan_round(algorithm, population, seed, state.round, engine.dice)
    assert (plan.seed, plan.round) == (seed, state.round), (
        f"the plan is of round {plan.round} with seed {plan.seed}, and this is round {state.round} with seed {seed}"
    )
    held = {client.key: found for client in plan.clients if (found := clients.get(client.key))}
    personal = None if algorithm.personal is None else engine.personal(algorithm.personal)
    lr, privacy = algorithm.local.rate(state.round), algorithm.privacy
    if privacy is not None:
        check_plan(plan)
    bound = math.inf if privacy is None else privacy.bound(state.privacy)
    work = replace(
        Work(algorithm.local, lr, algorithm.correct, state.correction, personal, bound),
        compress=algorithm.compress,
        apart=algorithm.aggregate is not None and privacy is None,
    )

    result = engine.train(state.weights, plan, work, held) if plan.clients else nothing(state.weights)

    kept = [client for client, good in zip(plan.clients, result.kept_K, strict=True) if good]
    left_out = [population.name(c.user) for c, good in zip(plan.clients, result.kept_K, strict=True) if not good]
    if plan.clients and not kept and privacy is None:  # to stop would tell of them: a private round goes on with noise
        raise Diverged(f"no client of round {state.round + 1} returned a finite update")
    why = {population.name(c.user): result.why[c.key] for c in plan.clients if c.key in result.why}
    hidden: dict[str, Tensor] = {}
    if privacy is None:
        update = _combined(algorithm, result, kept, state.round, engine)
    else:
        secret = _secret(privacy, seed, state, noise)
        update, hidden = protected(privacy, result, plan, work, state.privacy, secret)
        left_out, why = ["(private)"] * len(left_out), {}  # that a user took part is not told

    theta, statistics = state.weights[: engine.trained], state.weights[engine.trained :]
    theta, server = algorithm.server.step(theta, update[: engine.trained], state.server, state.round)
    statistics = statistics - update[engine.trained :]  # BatchNorm statistics are averaged, not optimised
    weights = torch.cat([theta, statistics])
    finite = torch.isfinite(weights).all()  # asked for at the end: a device finds it out while the host reports
    correction = state.correction
    if algorithm.correct is not None and kept and privacy is None:
        correction = algorithm.correct.merge(correction, result.reports_P, len(kept), len(population.users))

    good, told = result.kept_K, len(kept) > (0 if privacy is None else 1)  # the mean of one is that one's own
    steps = [c.steps for c in plan.clients] or [0]
    examples = np.array([c.images for c in plan.clients])
    shared = len(state.weights) if personal is None else int((~personal).sum())
    up, down = traffic(algorithm, shared, engine.trained)
    report = Report(
        round=state.round + 1,
        loss=float(result.loss_K[good] @ examples[good] / examples[good].sum()) if told else math.nan,
        norm=float(result.norm_K[good].mean()) if told else math.nan,
        clients=len(plan.clients),
        images=int(examples.sum()),
        batches=max(steps) if privacy is None else math.ceil(np.mean(steps)),
        left_out=tuple(left_out),
        epsilon=None if privacy is None else privacy.spent(state.round + 1, hidden),
        clip=None if privacy is None else bound,
        bytes_up=up * len(plan.clients),
        bytes_down=down * len(plan.clients),
        why=why,
    )
    if (told and not np.isfinite(report.loss)) or not bool(finite):
        raise Diverged(f"the weights after round {report.round} are no longer finite")
    keeps = result.keeps
    if algorithm.beside is not None and plan.clients:
        own, failed = _train_beside(algorithm, state, plan, engine, held, lr)
        keeps = {k: held.get(k, {}) | own.get(k, {}) | keeps.get(k, {}) for k in sorted(own.keys() | keeps.keys())}
        for client in [c for c in kept if c.key in failed]:  # one whose update was left out is named already
            name = population.name(client.user)
            left_out.append(name if privacy is None else "(private)")
            if privacy is None:
                why[name] = failed[client.key] or f"user {name}'s own model was not finite and is not kept"
        report = replace(report, left_out=tuple(left_out), why=why)
    clients.update(keeps)
    return State(state.round + 1, weights, server, correction, hidden), report


def _combined(algorithm: Algorithm, result: Aggregate, kept: list[Client], round: int, engine: Engine) -> Tensor:
    """The clients' updates as one [W]; zeros where none is kept."""
    if not kept:
        return result.update_W
    if algorithm.aggregate is not None:
        if result.updates_KW is None:
            raise ValueError(
                f"algorithm.aggregate={type(algorithm.aggregate).__name__} compares the clients' updates and "
                f"{type(engine).__name__} returns only their sum: use engine=reference or ranks"
            )
        return algorithm.aggregate.combine(result.updates_KW[np.flatnonzero(result.kept_K)])
    return result.update_W / algorithm.weigh.total(algorithm, *_sizes(kept), round)


def _train_beside(
    algorithm: Algorithm, state: State, plan: Plan, engine: Engine, clients: Clients, lr: float
) -> tuple[dict[int, dict[str, Tensor]], dict[int, str]]:
    """What the clients keep of their own models, each from where it was or, at first, from the server's weights.

    And whose own model is not kept, with the reason if it is not numbers that are not finite.
    """
    assert algorithm.beside is not None, "no client trains a model of its own beside the shared one"
    correct, everything = algorithm.beside.correct, engine.personal(algorithm.beside.personal)
    if correct.start(torch.zeros(0)) is not None or correct.whole:
        raise ValueError(
            f"algorithm.beside corrects gradients by {type(correct).__name__}, which needs server state or the "
            "gradient of a client's whole data, and a model of the client's own has neither: use Proximal"
        )
    work = Work(algorithm.local, lr, correct, None, everything, tied=True)
    own = {
        client.key: {name.removeprefix(BESIDE): t for name, t in kept.items() if name.startswith(BESIDE)}
        for client in plan.clients
        if (kept := clients.get(client.key))
    }
    result = engine.train(state.weights, plan, work, own)
    keeps = {key: {BESIDE + name: tensor for name, tensor in kept.items()} for key, kept in result.keeps.items()}
    lost = [client.key for client, good in zip(plan.clients, result.kept_K, strict=True) if not good]
    return keeps, {key: result.why.get(key, "") for key in lost}


def _secret(privacy: Privacy, seed: int, state: State, noise: int | None) -> int:
    """What noise follows from: the run's seed, or 128 bits that the operating system draws and nobody keeps."""
    if privacy.reproducible_noise:
        return chance_key(seed, "noise", state.round)
    return secrets.randbits(128) if noise is None else noise


def _sizes(clients: list[Client]) -> tuple[Ints, Ints]:
    return np.array([c.size for c in clients]), np.array([c.steps for c in clients])
