"""The privacy guarantee of a round: only the noised sum of clipped updates is published, whatever components do.

The mechanism (`Algorithm.privacy`) is the one trusted component. `check_private` refuses components before round 1;
`check_plan` and `private_update` check what components computed in the round.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from manyeyes.core.algorithm import Algorithm, Privacy
    from manyeyes.core.plan import RoundPlan
    from manyeyes.core.state import CohortResult, RoundContext

NORM_RTOL = 1e-3  # by which rounding may make the norm of a sum of clipped updates too large
CROSS_CLIENT_SLOTS = ("sampler", "client_weighting", "example_weighting", "compressor")


def check_private(algorithm: Algorithm) -> None:
    """Refuse components that the privacy guarantee does not cover, whatever they declare.

    Types are compared exactly: a subclass may do anything.
    """
    assert algorithm.privacy is not None, "called only for a private algorithm"
    if algorithm.aggregator is not None:
        name = type(algorithm.aggregator).__name__
        raise ValueError(
            f"privacy needs the sum of updates, and aggregator={name} would replace that sum: set aggregator=none"
        )
    for slot in CROSS_CLIENT_SLOTS:
        component, covered = getattr(algorithm, slot), algorithm.privacy.covered.get(slot, ())
        if component is not None and not any(type(component) is kind for kind in covered):
            names = ", ".join(kind.__name__ for kind in covered)
            raise ValueError(
                f"privacy has no guarantee for {slot}={type(component).__module__}.{type(component).__qualname__}: "
                + (f"set {slot} to {names} of manyeyes.components" if names else f"set {slot}=none")
            )
    correction = algorithm.correction
    if correction is not None and (correction.uploads or correction.init(torch.zeros(0)) is not None):
        raise ValueError(
            f"privacy protects only updates, and correction={type(correction).__name__} keeps more at the server: use "
            "a correction without uploads and server state"
        )


def check_plan(plan: RoundPlan) -> None:
    """Refuse a private plan in which a client counts more than once."""
    for client in plan.clients:
        if client.weight != 1:
            reason = f"privacy needs a weight of 1 for every client, and a client weighs {client.weight:g}"
            raise ValueError(f"{reason}: set client_weighting=uniform")
    if len({client.client_id for client in plan.clients}) < len(plan.clients):
        raise ValueError(
            "privacy needs each client at most once per round, and one is there twice: set sampler=poisson"
        )


def private_update(
    privacy: Privacy,
    result: CohortResult,
    plan: RoundPlan,
    context: RoundContext,
    privacy_state: dict[str, Tensor],
    noise_seed: int,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the noised mean update [W]; the sum must be within its clips, and zero where no noise is added."""
    total = result.update_W
    if context.personal_mask is not None:
        total = total.masked_fill(context.personal_mask, 0)
    max_norm = int(result.accepted_K.sum()) * context.clipping_norm if result.accepted_K.any() else 0.0
    if not float(torch.linalg.vector_norm(total)) <= max_norm * (1 + NORM_RTOL):
        raise RuntimeError(
            "the engine returned a sum of updates whose norm is above that of clipped updates: report it"
        )
    return privacy.privatize(replace(result, update_W=total), plan, context, privacy_state, noise_seed)
