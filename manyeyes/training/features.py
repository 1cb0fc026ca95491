"""Training on features: what the layers that never change make of each image is computed once, and kept on disk."""

import hashlib
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from manyeyes.core.algorithm import Algorithm
from manyeyes.core.plan import plan_round
from manyeyes.core.population import Floats, Ints, Population, take_images
from manyeyes.core.registry import import_path, source_hash
from manyeyes.data.feature_file import CHUNK_ROWS, FeatureFile, check_room
from manyeyes.data.preprocess import FeatureDecoder, Preprocess
from manyeyes.engines.base import DistInfo, EngineOptions, deterministic_kernels
from manyeyes.io.files import make_folder
from manyeyes.io.steps import announce, announce_progress
from manyeyes.models.features import RTOL, FeatureSplit, split_at_features
from manyeyes.models.flat import FlatModel
from manyeyes.training.config import RunConfig
from manyeyes.training.description import PROJECT, package_version

MIN_SAVING = 2  # times an image has to be seen on average, before `auto` computes its features
MAX_BYTES_IN_MEMORY = 2**28  # of features that are read at once, so that no round waits for the disk
BATCH_SIZE = 64  # images whose features are computed together
HASHED_IMAGES = 1024  # that are read together
NUM_COMPARED = 4  # images whose features are computed again when a file is opened, as its code may have changed


@dataclass(frozen=True, eq=False)
class ModelInputs:
    """What is trained: a model, what it takes, and how that is preprocessed."""

    model: FlatModel
    preprocess: Preprocess | FeatureDecoder
    populations: list[Population]  # that is trained on, then those that are evaluated
    files: tuple[FeatureFile, ...] = ()  # that the features are in


def features_folder() -> Path:
    """Return the folder of all features of this user."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "manyeyes" / "features"


def choose_inputs(
    images: ModelInputs, algorithm: Algorithm, config: RunConfig, options: EngineOptions, dist: DistInfo
) -> ModelInputs:
    """Return the head of a model and features where `engine.features` asks for them, else the model and images."""
    if options.features == "off":
        return images
    assert isinstance(images.preprocess, Preprocess), "images are preprocessed before their features are computed"
    split = _split(images, images.preprocess, algorithm, dist)
    if isinstance(split, str):
        if options.features == "on":
            raise ValueError(f"engine.features=on does not support {split}: set engine.features=auto")
        return images
    sources = [_FeatureSource(split, images.preprocess, p, n == 0) for n, p in enumerate(images.populations)]
    if options.features == "auto" and not _saves_work(sources, algorithm, config):
        return images
    try:
        populations = [source.population_with_features() for source in sources]
    except OSError as error:
        if options.features == "on":
            raise
        print(f"Features are not used, because they cannot be kept ({error}).", file=sys.stderr)
        return images
    decoder = FeatureDecoder(split.feature_shape)
    return ModelInputs(split.head, decoder, populations, tuple(dict.fromkeys(source.file for source in sources)))


def _split(images: ModelInputs, preprocess: Preprocess, algorithm: Algorithm, dist: DistInfo) -> FeatureSplit | str:
    """Return the model in two parts, or what of the training prevents that."""
    height, width, channels = images.populations[0].image_shape
    if preprocess.is_random(height, width):
        return "random crops and flips of images"
    if dist.size > 1:
        return "several processes"
    is_resized = preprocess.scale is not None
    if is_resized and algorithm.correction is not None and algorithm.correction.needs_full_gradient:
        return f"correction={type(algorithm.correction).__name__} with resized images"
    return split_at_features(images.model, *preprocess.shape(height, width), channels)


def _saves_work(sources: Sequence["_FeatureSource"], algorithm: Algorithm, config: RunConfig) -> bool:
    """Return whether features are no larger than images, and are many fewer than a run sees, or exist."""
    height, width, channels = sources[0].population.image_shape
    if sources[0].file.num_values > np.prod(sources[0].preprocess.shape(height, width)) * channels:
        return False
    train, *evaluated = (source.population for source in sources)
    num_images = sum(len(source.rows) for source in sources)
    plan = plan_round(algorithm, train, config.seed, 0)
    seen = config.rounds * sum(int((client.example_indices_SB >= 0).sum()) for client in plan.clients)
    evaluations = 2 + (config.rounds // config.evaluate_every if config.evaluate_every else 0)
    seen += evaluations * sum(map(len, evaluated))
    return seen >= MIN_SAVING * num_images or all(not source.file.incomplete_chunks(source.rows) for source in sources)


class _FeatureSource:
    """The features of the images of one population."""

    def __init__(self, split: FeatureSplit, preprocess: Preprocess, population: Population, is_trained: bool) -> None:
        self.split, self.preprocess, self.population = split, preprocess, population
        self.device = split.model.read().device
        self.is_augmented = is_trained and preprocess.scale is not None  # resized otherwise than for evaluation
        self.rows, self._image_indices = np.unique(population.image_indices, return_inverse=True)
        self.about = self._describe()
        digest = hashlib.sha256(repr(sorted(self.about.items())).encode()).hexdigest()[:32]
        num_values = int(np.prod(split.feature_shape))
        self.file = FeatureFile(features_folder() / digest, len(population.images), num_values)

    def _describe(self) -> dict[str, Any]:
        """Return all that the features depend on."""
        module = self.split.model.module
        kinds = {type(layer) for layer in module.modules()}
        own = {import_path(kind): source_hash(kind) for kind in kinds if not kind.__module__.startswith("torch.")}
        return {
            "model": import_path(type(module)),
            "layer": self.split.layer,
            "structure": hashlib.sha256(repr(module).encode()).hexdigest(),
            "sources": sorted(own.items()),
            "weights": _weights_digest(self.split),
            "preprocess": repr(self.preprocess),
            "is_augmented": self.is_augmented,
            "image_shape": self.population.image_shape,
            "images": _images_digest(self.population.images),
            "features": self.split.feature_shape,
            "device": self.device.type,
            "versions": (package_version(PROJECT), torch.__version__),
        }

    def population_with_features(self) -> Population:
        """Return the population with features as its images; those that are missing are computed first."""
        missing = self.file.incomplete_chunks(self.rows)
        if len(missing) < len(self.file.chunks_of(self.rows)) and self._is_outdated(missing):
            print(f"The features in {self.file.folder} are of other code: they are computed again.", file=sys.stderr)
            self.file.discard()
            missing = self.file.incomplete_chunks(self.rows)
        if missing:
            self._compute(missing)
        features: Any = self.file.open()
        if features[:1].nbytes * len(self.rows) > MAX_BYTES_IN_MEMORY:
            return replace(self.population, images=features)
        return replace(self.population, images=np.array(features[self.rows]), image_indices=self._image_indices)

    def _is_outdated(self, missing: list[int]) -> bool:
        """Return whether features in the file differ from what this code computes."""
        rows = self.rows[~np.isin(self.rows // CHUNK_ROWS, missing)][:NUM_COMPARED]
        if not len(rows):
            return False
        expected = self._features(rows)
        stored = self.file.open()[rows].reshape(len(rows), -1).view(np.float32)
        return bool(np.abs(stored - expected).max() > RTOL * np.abs(expected).max())

    def _compute(self, missing: list[int]) -> None:
        num_images = sum(len(self.file.chunk_rows(chunk)) for chunk in missing)
        num_bytes = 4 * self.file.num_values * num_images
        make_folder(features_folder())
        check_room(features_folder(), num_bytes)
        step = f"computing features of {num_images:,} images"
        announce(step, f"once: {num_bytes / 1e6:,.1f} MB in {self.file.folder}")
        self.file.compute(
            self.rows,
            self._features,
            self.about,
            lambda done, total: announce_progress(step, num_images * done // total, num_images),
        )

    def _features(self, rows: Ints) -> Floats:
        return np.concatenate([*self._batches(rows)])

    def _batches(self, rows: Ints) -> Iterator[Floats]:
        for first in range(0, len(rows), BATCH_SIZE):
            images = take_images(self.population.images, rows[first : first + BATCH_SIZE], self.device)
            with deterministic_kernels("float32"):
                if self.is_augmented:
                    uniforms = torch.full((len(images), self.preprocess.num_uniforms), 0.5, device=self.device)
                    inputs = self.preprocess.augment(images, uniforms)
                else:
                    inputs = self.preprocess.evaluate(images)
                yield self.split.features(inputs).flatten(1).cpu().numpy()


def _weights_digest(split: FeatureSplit) -> str:
    """Return a hash of all tensors of a model that do not change."""
    digest = hashlib.sha256()
    module, changing = split.model.module, split.model.shapes
    for name, tensor in sorted([*module.named_parameters(), *module.named_buffers()], key=lambda item: item[0]):
        if name not in changing:
            digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
            digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _images_digest(images: Any) -> str:
    """Return a hash of images: of their checksums, where they have some, or else of all pixels."""
    checksums = getattr(images, "checksums", None)
    digest = hashlib.sha256(repr(tuple(images.shape)).encode())
    if checksums is not None:
        digest.update(checksums.content)
        return digest.hexdigest()
    for first in range(0, len(images), HASHED_IMAGES):
        rows = np.arange(first, min(first + HASHED_IMAGES, len(images)))
        digest.update(take_images(images, rows).cpu().numpy().tobytes())
    return digest.hexdigest()
