"""Work is shared out by what it costs."""

from __future__ import annotations

import numpy as np

from manyeyes.core.plan import ClientPlan
from manyeyes.data.synthetic.users import sizes
from manyeyes.engines.load_balancing import ClientCost, balance, balance_clients, balance_with_groups


def client(examples: int, whole: int | None = None) -> ClientPlan:
    rows = np.append(np.arange(examples), -1)[None]
    return ClientPlan(0, 0, 0, 1.0, rows, rows, None, rows, None if whole is None else np.arange(whole), None)


def test_clients_are_shared_out_by_what_they_cost() -> None:
    """5 and 4 open the shares; 3 goes to the 4, 3 to the 5, and the last 3 to the 7."""
    clients = tuple(client(examples) for examples in (3, 5, 3, 4, 3))
    assert balance_clients(clients, 2) == [[1, 2], [0, 3, 4]]
    assert balance_clients((client(3), client(1, whole=9), client(4)), 2) == [[1], [0, 2]]
    assert balance_clients((client(3),), 3) == [[0], [], []]


def test_what_costs_most_comes_first_in_its_share() -> None:
    assert balance([3, 5, 3, 4, 3], 2) == [[1, 2], [3, 0, 4]]


def test_a_job_that_all_would_wait_for_goes_to_a_team() -> None:
    """Costs in images: 10 steps of 16 and 3 more each are 190, of 218 in all; a fair part of 4 ranks is 54.5.

    Of 2, 3 and 4 members each has 10 (3 + 8), 10 (3 + 6) and 10 (3 + 4): none is done in fair time, so the quickest.
    """
    jobs = [ClientCost(1, 4), ClientCost(10, 160), ClientCost(1, 4), ClientCost(1, 11)]
    found = balance_with_groups(jobs, 4, agreeing=0)
    assert found.groups == [(1, [0, 1, 2, 3])]
    assert sorted(map(tuple, found.unsplit)) == [(), (0,), (2,), (3,)]
    assert sorted(found.loads) == [70, 77, 77, 84]


def test_a_team_is_as_small_as_fair_time_allows() -> None:
    """190 and 100 jobs of 4: a fair part is 147.5, and 2 members are done in 110."""
    found = balance_with_groups([ClientCost(10, 160), *[ClientCost(1, 1)] * 100], 4, agreeing=0)
    assert found.groups == [(0, [0, 1])]
    assert max(found.loads) - min(found.loads) <= 4


def test_agreeing_that_costs_too_much_leaves_a_job_to_one() -> None:
    """With 10 images of agreeing a step, 2 members take 10 (3 + 10 + 8) = 210 and 4 take 170 of 190."""
    for agreeing in (10.0, np.inf):
        found = balance_with_groups([ClientCost(10, 160), ClientCost(1, 4)], 4, agreeing)
        assert (found.groups, sorted(map(len, found.unsplit))) == ([], [0, 0, 1, 1])


def test_eight_ranks_wait_little_for_two_hundred_of_flairs_users() -> None:
    """2 epochs of at most 512 images in batches of 16; teams whose all-reduce costs a tenth of an image, or none."""
    held, idle = np.minimum(sizes(51_414, 0), 512), {0.1: list[float](), np.inf: list[float]()}
    for round in range(30):
        chosen = held[np.random.default_rng(round).choice(len(held), 200, replace=False)].tolist()
        jobs = [ClientCost(2 * -(-n // 16), 2 * n) for n in chosen]
        for agreeing, shares in idle.items():
            loads = balance_with_groups(jobs, 8, agreeing).loads
            shares.append(1 - np.mean(loads) / max(loads))
            assert sum(loads) >= sum(job.cost for job in jobs) - 1e-6
    assert np.mean(idle[0.1]) < 0.02
    assert np.mean(idle[np.inf]) > 0.1  # the longest client alone takes longer than a fair part of the round


def test_no_rank_is_in_two_teams() -> None:
    found = balance_with_groups([ClientCost(10, 160)] * 3, 4, agreeing=0)
    members = [rank for _, team in found.groups for rank in team]
    assert len(members) == len(set(members))
    assert sum(len(share) for share in found.unsplit) + len(found.groups) == 3
