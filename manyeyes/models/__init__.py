"""Models by name, import path or factory: `build_model("resnet18", classes=17)`."""

from manyeyes.models import architectures as architectures  # registers the built-in models
from manyeyes.models.adapters import Adapter as Adapter
from manyeyes.models.build import build_model as build_model
from manyeyes.models.build import make_module as make_module
from manyeyes.models.build import model_options as model_options
from manyeyes.models.build import set_trainable as set_trainable
from manyeyes.models.build import weights_input as weights_input
from manyeyes.models.inspection import layers as layers
from manyeyes.models.norms import NORMS as NORMS
from manyeyes.models.norms import FrozenBatchNorm2d as FrozenBatchNorm2d
from manyeyes.models.norms import convert_norms as convert_norms
from manyeyes.models.norms import freeze_norms as freeze_norms
from manyeyes.models.norms import group_norms as group_norms
from manyeyes.models.pretrained import load_pretrained as load_pretrained
