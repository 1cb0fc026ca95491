"""The losses of a report, against torch."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from manyeyes.metrics import MultiLabelScores
from manyeyes.metrics import losses as module
from manyeyes.metrics.losses import cross_entropy


def test_cross_entropy_equals_that_of_torch() -> None:
    scores, targets = torch.randn(20, 5, dtype=torch.float64) * 50, torch.arange(20) % 5
    expected = F.cross_entropy(scores, targets, reduction="none").numpy()
    np.testing.assert_allclose(cross_entropy(scores.numpy(), targets.numpy()), expected, rtol=1e-12, atol=1e-12)


def test_mean_binary_cross_entropy_equals_that_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BLOCK_EXAMPLES", 3)
    scores, hot = torch.randn(20, 5, dtype=torch.float64), (torch.arange(100).view(20, 5) % 3 == 0).double()
    halves = (MultiLabelScores.from_scores(scores[i : i + 10], hot[i : i + 10]) for i in (0, 10))
    expected = F.binary_cross_entropy_with_logits(scores, hot).item()
    assert sum(halves, MultiLabelScores.empty(5)).mean_loss == pytest.approx(expected, rel=1e-12)


def test_no_scores_have_no_loss() -> None:
    assert MultiLabelScores.empty(3).mean_loss == 0
