"""The workloads: a population without a download, a model, and an algorithm."""

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

FLAIR_USERS, FLAIR_MAX_IMAGES = 41_131, 512  # users of the train split, and images per user that count
NO_AUGMENTATION = Preprocess()
POOL_BYTES = 2**28  # of different images; users' images are rows of this pool


@dataclass(frozen=True)
class Workload:
    """What is the same for every runner."""

    description: str
    users: int
    images_per_user: int  # 0: as many as users of FLAIR have
    image_size: int  # pixels per side
    classes: int
    model: str
    algorithm: Algorithm
    preprocess: Preprocess = NO_AUGMENTATION
    multi: bool = False  # several labels per image
    rounds: int = 10  # that are timed
    peers: tuple[str, ...] = ("plain", "pfl", "flower")

    @property
    def pooled(self) -> bool:
        return isinstance(self.algorithm.sampler, Centralized)

    @property
    def cohort(self) -> int:
        sampler = self.algorithm.sampler
        return sampler.cohort_size if isinstance(sampler, UniformSampler | SizeWeightedSampler) else 1

    @property
    def client_optimizer(self) -> SGD:
        assert isinstance(self.algorithm.client_optimizer, SGD), "the peers train with SGD"
        return self.algorithm.client_optimizer

    @property
    def epochs(self) -> int:
        """Passes over a client's images; one with FedVC, whose clients have exactly as many images as they draw."""
        batching = self.algorithm.batching
        if isinstance(batching, VirtualClientBatching):
            assert batching.virtual_client_size == self.images_per_user, (
                "one epoch of FedVC draws all of a client's images"
            )
            return 1
        assert isinstance(batching, EpochBatching), "the peers train in epochs"
        return batching.epochs

    @property
    def batch_size(self) -> int:
        return self.algorithm.batching.batch_size

    def resized(self, users: int, cohort: int) -> Workload:
        """Return the workload with other numbers of users and of clients per round; 0: unchanged."""
        if cohort and not isinstance(self.algorithm.sampler, UniformSampler | SizeWeightedSampler):
            raise ValueError("Centralized training has no cohort: omit --cohort.")
        users, cohort = users or max(self.users, cohort), cohort or self.cohort
        if min(users, cohort) < 1 or cohort > users:
            raise ValueError(
                f"A cohort of {cohort} clients needs at least as many users and there are {users}: set --users or "
                "--cohort."
            )
        sampler = self.algorithm.sampler
        if isinstance(sampler, UniformSampler | SizeWeightedSampler):
            sampler = replace(sampler, cohort_size=cohort)
        return replace(self, users=users, algorithm=replace(self.algorithm, sampler=sampler))

    def population(self) -> Population:
        """Return users with random images of a pool."""
        rng = make_rng(0, "bench")
        num_images = min(8192, POOL_BYTES // (3 * self.image_size**2))
        images = rng.integers(0, 256, (num_images, self.image_size, self.image_size, 3), np.uint8)
        counts = np.full(self.users, self.images_per_user) if self.images_per_user else flair_sizes(self.users)
        offsets = np.concatenate([[0], np.cumsum(counts)])
        total = int(offsets[-1])
        first, names = rng.integers(self.classes, size=total), tuple(str(c) for c in range(self.classes))
        labels: Labels = SingleLabels(first, names)
        if self.multi:  # three labels per image, as in FLAIR
            classes = (first[:, None] + np.array([0, 1, 3])) % self.classes
            labels = MultiLabels(3 * np.arange(total + 1), classes.reshape(-1), names)
        return Population(images, labels, offsets, np.arange(self.users), rng.integers(num_images, size=total))

    def module(self) -> nn.Module:
        """Return the model, with the same weights for every runner."""
        if self.model == "simple_cnn":
            with torch.random.fork_rng(devices=[]):
                torch.default_generator.manual_seed(0)
                return SimpleCNN(self.classes, self.preprocess.crop or self.image_size)
        return build_model(self.model, self.classes, size=self.preprocess.crop or self.image_size)


def flair_sizes(users: int) -> Ints:
    """Return numbers of images at even quantiles of the users in FLAIR's train split, at most 512 per user."""
    sorted_sizes = np.sort(sizes(FLAIR_USERS, 0))
    selected = sorted_sizes[((np.arange(users) + 0.5) / users * FLAIR_USERS).astype(np.int64)]
    return make_rng(0, "bench sizes").permutation(np.minimum(selected, FLAIR_MAX_IMAGES))


class SimpleCNN(nn.Module):
    """The CNN of pfl-research's CIFAR-10 benchmark (`simple_cnn`): two convolutions, two linear layers, dropout."""

    channels_last = ("cuda",)

    def __init__(self, classes: int, image_size: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 32, 3),
            nn.ReLU(),
            nn.Conv2d(32, 64, 3),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Dropout(0.25),
            nn.Flatten(),
            nn.Linear(64 * ((image_size - 4) // 2) ** 2, 128),
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
WORKLOADS = {
    "small": Workload(
        description="LeNet, 32 px, 10 clients x 100 images, batch 50, FedAvg: for a CPU",
        users=100, images_per_user=100, image_size=32, classes=10, model="lenet",
        algorithm=fedavg(cohort_size=10, batch_size=50), rounds=5,
    ),
    "hsu": Workload(
        description="LeNet, 32 px, crop and flip, 10 clients x 500 images, batch 64, FedAvg (Hsu et al. 2020, CIFAR)",
        users=100, images_per_user=500, image_size=32, classes=10, model="lenet",
        algorithm=fedavg(cohort_size=10, batch_size=64),
        preprocess=Preprocess(pad=4, crop=32, flip_horizontal=True), rounds=30,
    ),
    "pflcifar": Workload(
        description="two-convolution CNN, 32 px, 50 clients x 50 images, batch 10, FedAvg (pfl-research, CIFAR-10)",
        users=1000, images_per_user=50, image_size=32, classes=10, model="simple_cnn",
        algorithm=fedavg(cohort_size=50, batch_size=10, lr=0.1), rounds=20,
    ),
    "flair": Workload(
        description="ResNet18-GN, 224 px, crop and flips, 200 users of FLAIR, 2 epochs, batch 16, FedAdam (FLAIR)",
        users=200, images_per_user=0, image_size=256, classes=17, multi=True, model="resnet18",
        algorithm=replace(
            fedadam(cohort_size=200, epochs=2, batch_size=16, lr=0.1, max_grad_norm=10.0), server_optimizer=FLAIR_ADAM
        ),
        preprocess=replace(CROP, flip_vertical=True), rounds=5,
    ),
    "mobilenet": Workload(
        description="MobileNetV2-GN, 224 px, crop and flip, 1,203 classes, 10 clients x 256, batch 64, FedVC (iNat)",
        users=100, images_per_user=256, image_size=256, classes=1203, model="mobilenet_v2",
        algorithm=fedvc(cohort_size=10, virtual_client_size=256, batch_size=64), preprocess=CROP, rounds=5,
    ),
    "central": Workload(
        description="ResNet18-GN, 224 px, crop and flips, centralized, 16 batches of 512, SGD with momentum",
        users=1, images_per_user=16 * 512, image_size=256, classes=17, multi=True, model="resnet18",
        algorithm=centralized(batch_size=512), preprocess=replace(CROP, flip_vertical=True), rounds=5,
        peers=("plain", "handwritten"),
    ),
    "crowd": Workload(
        description="LeNet, 8 px, clients of 5 images, one batch: what many users and large cohorts cost",
        users=100, images_per_user=5, image_size=8, classes=10, model="lenet",
        algorithm=fedavg(cohort_size=50, batch_size=5), rounds=3, peers=("plain",),
    ),
}  # fmt: skip
SCALING = ((100, 50), (1_000_000, 50), (1_000_000, 5_000))  # users and cohorts of `crowd` that are compared
