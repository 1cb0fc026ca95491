"""Metrics: how good a model is, how different the users are, and what training costs.

All metrics of models follow `Metric`: they merge over batches, users and processes. `Accuracy` or `MultiLabelScores` is
always reported; the metrics of the slot (`top_k`, `ece`, a user's own) are added to it.
"""

from manyeyes.metrics.accuracy import Accuracy
from manyeyes.metrics.base import Metric, MetricSet, ResultInfo
from manyeyes.metrics.calibration import CalibrationError
from manyeyes.metrics.curve import Curve, relative_accuracy
from manyeyes.metrics.heterogeneity import emd, emd_of_counts, mean_emd
from manyeyes.metrics.multilabel import MultiLabelScores, PerClass
from manyeyes.metrics.results import PERSONALIZED, result_info
from manyeyes.metrics.top_k import TopK
from manyeyes.metrics.users import PerUser

__all__ = [
    "PERSONALIZED",
    "Accuracy",
    "CalibrationError",
    "Curve",
    "Metric",
    "MetricSet",
    "MultiLabelScores",
    "PerClass",
    "PerUser",
    "ResultInfo",
    "TopK",
    "emd",
    "emd_of_counts",
    "mean_emd",
    "relative_accuracy",
    "result_info",
]
