"""How a module behaves when it trains, measured by trying a copy of it on a few images."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch
from torch import Tensor

from manyeyes.models.flat import FlatModel

ROUNDING_TOLERANCE = 1e-3  # of the largest output: kernels for another batch size round differently


@dataclass(frozen=True)
class ModuleTraits:
    uses_rng: bool  # whether it uses a global random generator
    mixes_batch: bool  # whether an example's output, or a norm's statistics, depend on the rest of the batch
    trains_on_one: bool  # whether it can train on a batch of one image
    mutated_buffer: str  # a buffer that changes and is not a norm's; "": none


def trial_images(height: int, width: int, device: torch.device) -> Tensor:
    """Return three images to try a model on, always the same; no global generator is used."""
    images = torch.rand(3, 3, height, width, generator=torch.Generator().manual_seed(0)).to(device)
    return images * torch.arange(1, 4, device=device)[:, None, None, None] - 1


@torch.no_grad()
def probe(model: FlatModel, height: int, width: int) -> ModuleTraits:
    """Return the traits of a module for images of this size; the module itself does not change."""
    trial, weights = FlatModel(copy.deepcopy(model.module).train()), model.read()
    cuda = [weights.device] if weights.is_cuda else []
    images = trial.to_memory_format(trial_images(height, width, weights.device))

    def outputs_and_statistics(num_images: int) -> tuple[Tensor, Tensor]:
        """Return the outputs for the first images, and the statistics of the norms afterwards."""
        statistics = weights[model.num_trainable :].clone()
        return trial(weights[: model.num_trainable], statistics, images[:num_images]), statistics

    with (
        torch.random.fork_rng(cuda),
        torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=False),
    ):
        generator = torch.cuda.default_generators[weights.device.index or 0] if cuda else torch.default_generator
        before = generator.get_state()
        two, three = outputs_and_statistics(2), outputs_and_statistics(3)
        uses_rng = not torch.equal(before, generator.get_state())
        try:
            outputs_and_statistics(1)
            trains_on_one = True
        except ValueError:  # live BatchNorm needs several values of every channel
            trains_on_one = False
    trial_buffers = dict(trial.module.named_buffers())
    mutated = (
        name
        for name, buffer in model.module.named_buffers()
        if buffer.is_floating_point() and not torch.equal(buffer, trial_buffers[name])
    )
    return ModuleTraits(uses_rng, not _is_independent(two, three), trains_on_one, next(mutated, ""))


def _is_independent(two: tuple[Tensor, Tensor], three: tuple[Tensor, Tensor]) -> bool:
    """Return whether a third image changed neither the outputs of the first two nor the statistics."""
    (outputs_two, statistics_two), (outputs_three, statistics_three) = two, three
    difference = (outputs_two - outputs_three[:2]).abs().max()
    has_same_outputs = bool(difference <= ROUNDING_TOLERANCE * outputs_two.abs().max())
    return has_same_outputs and torch.allclose(
        statistics_two, statistics_three, rtol=ROUNDING_TOLERANCE, atol=ROUNDING_TOLERANCE**2
    )
