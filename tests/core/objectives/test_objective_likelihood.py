"""Maximum likelihood against torch's own cross entropy."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from made_up_batches import pairs, summed_logps, view_of
from torch.nn import functional as F

from swift.contracts import ModelView, Need
from swift.data.batch import collate
from swift.objectives.likelihood import LikelihoodOptions, Pretrain, Sft
from swift.objectives.score import SegmentScore


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("objective", [Sft, Pretrain])
def test_the_loss_over_the_global_weight_is_torchs_cross_entropy(objective, smoothing):
    torch.manual_seed(0)
    samples = pairs()
    batch = collate(samples, flat=False)
    logits = torch.randn(*batch.targets.shape, 50)
    logps = logits.log_softmax(-1)
    view = ModelView(
        token_logps=logps.gather(-1, batch.targets[..., None])[..., 0],
        token_correct=(logits.argmax(-1) == batch.targets).float(),
        mean_logps=logps.mean(-1),
    )
    learned = objective(LikelihoodOptions(label_smoothing=smoothing))
    sums = learned.loss(view, batch)
    keep = batch.weights > 0
    expected = F.cross_entropy(logits[keep], batch.targets[keep], label_smoothing=smoothing)
    torch.testing.assert_close(sums.loss / learned.row_weight(samples), expected)
    correct, count = sums.metrics["token_acc"]
    assert correct / count == (logits.argmax(-1) == batch.targets)[keep].float().mean()


def test_vocab_means_are_requested_only_for_label_smoothing():
    """Vocabulary means are requested only when labels are smoothed."""
    assert Need.MEAN_LOGPS not in Sft(LikelihoodOptions()).needs
    assert Need.MEAN_LOGPS in Sft(LikelihoodOptions(label_smoothing=0.1)).needs


def test_a_token_counts_by_its_weight():
    batch = collate(pairs(1), flat=True)
    batch.weights *= 0.25
    whole, quarter = (Sft(LikelihoodOptions()).loss(view_of(b), b).loss for b in (collate(pairs(1), flat=True), batch))
    torch.testing.assert_close(quarter * 4, whole)


def test_score_sums_log_probs_without_loss():
    """A score is the summed log-probability of each segment and has no loss."""
    samples = pairs()
    batch = collate(samples, flat=True)
    score = SegmentScore(adapters_off=True)
    sums = score.loss(view_of(batch), batch)
    torch.testing.assert_close(sums.segments, summed_logps(samples)[0].flatten())
    assert sums.loss == 0
    assert score.adapters_off


def test_objectives_are_imported_without_torch():
    code = (
        "import sys, swift.objectives.likelihood, swift_objectives.preference, swift_objectives.kto;"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
