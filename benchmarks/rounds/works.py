"""The works that are measured: a population without a download, a model, and what happens in a round."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn

from manyeyes.algorithms import centralized, fedadam, fedavg, fedvc
from manyeyes.components import (
    SGD,
    AdaptiveServer,
    Centralized,
    EpochBatching,
    SizeWeightedSampler,
    UniformSampler,
    VirtualClientBatching,
)
from manyeyes.core.algorithm import Algorithm
from manyeyes.core.population import Ints, Labels, MultiLabels, Population, SingleLabels
from manyeyes.core.rng import make_rng
from manyeyes.data.preprocess import Preprocess
from manyeyes.data.synthetic.users import sizes
from manyeyes.models import build_model

FLAIR_USERS, FLAIR_LIMIT = 41_131, 512  # users of the train split, and photos of a user that count
PLAIN = Preprocess()
POOL = 2**28  # bytes of different images; users' photos point into them


@dataclass(frozen=True)
class Workload:
    """What every runner of a work does alike."""

    about: str
    users: int
    photos: int  # of each user; 0: as many as users of FLAIR hold
    side: int  # of an image, in pixels
    classes: int
    model: str
    algorithm: Algorithm
    augment: Preprocess = PLAIN
    multi: bool = False  # several labels an image
    rounds: int = 10  # that are measured
    peers: tuple[str, ...] = ("plain", "pfl", "flower")

    @property
    def pooled(self) -> bool:
        return isinstance(self.algorithm.sampler, Centralized)

    @property
    def cohort(self) -> int:
        cohort = self.algorithm.sampler
        return cohort.cohort_size if isinstance(cohort, UniformSampler | SizeWeightedSampler) else 1

    @property
    def local(self) -> SGD:
        assert isinstance(self.algorithm.client_optimizer, SGD)
        return self.algorithm.client_optimizer

    @property
    def epochs(self) -> int:
        """Passes over a client's photos; FedVC's clients hold exactly what they draw, so that is one."""
        draw = self.algorithm.batching
        assert isinstance(draw, EpochBatching) or (
            isinstance(draw, VirtualClientBatching) and draw.virtual_client_size == self.photos
        )
        return draw.epochs if isinstance(draw, EpochBatching) else 1

    @property
    def batch(self) -> int:
        draw = self.algorithm.batching
        assert isinstance(draw, EpochBatching | VirtualClientBatching)
        return draw.batch_size

    def resized(self, users: int, cohort: int) -> Workload:
        """The same work with so many users and clients a round; 0: as it is."""
        if cohort and not isinstance(self.algorithm.sampler, UniformSampler | SizeWeightedSampler):
            raise ValueError("centralised training has no cohort: leave --cohort out")
        users, cohort = users or max(self.users, cohort), cohort or self.cohort
        if min(users, cohort) < 1 or cohort > users:
            raise ValueError(
                f"a cohort of {cohort} clients is asked of {users} users: give 1 or more, and enough users"
            )
        clients = self.algorithm.sampler
        if isinstance(clients, UniformSampler | SizeWeightedSampler):
            clients = replace(clients, cohort_size=cohort)
        return replace(self, users=users, algorithm=replace(self.algorithm, sampler=clients))

    def population(self) -> Population:
        """Random images, and users whose photos are rows of them."""
        rng = make_rng(0, "bench")
        number = min(8192, POOL // (3 * self.side**2))
        images = rng.integers(0, 256, (number, self.side, self.side, 3), np.uint8)
        counts = np.full(self.users, self.photos) if self.photos else flair_sizes(self.users)
        offsets = np.concatenate([[0], np.cumsum(counts)])
        total = int(offsets[-1])
        first, names = rng.integers(self.classes, size=total), tuple(str(c) for c in range(self.classes))
        labels: Labels = SingleLabels(first, names)
        if self.multi:  # three labels an image, as FLAIR's
            classes = (first[:, None] + np.array([0, 1, 3])) % self.classes
            labels = MultiLabels(3 * np.arange(total + 1), classes.reshape(-1), names)
        return Population(images, labels, offsets, np.arange(self.users), rng.integers(number, size=total))

    def module(self) -> nn.Module:
        """The model, with the same weights in every runner."""
        if self.model == "simple_cnn":
            with torch.random.fork_rng(devices=[]):
                torch.default_generator.manual_seed(0)
                return SimpleCNN(self.classes, self.augment.crop or self.side)
        return build_model(self.model, self.classes, size=self.augment.crop or self.side)


def flair_sizes(users: int) -> Ints:
    """How many photos users of FLAIR's train split hold: its curve at even quantiles, at most 512 a user."""
    everyone = np.sort(sizes(FLAIR_USERS, 0))
    chosen = everyone[((np.arange(users) + 0.5) / users * FLAIR_USERS).astype(np.int64)]
    return make_rng(0, "bench sizes").permutation(np.minimum(chosen, FLAIR_LIMIT))


class SimpleCNN(nn.Module):
    """The CNN of pfl-research's CIFAR-10 benchmark (`simple_cnn`): two convolutions, one pool, dropout, two linear."""

    channels_last = ("cuda",)

    def __init__(self, classes: int, side: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 32, 3),
            nn.ReLU(),
            nn.Conv2d(32, 64, 3),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Dropout(0.25),
            nn.Flatten(),
            nn.Linear(64 * ((side - 4) // 2) ** 2, 128),
            nn.ReLU(),
            nn.Dropout(0.5),
            nn.Linear(128, classes),
        )
        for layer in self.layers:
            if isinstance(layer, nn.Conv2d | nn.Linear):
                nn.init.xavier_uniform_(layer.weight)

    def forward(self, x_BCHW: Tensor) -> Tensor:
        logits: Tensor = self.layers(x_BCHW)
        return logits


FLAIR_ADAM = AdaptiveServer("adam", lr=0.1, beta1=0.9, beta2=0.99, tau=0.01, bias_correction=True)  # as released
CROP = Preprocess(crop=224, flip_horizontal=True)
WORKS = {
    "small": Workload(
        about="LeNet, 32 px, 10 clients x 100 images, batch 50, FedAvg: for a CPU",
        users=100, photos=100, side=32, classes=10, model="lenet",
        algorithm=fedavg(cohort_size=10, batch_size=50), rounds=5,
    ),
    "hsu": Workload(
        about="LeNet, 32 px, crop and flip, 10 clients x 500 images, batch 64, FedAvg (Hsu et al. 2020, CIFAR)",
        users=100, photos=500, side=32, classes=10, model="lenet",
        algorithm=fedavg(cohort_size=10, batch_size=64), augment=Preprocess(pad=4, crop=32, flip_horizontal=True), rounds=30,
    ),
    "pflcifar": Workload(
        about="two-convolution CNN, 32 px, 50 clients x 50 images, batch 10, FedAvg (pfl-research, CIFAR-10)",
        users=1000, photos=50, side=32, classes=10, model="simple_cnn",
        algorithm=fedavg(cohort_size=50, batch_size=10, lr=0.1), rounds=20,
    ),
    "flair": Workload(
        about="ResNet18-GN, 224 px, crop and flips, 200 users of FLAIR's sizes, 2 epochs, batch 16, FedAdam (FLAIR)",
        users=200, photos=0, side=256, classes=17, multi=True, model="resnet18",
        algorithm=replace(fedadam(cohort_size=200, epochs=2, batch_size=16, lr=0.1, max_grad_norm=10.0), server_optimizer=FLAIR_ADAM),
        augment=replace(CROP, flip_vertical=True), rounds=5,
    ),
    "mobilenet": Workload(
        about="MobileNetV2-GN, 224 px, crop and flip, 1,203 classes, 10 clients x 256, batch 64, FedVC (iNaturalist)",
        users=100, photos=256, side=256, classes=1203, model="mobilenet_v2",
        algorithm=fedvc(cohort_size=10, virtual_client_size=256, batch_size=64), augment=CROP, rounds=5,
    ),
    "central": Workload(
        about="ResNet18-GN, 224 px, crop and flips, centralised, 16 batches of 512, SGD with momentum",
        users=1, photos=16 * 512, side=256, classes=17, multi=True, model="resnet18",
        algorithm=centralized(batch_size=512), augment=replace(CROP, flip_vertical=True), rounds=5,
        peers=("plain", "handwritten"),
    ),
    "crowd": Workload(
        about="LeNet, 8 px, clients of 5 images, one batch: what many users and large cohorts cost",
        users=100, photos=5, side=8, classes=10, model="lenet",
        algorithm=fedavg(cohort_size=50, batch_size=5), rounds=3, peers=("plain",),
    ),
}  # fmt: skip
SCALING = ((100, 50), (1_000_000, 50), (1_000_000, 5_000))  # users and cohorts of `crowd` that are set side by side
