"""What fills the slots of an `Algorithm`, one file a slot."""

from manyeyes.parts.aggregation import Krum, Median, TrimmedMean
from manyeyes.parts.cohort import BySize, Everyone, Poisson, Pooled, Uniform
from manyeyes.parts.compression import BF16, Int8, TopK
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
    "BF16",
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
    "Int8",
    "Krum",
    "Layers",
    "Median",
    "Norms",
    "Poisson",
    "Pooled",
    "Proximal",
    "Schedule",
    "ServerAdaptive",
    "ServerMomentum",
    "ServerSGD",
    "TopK",
    "TrimmedMean",
    "Uniform",
]
