"""What engines do for a client: fetch batches, choose the loss, send the update, keep state, and merge the results."""

from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor

from manyeyes.components.losses import default_loss
from manyeyes.core.algorithm import Loss, OptState
from manyeyes.core.numerics import clip, l2_norms
from manyeyes.core.plan import ClientPlan, RoundPlan
from manyeyes.core.population import Ints, Population, take_images
from manyeyes.core.rng import make_rng
from manyeyes.core.state import (
    CORRECTION_STATE,
    OPT_STATE,
    PERSONAL_WEIGHTS,
    RESIDUAL,
    ClientState,
    CohortResult,
    RoundContext,
    in_plan_order,
)

LossAndGrad = tuple[float, Tensor]


def fetch(population: Population, examples: Ints, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return the images [B, H, W, 3] and the targets of the same examples."""
    images = take_images(population.images, population.image_indices[examples], device)
    return images, torch.from_numpy(population.labels.targets(examples)).to(device)


def training_loss(context: RoundContext, population: Population) -> Loss:
    """Return the loss of a round: the algorithm's, or the default for the kind of labels."""
    return default_loss(population.labels.multi) if context.loss is None else context.loss


def simulate_uplink(
    update_W: Tensor, plan: RoundPlan, client: ClientPlan, context: RoundContext, client_state: ClientState
) -> tuple[Tensor, float, ClientState]:
    """Return the update that the server receives [W], its norm before clipping, and what the client keeps."""
    if context.compressor is None:
        norm = float(l2_norms(update_W))
        return clip(update_W, norm, context.clipping_norm), norm, {}
    arrays, norm, residual = compress(update_W, plan, client, context, client_state)
    return decompress(arrays, len(update_W), context), norm, residual


def compress(
    update_W: Tensor, plan: RoundPlan, client: ClientPlan, context: RoundContext, client_state: ClientState
) -> tuple[dict[str, Tensor], float, ClientState]:
    """Do the client's half: return the arrays that travel, the norm before clipping, and what the client keeps.

    The residual of earlier rounds is added first and clipped with the update.
    """
    compressor = context.compressor
    shared = update_W if context.personal_mask is None else update_W[~context.personal_mask]
    if RESIDUAL in client_state:
        shared = shared + client_state[RESIDUAL]
    norm = float(l2_norms(shared))
    shared = clip(shared, norm, context.clipping_norm)
    if compressor is None or not len(shared):
        return {"values": shared}, norm, {}
    arrays = compressor.encode(shared, make_rng(plan.seed, "compress", plan.round, client.stream))
    if not compressor.error_feedback:
        return arrays, norm, {}
    return arrays, norm, {RESIDUAL: shared - compressor.decode(arrays, len(shared))}


def decompress(arrays: dict[str, Tensor], num_elements: int, context: RoundContext) -> Tensor:
    """Do the server's half: return the update that arrived [W].

    Compression may lengthen a vector, so it is clipped once more: no client counts for more than the clipping norm,
    whatever its values were rounded to.
    """
    mask = context.personal_mask
    num_shared = num_elements if mask is None else int((~mask).sum())
    compressor = context.compressor
    received = arrays["values"] if compressor is None or not num_shared else compressor.decode(arrays, num_shared)
    if received.shape != (num_shared,) or received.dtype not in (torch.float32, torch.float64):
        decoded = f"{type(compressor).__name__} decoded {received.dtype} of shape {tuple(received.shape)}"
        raise ValueError(f"compressor={decoded}: return {num_shared} float32 values from decode.")
    received = clip(received, float(l2_norms(received)), context.clipping_norm)
    if mask is None:
        return received
    update_W = received.new_zeros(num_elements)
    update_W[~mask] = received
    return update_W


def make_client_state(
    personal_weights: Tensor | None, correction_state: Tensor | None, opt_state: OptState
) -> ClientState:
    """Return what a client keeps for its next round."""
    tensors = {PERSONAL_WEIGHTS: personal_weights, CORRECTION_STATE: correction_state}
    tensors |= {f"{OPT_STATE}{i}": tensor for i, tensor in enumerate(opt_state)}
    return {name: tensor for name, tensor in tensors.items() if tensor is not None}


def persisted_opt_state(client_state: ClientState) -> OptState:
    """Return the state of the client optimizer that a client carries from round to round."""
    return tuple(client_state[name] for name in sorted(client_state) if name.startswith(OPT_STATE))


def merge_results(
    weights: Tensor,
    plan: RoundPlan,
    partial_results: Iterable[tuple[list[int], CohortResult]],
    keep_updates: bool = False,
) -> CohortResult:
    """Return the results of parts of a plan as one, in the order of the plan; a client of no part is not accepted.

    Each part is the indices of its clients in the plan, and their result.
    """
    num_clients = len(plan.clients)
    update_W, uploads_P = torch.zeros_like(weights), None
    updates_KW = weights.new_zeros(num_clients, len(weights)) if keep_updates else None
    accepted_K, (loss_K, norm_K) = np.zeros(num_clients, bool), np.zeros((2, num_clients))
    states: dict[int, ClientState] = {}
    for indices, result in partial_results:
        update_W += result.update_W
        if result.uploads_P is not None:
            uploads_P = result.uploads_P.clone() if uploads_P is None else uploads_P + result.uploads_P
        if updates_KW is not None and result.updates_KW is not None:
            updates_KW[indices] = result.updates_KW
        accepted_K[indices], loss_K[indices], norm_K[indices] = result.accepted_K, result.loss_K, result.norm_K
        states |= result.client_states
    client_states = in_plan_order(plan, states)
    return CohortResult(update_W, uploads_P, accepted_K, loss_K, norm_K, client_states, updates_KW)
