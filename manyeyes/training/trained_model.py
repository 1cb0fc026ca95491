"""A trained model as a file that carries what is needed to use it, and its predictions."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn

import manyeyes.components  # noqa: F401  (registers the built-in personal layers)
from manyeyes.core.from_dataset import as_pixels
from manyeyes.core.registry import build
from manyeyes.core.state import PERSONAL_MODEL_PREFIX, PERSONAL_WEIGHTS
from manyeyes.data.decode import UnreadableImage, decode, fit
from manyeyes.data.preprocess import Preprocess
from manyeyes.io.tensors import read_tensors, write_tensors
from manyeyes.models.build import Model, make_module
from manyeyes.models.flat import FlatModel
from manyeyes.training import checkpoint
from manyeyes.training.client_state import ClientStateStore
from manyeyes.training.run_files import CHECKPOINT_FILE, CLIENT_STATES_FILE, CLIENTS_FILE, MODEL_FILE, read_config

INFO_KEY = "manyeyes_model"  # of the metadata in the file
INFO_VERSION = 1
MULTI_LABEL_THRESHOLD = 0.5
BATCH_SIZE = 64
CPU = torch.device("cpu")
ImageInput = str | Path | Image.Image | NDArray[np.uint8]


@dataclass(frozen=True)
class ModelInfo:
    """What a model was made from and how it is used, as JSON in `model.safetensors`."""

    model: Mapping[str, Any] | None  # its name or import path, and its options; None for a module passed in Python
    module: str  # the import path of its class
    classes: tuple[str, ...]
    is_multi_label: bool
    image_shape: tuple[int, int]  # height and width of the images that `preprocess` takes
    preprocess: Mapping[str, Any]
    rounds: int
    metrics: Mapping[str, float] = field(default_factory=dict)  # after the last round
    privacy: Mapping[str, Any] | None = None  # the guarantee, and the epsilon that was spent
    caveats: tuple[str, ...] = ()  # of the data
    channels: int = 3  # of the images: red, green and blue, or 1, grey
    version: int = INFO_VERSION


@dataclass(frozen=True)
class Prediction:
    """What a model says of one image: its labels, and the probability of every class."""

    labels: tuple[str, ...]  # the most probable class or, with several labels per image, those above 0.5
    probabilities: Mapping[str, float]  # the most probable class first

    def top(self, count: int) -> dict[str, float]:
        """Return the most probable classes with their probabilities."""
        return dict(list(self.probabilities.items())[:count])


@dataclass(frozen=True, eq=False)
class TrainedModel:
    """A module in evaluation mode, with what is needed to use it."""

    module: nn.Module
    info: ModelInfo

    @property
    def preprocess(self) -> Preprocess:
        return Preprocess(**{name: _as_tuple(value) for name, value in self.info.preprocess.items()})

    def predict(self, images: ImageInput | Sequence[ImageInput], batch_size: int = BATCH_SIZE) -> list[Prediction]:
        """Return a prediction for each image.

        Parameters
        ----------
        images
            Paths, Pillow images or uint8 arrays `[height, width, 3]`; one of these, or an array `[N, height, width, 3]`.
            An image of another size is resized as `manyeyes data prepare` resizes. A grey array has one channel in
            place of three; colors are averaged for a model of grey images, and grey is repeated for one of colors.
        """
        is_one = isinstance(images, str | Path | Image.Image) or (isinstance(images, np.ndarray) and images.ndim == 3)
        several: Sequence[Any] = [images] if is_one else cast(Sequence[Any], images)
        pixels = [self._pixels(image) for image in several]
        batches = [pixels[first : first + batch_size] for first in range(0, len(pixels), batch_size)]
        return [prediction for batch in batches for prediction in self._predict(np.stack(batch))]

    @torch.no_grad()
    def probabilities(self, images_BHWC: Tensor) -> Tensor:
        """Return the probability of each class [B, C] for uint8 images of the model's `image_shape`."""
        logits = self.module(self.preprocess.evaluate(images_BHWC))
        return logits.sigmoid() if self.info.is_multi_label else logits.softmax(1)

    def _predict(self, images_BHWC: NDArray[np.uint8]) -> list[Prediction]:
        probabilities_BC = self.probabilities(torch.from_numpy(images_BHWC))
        order_BC = probabilities_BC.argsort(stable=True, dim=1, descending=True)
        predictions = []
        for probabilities, order in zip(probabilities_BC.tolist(), order_BC.tolist(), strict=True):
            ranked = {self.info.classes[c]: probabilities[c] for c in order}
            above = tuple(label for label, p in ranked.items() if p > MULTI_LABEL_THRESHOLD)
            predictions.append(Prediction(above if self.info.is_multi_label else (next(iter(ranked)),), ranked))
        return predictions

    def _pixels(self, image: Any) -> NDArray[np.uint8]:
        """Return the pixels of one image, of the model's `image_shape`."""
        height, width = self.info.image_shape
        size = height if height == width else None
        if isinstance(image, str | Path):
            try:
                pixels = decode(Path(image).read_bytes(), size, str(image)).pixels_HWC
            except FileNotFoundError:
                raise ValueError(f"{image} does not exist: give a photo.") from None
            except UnreadableImage as error:
                raise ValueError(f"{image} cannot be read as an image ({error}): give a photo.") from None
        else:
            pixels = np.asarray(image.convert("RGB") if isinstance(image, Image.Image) else image)
            if pixels.dtype != np.uint8 or pixels.ndim != 3 or pixels.shape[2] not in (1, 3):
                raise ValueError(f"an image is {pixels.dtype} {list(pixels.shape)}: give uint8 [height, width, 3].")
            pixels = fit(as_pixels(pixels), size)
        if pixels.shape[:2] != (height, width):
            pixels = np.asarray(Image.fromarray(pixels).resize((width, height), Image.Resampling.LANCZOS))
        return as_pixels(pixels, self.info.channels)


def write_model(path: Path, module: nn.Module, info: ModelInfo) -> None:
    write_tensors(path, module.state_dict(), {INFO_KEY: json.dumps(asdict(info))})


def load_model(path: str | Path, user: str | int | None = None, model: Model | None = None) -> TrainedModel:
    """Load a trained model.

    Parameters
    ----------
    path
        A run folder, or its `model.safetensors`, which needs no other file.
    user
        A user who has a personal model in the run folder, by name or number.
    model
        The module, or a function that makes it, for a run that was started with a module in Python.
    """
    path = Path(path)
    file = path / MODEL_FILE if path.is_dir() else path
    if not file.is_file():
        raise ValueError(f"Found no model in {path}: give the folder of a finished run, or its {MODEL_FILE}.")
    tensors, metadata, _ = read_tensors(file)
    info = _read_info(file, metadata)
    module = _make_module(file, info, model)
    try:
        module.load_state_dict(tensors)
    except RuntimeError as error:
        problem = " ".join(str(error).split())
        raise ValueError(f"{file} does not fit the model ({problem}): give the model of the run.") from None
    if user is not None:
        FlatModel(module).write(_personal_weights(path, module, user))
    return TrainedModel(module.eval(), info)


def _read_info(file: Path, metadata: Mapping[str, str]) -> ModelInfo:
    try:
        values = json.loads(metadata[INFO_KEY])
        info = ModelInfo(**{name: _as_tuple(value) for name, value in values.items()})
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        raise ValueError(f"{file} does not say how it is used: train the model again with this version.") from error
    if info.version != INFO_VERSION:
        raise ValueError(f"{file} has format {info.version} and this version of manyeyes reads {INFO_VERSION}.")
    return info


def _make_module(file: Path, info: ModelInfo, model: Model | None) -> nn.Module:
    if model is None:
        if info.model is None:
            fix = "pass model=, the module or a function that makes it"
            raise ValueError(f"{file} was trained as a module of class {info.module}: {fix}.")
        model = {name: value for name, value in info.model.items() if name != "pretrained"}
    height, _ = info.image_shape
    return make_module(model, len(info.classes), info.preprocess.get("crop") or height, seed=0)


def _personal_weights(folder: Path, module: nn.Module, user: str | int) -> Tensor:
    """Return the weights of a user's model: the shared ones with personal layers, or a personal model."""
    settings = read_config(folder) if folder.is_dir() else {}
    layers, personal_model = settings.get("personal_layers"), settings.get("personal_model")
    if not layers and not personal_model:
        raise ValueError(f"{folder} has no personal models: leave the user out, or give the folder of such a run.")
    client_id = _client_id(folder, user)
    loaded = checkpoint.load(folder / CHECKPOINT_FILE, CPU)
    store = ClientStateStore(folder / CLIENT_STATES_FILE, CPU, 0, loaded.clients, writes=False)
    try:
        state = store.get(client_id, {})
    finally:
        store.close()
    prefix, component = "", None
    if personal_model:
        prefix, component = PERSONAL_MODEL_PREFIX, build("personal_model", personal_model).personal_layers
    elif layers:
        component = build("personal_layers", layers)
    weights = state.get(prefix + PERSONAL_WEIGHTS)
    if weights is None or component is None:
        raise ValueError(f"user {user} of {folder} has no personal model: it took part in no round.")
    flat = FlatModel(module)
    mask = flat.mask(component.parameter_names(module).__contains__)
    return flat.read().masked_scatter(mask, weights)


def _client_id(folder: Path, user: str | int) -> int:
    path = folder / CLIENTS_FILE
    names: dict[str, int] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    if str(user) in names:
        return names[str(user)]
    examples = ", ".join(list(names)[:5])
    raise ValueError(f"user {user!r} is not in {path}: give one of its users, such as {examples}.")


def _as_tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
