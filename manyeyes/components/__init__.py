"""What fills the slots of an `Algorithm`, one file a slot."""

from manyeyes.components.aggregators import Krum, Median, TrimmedMean
from manyeyes.components.batching import EpochBatching, VirtualClientBatching
from manyeyes.components.client_optimizers import SGD, Adam
from manyeyes.components.client_weighting import FedNovaWeighting, WeightByExamples, WeightUniformly
from manyeyes.components.compressors import BF16, Int8, TopK
from manyeyes.components.corrections import FedDynCorrection, MimeLiteMomentum, ProximalTerm, ScaffoldCorrection
from manyeyes.components.example_weighting import ImportanceReweighting
from manyeyes.components.losses import BinaryCrossEntropy, CrossEntropy, Focal, LabelSmoothing
from manyeyes.components.personal_layers import HeadLayers, MatchingLayers, NormLayers
from manyeyes.components.personal_models import Ditto, FineTune
from manyeyes.components.samplers import AllClients, Centralized, PoissonSampler, SizeWeightedSampler, UniformSampler
from manyeyes.components.schedule import Schedule
from manyeyes.components.server_optimizers import AdaptiveServer, ServerSGD

__all__ = [
    "BF16",
    "SGD",
    "Adam",
    "AdaptiveServer",
    "AllClients",
    "BinaryCrossEntropy",
    "Centralized",
    "CrossEntropy",
    "Ditto",
    "EpochBatching",
    "FedDynCorrection",
    "FedNovaWeighting",
    "FineTune",
    "Focal",
    "HeadLayers",
    "ImportanceReweighting",
    "Int8",
    "Krum",
    "LabelSmoothing",
    "MatchingLayers",
    "Median",
    "MimeLiteMomentum",
    "NormLayers",
    "PoissonSampler",
    "ProximalTerm",
    "ScaffoldCorrection",
    "Schedule",
    "ServerSGD",
    "SizeWeightedSampler",
    "TopK",
    "TrimmedMean",
    "UniformSampler",
    "VirtualClientBatching",
    "WeightByExamples",
    "WeightUniformly",
]
