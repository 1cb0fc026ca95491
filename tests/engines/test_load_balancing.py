"""Clients are balanced over workers and groups of ranks by what they cost."""

from __future__ import annotations

import numpy as np

from manyeyes.core.plan import ClientPlan
from manyeyes.data.synthetic.users import sizes
from manyeyes.engines.load_balancing import ClientCost, balance, balance_clients, balance_with_groups


def make_client(num_images: int, num_held: int | None = None) -> ClientPlan:
    """Return a client of one step; `num_held` examples are in a full gradient."""
    indices_SB = np.append(np.arange(num_images), -1)[None]
    return ClientPlan(
        user=0,
        client_id=0,
        num_examples=0,
        weight=1.0,
        example_indices_SB=indices_SB,
        example_weights_SB=indices_SB,
        augment_uniforms_SBD=None,
        dropout_seeds_S=indices_SB,
        full_indices=None if num_held is None else np.arange(num_held),
        full_weights=None,
    )


def test_clients_are_assigned_by_cost() -> None:
    """5 and 4 are first of each worker; 3 goes to the 4, 3 to the 5, and the last 3 to the 7."""
    clients = [make_client(num_images) for num_images in (3, 5, 3, 4, 3)]
    assert balance_clients(clients, 2) == [[1, 2], [0, 3, 4]]
    assert balance_clients([make_client(3), make_client(1, num_held=9), make_client(4)], 2) == [[1], [0, 2]]
    assert balance_clients([make_client(3)], 3) == [[0], [], []]


def test_each_worker_gets_the_most_costly_first() -> None:
    assert balance([3, 5, 3, 4, 3], [0.0, 0.0]) == [[1, 2], [3, 0, 4]]


def test_a_client_that_every_rank_would_wait_for_is_trained_by_a_group() -> None:
    """Costs in images: 10 steps of 16 images and 3 more each are 190, of 218 in all; a fair part of 4 ranks is 54.5.

    Of 2, 3 and 4 members each has 10 (3 + 8), 10 (3 + 6) and 10 (3 + 4): all exceed the fair part, so the fastest.
    """
    costs = [ClientCost(1, 4), ClientCost(10, 160), ClientCost(1, 4), ClientCost(1, 11)]
    assignment = balance_with_groups(costs, 4, allreduce_cost=0)
    assert assignment.groups == [(1, [0, 1, 2, 3])]
    assert sorted(map(tuple, assignment.unsplit)) == [(), (0,), (2,), (3,)]
    assert sorted(assignment.loads) == [70, 77, 77, 84]


def test_a_group_is_as_small_as_a_fair_part_allows() -> None:
    """190 and 100 clients of 4: a fair part is 147.5, and the cost for each of 2 members is 110."""
    assignment = balance_with_groups([ClientCost(10, 160), *[ClientCost(1, 1)] * 100], 4, allreduce_cost=0)
    assert assignment.groups == [(0, [0, 1])]
    assert max(assignment.loads) - min(assignment.loads) <= 4


def test_no_client_is_split_if_the_all_reduce_costs_too_much() -> None:
    """With an all-reduce of 10 images, each of 2 members has 10 (3 + 10 + 8) = 210 and each of 4 has 170, of 190."""
    for allreduce_cost in (10.0, np.inf):
        assignment = balance_with_groups([ClientCost(10, 160), ClientCost(1, 4)], 4, allreduce_cost)
        assert assignment.groups == []
        assert sorted(map(len, assignment.unsplit)) == [0, 0, 1, 1]


def test_eight_ranks_wait_little_for_200_users_of_flairs_sizes() -> None:
    """2 epochs of at most 512 images in batches of 16, with an all-reduce of a tenth of an image or without groups."""
    num_held = np.minimum(sizes(51_414, 0), 512)
    idle_fractions: dict[float, list[float]] = {0.1: [], np.inf: []}
    for round in range(30):
        cohort = num_held[np.random.default_rng(round).choice(len(num_held), 200, replace=False)].tolist()
        costs = [ClientCost(2 * -(-n // 16), 2 * n) for n in cohort]
        for allreduce_cost, fractions in idle_fractions.items():
            loads = balance_with_groups(costs, 8, allreduce_cost).loads
            fractions.append(1 - sum(loads) / len(loads) / max(loads))
            assert sum(loads) >= sum(cost.cost for cost in costs) - 1e-6
    assert np.mean(idle_fractions[0.1]) < 0.02
    assert np.mean(idle_fractions[np.inf]) > 0.1  # the largest client alone exceeds a fair part of the round


def test_no_rank_is_in_two_groups() -> None:
    assignment = balance_with_groups([ClientCost(10, 160)] * 3, 4, allreduce_cost=0)
    members = [rank for _, group in assignment.groups for rank in group]
    assert len(members) == len(set(members))
    assert sum(map(len, assignment.unsplit)) + len(assignment.groups) == 3
