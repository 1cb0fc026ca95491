"""pfl-research: its simulated backend and FederatedAveraging, with data as in its benchmarks.

The data of every user is on the device before the first round (float32 and normalized without augmentation, otherwise
uint8). Crops and flips are drawn once per batch, users take turns (the `minimize_reuse` sampler, so that every round is
as large as ours), and nothing is evaluated after round 1.
"""

from __future__ import annotations

import itertools
import os
import sys
import time

import numpy as np
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByDatapoints
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam.base import NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.rounds.case import BenchCase, RunnerResult, prepare, synchronize
from benchmarks.rounds.plain import DeviceData, local_optimizer, loss_of, server_optimizer
from benchmarks.rounds.workloads import Workload
from manyeyes.data.preprocess import Preprocess


class Module(nn.Module):
    """A model with the two methods that pfl needs."""

    def __init__(self, model: nn.Module, preprocess: Preprocess) -> None:
        super().__init__()
        self.model, self.preprocess = model, preprocess

    def loss(self, images: Tensor, targets: Tensor) -> Tensor:
        inputs = augment_batch(self.preprocess, images) if self.preprocess.num_uniforms else images
        return loss_of(self.model(inputs), targets)

    def metrics(self, images: Tensor, targets: Tensor) -> dict[str, Weighted]:
        return {"examples": Weighted(len(images), 1)}


class RoundTimer(TrainingProcessCallback):
    """Records the seconds of each round."""

    def __init__(self, device: str) -> None:
        self.device, self.last = device, 0.0
        self.seconds: list[float] = []

    def on_train_begin(self, *, model: PyTorchModel) -> Metrics:
        self.last = time.perf_counter()
        return Metrics()

    def after_central_iteration(
        self, aggregate_metrics: Metrics, model: PyTorchModel, *, central_iteration: int
    ) -> tuple[bool, Metrics]:
        synchronize(self.device)
        now = time.perf_counter()
        self.seconds.append(now - self.last)
        self.last = now
        return False, Metrics()


def run(case: BenchCase, workload: Workload) -> RunnerResult:
    device, rounds = prepare(case), case.warmup + case.rounds
    np.random.seed(0)  # noqa: NPY002  pfl uses the global generator, which must be the same in its processes
    population = workload.population()
    module = Module(workload.module(), workload.preprocess).to(device).train()
    model = PyTorchModel(
        module,
        lambda parameters, lr: local_optimizer(workload, parameters),
        server_optimizer(workload, module.parameters()),
        amp_dtype=torch.bfloat16 if case.precision == "bf16" else None,
    )
    data = DeviceData.from_population(population, device)
    examples = [
        (_inputs(workload.preprocess, data.images[rows]), targets)
        for rows, targets in map(data.user, range(workload.users))
    ]
    dataset = FederatedDataset.from_slices(examples, get_user_sampler("minimize_reuse", range(workload.users)))
    timer = RoundTimer(case.device)
    FederatedAveraging().run(
        NNAlgorithmParams(rounds, evaluation_frequency=rounds, train_cohort_size=workload.cohort, val_cohort_size=0),
        SimulatedBackend(training_data=dataset, val_data=dataset, postprocessors=[WeightByDatapoints()]),
        model,
        NNTrainHyperParams(
            local_batch_size=workload.batch_size,
            local_num_epochs=workload.epochs,
            local_learning_rate=workload.client_optimizer.lr,
            local_max_grad_norm=workload.client_optimizer.max_grad_norm or None,
        ),
        callbacks=[timer],
        send_metrics_to_platform=False,
    )
    sizes = itertools.cycle(population.num_examples.tolist())
    images = [workload.epochs * sum(itertools.islice(sizes, workload.cohort)) for _ in range(rounds)]
    if int(os.environ.get("RANK", 0)):  # only one of its processes reports
        sys.exit(0)
    return RunnerResult(timer.seconds, images, module.model)


def _inputs(preprocess: Preprocess, images_BHWC: Tensor) -> Tensor:
    return images_BHWC if preprocess.num_uniforms else preprocess.augment(images_BHWC, None)


def augment_batch(preprocess: Preprocess, images_BHWC: Tensor) -> Tensor:
    """Crop and flip the whole batch alike, as torchvision's transforms, which pfl uses, do with a batch."""
    top, left, horizontal, vertical = torch.rand(4).tolist()
    images = F.pad(images_BHWC, (0, 0, *[preprocess.pad] * 4))
    size = preprocess.crop or images_BHWC.shape[1]
    num_offsets = images.shape[1] - size + 1
    images = images[:, int(top * num_offsets) :, int(left * num_offsets) :][:, :size, :size]
    axes = [1] * (preprocess.flip_vertical and vertical < 0.5) + [2] * (preprocess.flip_horizontal and horizontal < 0.5)
    return preprocess.augment(images.flip(axes) if axes else images, None)
