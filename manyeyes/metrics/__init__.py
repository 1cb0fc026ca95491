"""Metrics: how good a model is, how unlike the users are, and what the training cost.

`Accuracy` and `MultiLabelScores` are monoids: `of` a batch, `+` over batches, users or ranks, `results` at the end;
the order and the grouping of the sum do not matter, and `empty` is its start.
"""

from manyeyes.metrics.accuracy import Accuracy
from manyeyes.metrics.curve import Curve, relative_accuracy
from manyeyes.metrics.heterogeneity import emd, mean_emd
from manyeyes.metrics.multilabel import MultiLabelScores, PerClass
from manyeyes.metrics.users import PerUser

__all__ = [
    "Accuracy",
    "Curve",
    "MultiLabelScores",
    "PerClass",
    "PerUser",
    "emd",
    "mean_emd",
    "relative_accuracy",
]
