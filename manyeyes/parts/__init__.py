"""What fills the slots of an `Algorithm`, one file a slot."""

from manyeyes.parts.cohort import BySize, Everyone, Poisson, Pooled, Uniform
from manyeyes.parts.correction import ControlVariates, Proximal, ServerMomentum
from manyeyes.parts.drawing import Epochs, FixedSize
from manyeyes.parts.local import SGD, Adam
from manyeyes.parts.owning import Ditto, FineTune
from manyeyes.parts.personal import Head, Layers, Norms
from manyeyes.parts.reweighing import ImportanceRatio
from manyeyes.parts.schedule import Schedule
from manyeyes.parts.server import ServerAdaptive, ServerSGD
from manyeyes.parts.weighing import ByExamples, ByWalk, Equally

__all__ = [
    "SGD",
    "Adam",
    "ByExamples",
    "BySize",
    "ByWalk",
    "ControlVariates",
    "Ditto",
    "Epochs",
    "Equally",
    "Everyone",
    "FineTune",
    "FixedSize",
    "Head",
    "ImportanceRatio",
    "Layers",
    "Norms",
    "Poisson",
    "Pooled",
    "Proximal",
    "Schedule",
    "ServerAdaptive",
    "ServerMomentum",
    "ServerSGD",
    "Uniform",
]
