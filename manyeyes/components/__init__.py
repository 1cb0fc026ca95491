"""What fills the slots of an `Algorithm`, one file per slot; a new component is available here without being listed."""

# ruff: noqa: F403

from manyeyes.components.aggregators import *
from manyeyes.components.batching import *
from manyeyes.components.bounded_mean import *
from manyeyes.components.client_optimizers import *
from manyeyes.components.compressors import *
from manyeyes.components.corrections import *
from manyeyes.components.losses import *
from manyeyes.components.personalization import *
from manyeyes.components.samplers import *
from manyeyes.components.server_optimizers import *
from manyeyes.components.weighting import *
