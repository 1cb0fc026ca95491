"""Centralized training as fast as an expert would write it: a baseline for the speed of the machine.

Images are on the GPU; augmentation, forward pass and loss are one compiled graph; bf16, channels-last, a fused
optimizer, and no synchronization before the end of an epoch. `cast` computes in bf16 everywhere, with float32 master
weights; `autocast` uses PyTorch's choice.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.func import functional_call

from benchmarks.rounds.case import BenchCase, RunnerResult, prepare, time_rounds
from benchmarks.rounds.plain import DeviceData, loss_of
from benchmarks.rounds.workloads import Workload


def run(case: BenchCase, workload: Workload) -> RunnerResult:
    assert workload.pooled and workload.epochs == 1, "the handwritten loop is one epoch of centralized training"
    device, sgd, preprocess = prepare(case), workload.client_optimizer, workload.preprocess
    data = DeviceData.from_population(workload.population(), device)
    model: nn.Module = workload.module().to(device, memory_format=torch.channels_last).train()  # type: ignore[call-overload]
    parameters = dict(model.named_parameters())
    is_gpu = case.device == "cuda"
    optimizer = torch.optim.SGD(
        model.parameters(), sgd.lr, momentum=sgd.momentum, weight_decay=sgd.weight_decay, fused=is_gpu
    )

    def loss_of_batch(images: Tensor, rows: Tensor, targets: Tensor, uniforms: Tensor | None) -> Tensor:
        inputs = preprocess.augment(images[rows], uniforms)  # one kernel when compiled
        if case.precision == "cast":
            in_bf16 = {name: parameter.bfloat16() for name, parameter in parameters.items()}
            return loss_of(functional_call(model, in_bf16, (inputs.bfloat16(),)).float(), targets)
        with torch.autocast(case.device, torch.bfloat16, enabled=case.precision == "autocast"):
            return loss_of(model(inputs), targets)

    step = torch.compile(loss_of_batch) if is_gpu else loss_of_batch  # on a CPU Inductor has lost gradients

    def run_epoch() -> int:
        for batch in torch.randperm(len(data.rows), device=device).split(workload.batch_size):
            uniforms = None
            if preprocess.num_uniforms:
                uniforms = torch.rand(len(batch), preprocess.num_uniforms, device=device)
            loss = step(data.images, data.rows[batch], data.targets[batch], uniforms)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        return len(data.rows)

    return time_rounds(case, model, run_epoch)
