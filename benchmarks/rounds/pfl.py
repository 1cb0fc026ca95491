"""pfl-research: its simulated backend and FederatedAveraging, with data as its benchmarks give it.

Every user's data lies on the device before the first round (float32 and normalised where nothing is augmented, uint8
else), crops and flips are one draw for a whole batch, users take turns (its `minimize_reuse` sampler, so that every
round is as large as ours) and nothing is evaluated after round 1.
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

from benchmarks.rounds.case import Case, Played, prepare, wait
from benchmarks.rounds.plain import Held, local_optimizer, loss_of, server_optimizer
from benchmarks.rounds.works import Workload
from manyeyes.data.preprocess import Preprocess


class Module(nn.Module):
    """A model with the two methods that pfl asks for."""

    def __init__(self, model: nn.Module, augment: Preprocess) -> None:
        super().__init__()
        self.model, self.augment = model, augment

    def loss(self, images: Tensor, targets: Tensor) -> Tensor:
        return loss_of(self.model(augmented(self.augment, images) if self.augment.num_uniforms else images), targets)

    def metrics(self, images: Tensor, targets: Tensor) -> dict[str, Weighted]:
        return {"examples": Weighted(len(images), 1)}


class Clock(TrainingProcessCallback):
    """Seconds of each round."""

    def __init__(self, device: str) -> None:
        self.device, self.last = device, 0.0
        self.seconds: list[float] = []

    def on_train_begin(self, *, model: PyTorchModel) -> Metrics:
        self.last = time.perf_counter()
        return Metrics()

    def after_central_iteration(
        self, aggregate_metrics: Metrics, model: PyTorchModel, *, central_iteration: int
    ) -> tuple[bool, Metrics]:
        wait(self.device)
        now = time.perf_counter()
        self.seconds.append(now - self.last)
        self.last = now
        return False, Metrics()


def play(case: Case, work: Workload) -> Played:
    device, rounds = prepare(case), case.warmup + case.rounds
    np.random.seed(0)  # noqa: NPY002  pfl draws from the global generator, which must agree over its processes
    people = work.population()
    module = Module(work.module(), work.augment).to(device).train()
    model = PyTorchModel(
        module,
        lambda parameters, lr: local_optimizer(work, parameters),
        server_optimizer(work, module.parameters()),
        amp_dtype=torch.bfloat16 if case.precision == "bf16" else None,
    )
    held = Held.of(people, device)
    data = [(_images(work.augment, held.images[rows]), t) for rows, t in map(held.user, range(work.users))]
    users = FederatedDataset.from_slices(data, get_user_sampler("minimize_reuse", range(work.users)))
    clock = Clock(case.device)
    FederatedAveraging().run(
        NNAlgorithmParams(rounds, evaluation_frequency=rounds, train_cohort_size=work.cohort, val_cohort_size=0),
        SimulatedBackend(training_data=users, val_data=users, postprocessors=[WeightByDatapoints()]),
        model,
        NNTrainHyperParams(
            local_batch_size=work.batch,
            local_num_epochs=work.epochs,
            local_learning_rate=work.local.lr,
            local_max_grad_norm=work.local.max_grad_norm or None,
        ),
        callbacks=[clock],
        send_metrics_to_platform=False,
    )
    turns = itertools.cycle(people.num_examples.tolist())
    images = [work.epochs * sum(itertools.islice(turns, work.cohort)) for _ in range(rounds)]
    if int(os.environ.get("RANK", 0)):  # one of its processes tells
        sys.exit(0)
    return Played(clock.seconds, images, module.model)


def _images(augment: Preprocess, images_BHWC: Tensor) -> Tensor:
    return images_BHWC if augment.num_uniforms else augment.augment(images_BHWC, None)


def augmented(augment: Preprocess, images_BHWC: Tensor) -> Tensor:
    """One crop and one draw of flips for the whole batch: what torchvision's transforms, which pfl uses, do to one."""
    top, left, across, down = torch.rand(4).tolist()
    images = F.pad(images_BHWC, (0, 0, augment.pad, augment.pad, augment.pad, augment.pad))
    size = augment.crop or images_BHWC.shape[1]
    room = images.shape[1] - size + 1
    images = images[:, int(top * room) :, int(left * room) :][:, :size, :size]
    sides = [1] * (augment.flip_vertical and down < 0.5) + [2] * (augment.flip_horizontal and across < 0.5)
    return augment.augment(images.flip(sides) if sides else images, None)
