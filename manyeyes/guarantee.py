"""The privacy guarantee inside a round: only the noised sum of clipped updates leaves it, whatever the components do.

The mechanism (`Algorithm.privacy`) is the one trusted component. Components are checked before (`check_private`); here,
what they made of the round is.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from manyeyes.algorithm import Privacy
from manyeyes.work import Aggregate, Plan, Work

ROUNDING = 1e-3  # by which a sum of clipped updates may seem longer than its clips


def check_plan(plan: Plan) -> None:
    """Refuse a plan in which a client counts for more than one."""
    for client in plan.clients:
        if client.weight != 1:
            raise ValueError(
                f"privacy needs a weight of 1 for every client, and a client weighs {client.weight:g}: set weigh to "
                "equally"
            )
    if len({client.key for client in plan.clients}) < len(plan.clients):
        raise ValueError("privacy needs each client at most once a round, and the plan has one twice: select poisson")


def protected(
    privacy: Privacy, result: Aggregate, plan: Plan, work: Work, kept: dict[str, Tensor], secret: int
) -> tuple[Tensor, dict[str, Tensor]]:
    """The noised mean update [W], from a sum that is as long as its clips allow and empty where no noise is added."""
    total = result.update_W
    if work.personal is not None:
        total = total.masked_fill(work.personal, 0)
    most = int(result.kept_K.sum()) * work.bound if result.kept_K.any() else 0.0
    if not float(torch.linalg.vector_norm(total)) <= most * (1 + ROUNDING):
        raise RuntimeError("the engine returned a sum of updates that is longer than privacy's clip allows")
    return privacy.protect(replace(result, update_W=total), plan, work, kept, secret)
