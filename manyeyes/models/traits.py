"""What a module does when it trains, found out by trying a copy of it on a few images."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch
from torch import Tensor

from manyeyes.models.flat import FlatModel

NEAR = 1e-3  # of the largest output: kernels for batches of other sizes round otherwise


@dataclass(frozen=True)
class ModuleTraits:
    uses_rng: bool  # random numbers of its own
    mixes_batch: bool  # what it makes of an example, or a norm's statistics, depends on the others of the batch
    trains_on_one: bool  # whether it learns from a batch of one image
    mutated_buffer: str  # a buffer that is no norm's and changes; "": none


def trial_images(height: int, width: int, device: torch.device) -> Tensor:
    """Three images of so many pixels to try a model on, the same each time; no global generator is used."""
    images = torch.rand(3, 3, height, width, generator=torch.Generator().manual_seed(0)).to(device)
    return images * torch.arange(1, 4, device=device)[:, None, None, None] - 1


@torch.no_grad()
def probe(model: FlatModel, height: int, width: int) -> ModuleTraits:
    """Of a module that is given images of so many pixels; it stays as it is."""
    tried, weights = FlatModel(copy.deepcopy(model.module).train()), model.read()
    cuda = [weights.device] if weights.is_cuda else []
    images = tried.to_memory_format(trial_images(height, width, weights.device))

    def look(count: int) -> tuple[Tensor, Tensor]:
        """What it answers to so many of the images, and the statistics of its norms afterwards."""
        statistics = weights[model.num_trainable :].clone()
        return tried(weights[: model.num_trainable], statistics, images[:count]), statistics

    with (
        torch.random.fork_rng(cuda),
        torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=False),
    ):
        generator = torch.cuda.default_generators[weights.device.index or 0] if cuda else torch.default_generator
        before = generator.get_state()
        (two, after_two), (three, after_three) = look(2), look(3)
        draws = not torch.equal(before, generator.get_state())
        same = bool((two - three[:2]).abs().max() <= NEAR * two.abs().max())
        same = same and torch.allclose(after_two, after_three, rtol=NEAR, atol=NEAR**2)
        try:
            look(1)
            alone = True
        except ValueError:  # live BatchNorm wants several numbers of every channel
            alone = False
    kept = dict(tried.module.named_buffers())
    moved = (n for n, b in model.module.named_buffers() if b.is_floating_point() and not torch.equal(b, kept[n]))
    return ModuleTraits(draws, not same, alone, next(moved, ""))
