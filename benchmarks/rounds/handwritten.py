"""Centralised training by hand, as fast as an expert writes it: what ours is measured against.

Images on the GPU; augmentation, forward and loss in one compiled graph; bf16, channels-last, a fused optimizer, and no
word from the GPU to the host before the end of an epoch. `cast` computes in bf16 throughout, with float32 master
weights; `autocast` lets PyTorch choose.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.func import functional_call

from benchmarks.rounds.case import Case, Played, play_rounds, prepare
from benchmarks.rounds.plain import Held, loss_of
from benchmarks.rounds.works import Workload


def play(case: Case, work: Workload) -> Played:
    assert work.pooled and work.epochs == 1
    device, local, augment = prepare(case), work.local, work.augment
    held = Held.of(work.population(), device)
    model: nn.Module = work.module().to(device, memory_format=torch.channels_last).train()  # type: ignore[call-overload]
    parameters = dict(model.named_parameters())
    fast = case.device == "cuda"
    optimizer = torch.optim.SGD(
        model.parameters(), local.lr, momentum=local.momentum, weight_decay=local.weight_decay, fused=fast
    )

    def loss_of_batch(images: Tensor, rows: Tensor, targets: Tensor, dice: Tensor | None) -> Tensor:
        inputs = augment.augment(images[rows], dice)  # compiled, one kernel from the pool to normalised crops
        if case.precision == "cast":
            low = {name: parameter.bfloat16() for name, parameter in parameters.items()}
            return loss_of(functional_call(model, low, (inputs.bfloat16(),)).float(), targets)
        with torch.autocast(case.device, torch.bfloat16, enabled=case.precision == "autocast"):
            return loss_of(model(inputs), targets)

    step = torch.compile(loss_of_batch) if fast else loss_of_batch  # on a CPU, Inductor can be silently wrong

    def play_epoch() -> int:
        for batch in torch.randperm(len(held.rows), device=device).split(work.batch):
            dice = torch.rand(len(batch), augment.num_uniforms, device=device) if augment.num_uniforms else None
            loss = step(held.images, held.rows[batch], held.targets[batch], dice)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        return len(held.rows)

    return play_rounds(case, model, play_epoch)
