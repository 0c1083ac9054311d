"""Metrics by hand."""

import pytest
import torch

from torchcaps.analysis.metrics import (
    confusion,
    coupling_entropy,
    dead_capsules,
    error_percent,
    exact_match_error_percent,
    half_credit_error_percent,
)


def test_metrics_by_hand():
    said, labels = torch.tensor([0, 1, 2, 2]), torch.tensor([0, 1, 1, 2])
    assert error_percent(said, labels) == 25
    assert confusion(said, labels, 3).tolist() == [[1, 0, 0], [0, 1, 1], [0, 0, 1]]
    pairs_said, pairs = torch.tensor([[1, 2], [3, 4], [5, 6]]), torch.tensor([[2, 1], [3, 5], [7, 8]])
    assert exact_match_error_percent(pairs_said, pairs) == pytest.approx(200 / 3)
    assert half_credit_error_percent(pairs_said, pairs) == pytest.approx(50)
    assert coupling_entropy(torch.full((2, 3, 4), 0.25)) == pytest.approx(1)
    assert coupling_entropy(torch.eye(4)) == pytest.approx(0)
    assert dead_capsules(torch.tensor([[0.0, 0.5], [0.001, 0.0]])).tolist() == [True, False]
