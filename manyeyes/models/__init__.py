"""Models by name, import path or factory: `build_model("resnet18", classes=17)`."""

from manyeyes.models import architectures as architectures
from manyeyes.models.build import build_model, model_options, set_trainable
from manyeyes.models.inspection import layers
from manyeyes.models.norms import (
    NORMS,
    FrozenBatchNorm2d,
    freeze_norms,
    group_count,
    group_norms,
)
from manyeyes.models.pretrained import Pretrained, load_pretrained

__all__ = [
    "NORMS",
    "FrozenBatchNorm2d",
    "Pretrained",
    "build_model",
    "freeze_norms",
    "group_count",
    "group_norms",
    "layers",
    "load_pretrained",
    "model_options",
    "set_trainable",
]
