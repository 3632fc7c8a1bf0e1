"""Sums and limits of KTO, whose loss `test_objective_trl.py` compares with TRL's."""

from __future__ import annotations

import pytest
import torch
from made_up_batches import muted, pairs, sums_of, view_of

from swift.data.batch import collate
from swift_objectives.kto import Kto, KtoOptions

OPTIONS = KtoOptions(beta=0.3, desirable_weight=1.5, undesirable_weight=0.5)


def test_sums_do_not_depend_on_how_the_batch_is_cut():
    samples = pairs()
    objective = Kto(OPTIONS).with_baseline({"kl": 0.7})
    whole = sums_of(objective, samples, flat=True)
    parts = [sums_of(objective, [sample]) for sample in samples]
    assert sum(part.loss.item() for part in parts) == pytest.approx(whole.loss.item(), rel=1e-5)
    for name, (total, weight) in whole.metrics.items():
        assert sum(float(part.metrics[name][0]) for part in parts) == pytest.approx(float(total), rel=1e-5)
        assert sum(float(part.metrics[name][1]) for part in parts) == float(weight)
    baseline = [sums_of(objective.baseline, [sample]).metrics["kl"] for sample in samples]
    assert sum(float(total) for total, _ in baseline) == pytest.approx(
        float(sums_of(objective.baseline, samples).metrics["kl"][0]), rel=1e-5
    )


def test_a_stand_in_sample_has_no_loss_no_gradient_and_no_weight():
    objective = Kto(OPTIONS).with_baseline({"kl": 0.7})
    batch = muted(pairs(1))
    view = view_of(batch)
    sums = objective.loss(view, batch)
    assert sums.loss.item() == 0
    assert not torch.autograd.grad(sums.loss, view.token_logps)[0].any()
    for total, weight in [*sums.metrics.values(), *objective.baseline.loss(view_of(batch), batch).metrics.values()]:
        assert float(total) == 0
        assert float(weight) == 0


def test_mismatched_completions_get_no_gradient():
    samples = pairs(1)
    objective = Kto(OPTIONS).with_baseline({"kl": 0.7})
    batch = collate(samples, flat=True)
    view = view_of(batch)
    (gradient,) = torch.autograd.grad(objective.loss(view, batch).loss, view.token_logps)
    assert gradient[batch.segment_ids == 0].any()
    assert not gradient[batch.segment_ids == 1].any()


def test_without_its_reference_point_there_is_no_loss():
    with pytest.raises(ValueError, match="evaluate `baseline`"):
        sums_of(Kto(OPTIONS), pairs())
