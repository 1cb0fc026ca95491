"""Files of a trained model that other programs read; each is checked against the module before it is named."""

import json
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

import torch
from torch import Tensor, nn

from manyeyes.core.rng import make_rng
from manyeyes.io.files import atomic_write
from manyeyes.io.packages import import_optional
from manyeyes.training.trained_model import TrainedModel

ONNX_OPSET = 18
TOLERANCE = 1e-4  # of probabilities
CHECK_BATCHES = (1, 3)  # images in each batch that a file is checked with


class Classifier(nn.Module):
    """Images, uint8 [B, height, width, 3] in RGB or [B, height, width, 1], to the probability of each class [B, C]."""

    mean: Tensor
    std: Tensor

    def __init__(self, model: TrainedModel) -> None:
        super().__init__()
        self.module = model.module
        self.is_multi_label = model.info.is_multi_label
        preprocess, shape = model.preprocess, (1, model.info.channels, 1, 1)
        self.register_buffer("mean", torch.tensor(preprocess.mean)[: model.info.channels].view(shape))
        self.register_buffer("std", torch.tensor(preprocess.std)[: model.info.channels].view(shape))

    def forward(self, images: Tensor) -> Tensor:
        pixels = images.permute(0, 3, 1, 2).float() / 255
        logits = self.module((pixels - self.mean) / self.std)
        probabilities: Tensor = logits.sigmoid() if self.is_multi_label else logits.softmax(1)
        return probabilities


def input_size(model: TrainedModel) -> tuple[int, int]:
    """Return the height and width of the images that an exported model takes."""
    return model.preprocess.shape(*model.info.image_shape)


def export_onnx(model: TrainedModel, path: Path) -> None:
    """Write an ONNX file: input `images`, output `probabilities`, any number of images, the classes as metadata."""
    onnx, onnxruntime = import_optional("onnx"), import_optional("onnxruntime")
    import_optional("onnxscript")  # PyTorch's exporter uses it
    with _quiet():
        program = torch.onnx.export(
            Classifier(model).eval(),
            (_images(model, 2),),
            input_names=["images"],
            output_names=["probabilities"],
            opset_version=ONNX_OPSET,
            dynamic_shapes=({0: torch.export.Dim("batch")},),
            dynamo=True,
            verbose=False,
        )
    assert program is not None, "torch.onnx.export returns a program with dynamo=True"
    proto = program.model_proto
    for key, value in (("classes", model.info.classes), ("info", asdict(model.info))):
        onnx.helper.set_model_props(proto, {p.key: p.value for p in proto.metadata_props} | {key: json.dumps(value)})
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    _check(model, lambda images: torch.from_numpy(session.run(None, {"images": images.numpy()})[0]), "ONNX")
    atomic_write(path, lambda temp: temp.write_bytes(proto.SerializeToString()))


def export_torchscript(model: TrainedModel, path: Path) -> None:
    """Write a TorchScript file, which PyTorch's C++ library and mobile runtimes read."""
    with _quiet():
        script = torch.jit.trace(Classifier(model).eval(), _images(model, 2))
    _check(model, script, "TorchScript")
    atomic_write(path, lambda temp: script.save(str(temp)))


def export_state_dict(model: TrainedModel, path: Path) -> None:
    """Write the weights alone, for `torch.load`."""
    atomic_write(path, lambda temp: torch.save(model.module.state_dict(), temp))


FORMATS: dict[str, tuple[str, Callable[[TrainedModel, Path], None]]] = {  # file name and function of each
    "onnx": ("model.onnx", export_onnx),
    "torchscript": ("model.pt", export_torchscript),
    "state-dict": ("model.pth", export_state_dict),
}


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep back what PyTorch's exporters say about packages and functions of their own."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


@torch.no_grad()
def _check(model: TrainedModel, exported: Callable[[Tensor], Tensor], format: str) -> None:
    """Raise ValueError if the exported model and the module disagree."""
    module = Classifier(model).eval()
    for size in CHECK_BATCHES:
        images = _images(model, size)
        difference = float((exported(images) - module(images)).abs().max())
        if not difference <= TOLERANCE:
            raise ValueError(f"The {format} model differs from the module by {difference:.2g}: choose another format.")


def _images(model: TrainedModel, count: int) -> Tensor:
    """Return images of random pixels."""
    pixels = make_rng(0, "export").integers(0, 256, (count, *input_size(model), model.info.channels))
    return torch.from_numpy(pixels).to(torch.uint8)
