"""Sums and limits of preference objectives, whose losses `test_objective_trl.py` compares with TRL's."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from made_up_batches import muted, pairs, sums_of, view_of
from pydantic import ValidationError

from swift.contracts import ModelView
from swift.data.batch import collate
from swift_objectives.preference import (
    Cpo,
    CpoOptions,
    Dpo,
    DpoOptions,
    Orpo,
    OrpoOptions,
    SimPo,
    SimPoOptions,
)

CASES = {
    "dpo": Dpo(DpoOptions(beta=0.3, label_smoothing=0.2)),
    "hinge": Dpo(DpoOptions(loss="hinge", beta=0.5)),
    "ipo": Dpo(DpoOptions(loss="ipo", beta=0.2)),
    "cpo": Cpo(CpoOptions()),
    "simpo": SimPo(SimPoOptions(alpha=0.7)),
    "orpo": Orpo(OrpoOptions()),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("cuts", [[1, 5], [2, 2, 2], [1] * 6])
def test_sums_do_not_depend_on_how_the_batch_is_cut(case, cuts):
    objective = CASES[case]
    samples = pairs()
    whole = sums_of(objective, samples)
    ends = torch.tensor(cuts).cumsum(0).tolist()
    parts = [sums_of(objective, samples[end - size : end]) for end, size in zip(ends, cuts, strict=True)]
    assert sum(part.loss.item() for part in parts) == pytest.approx(whole.loss.item(), rel=1e-5)
    for name, (total, weight) in whole.metrics.items():
        assert sum(float(part.metrics[name][0]) for part in parts) == pytest.approx(float(total), rel=1e-5, abs=1e-6)
        assert sum(float(part.metrics[name][1]) for part in parts) == float(weight)
    assert objective.row_weight(samples) == sum(
        objective.row_weight(samples[end - size : end]) for end, size in zip(ends, cuts, strict=True)
    )


@pytest.mark.parametrize("case", CASES)
def test_a_stand_in_pair_has_no_loss_no_gradient_and_no_weight(case):
    objective = CASES[case]
    batch = muted(pairs(1))
    view = view_of(batch)
    sums = objective.loss(view, batch)
    assert sums.loss.item() == 0
    (gradient,) = torch.autograd.grad(sums.loss, view.token_logps)
    assert not gradient.any()
    assert all(float(total) == 0 and float(weight) == 0 for total, weight in sums.metrics.values())


def test_orpo_stays_finite_for_a_completion_that_is_certain():
    batch = collate(pairs(1), flat=False)
    view = ModelView(token_logps=torch.zeros_like(batch.weights, requires_grad=True))
    loss = Orpo(OrpoOptions()).loss(view, batch).loss
    (gradient,) = torch.autograd.grad(loss, view.token_logps)
    assert loss.isfinite()
    assert gradient.isfinite().all()


def test_orpo_is_exact_for_completions_that_are_nearly_certain():
    batch = collate(pairs(1), flat=False)
    chosen, rejected = -3e-4, -2e-4
    logps = torch.where(batch.segment_ids == 0, chosen, rejected)
    found = Orpo(OrpoOptions(beta=1.0)).loss(ModelView(token_logps=logps), batch).loss.item() + chosen
    odds = (math.exp(x) / -math.expm1(x) for x in (chosen, rejected))
    ratio = next(odds) / next(odds)
    assert found == pytest.approx(math.log1p(1 / ratio), rel=1e-5)


def test_smoothing_mixes_the_loss_with_that_of_swapped_pairs():
    samples = pairs()
    swapped = [
        replace(each, segments=each.segments[::-1], reference_logps=each.reference_logps[::-1]) for each in samples
    ]
    of_one, of_other = (sums_of(Dpo(DpoOptions(beta=0.3)), each).loss.item() for each in (samples, swapped))
    mixed = sums_of(Dpo(DpoOptions(beta=0.3, label_smoothing=0.2)), samples).loss.item()
    assert mixed == pytest.approx(0.8 * of_one + 0.2 * of_other, rel=1e-5)


def test_smoothing_is_refused_where_it_has_no_meaning():
    with pytest.raises(ValidationError, match="label_smoothing needs loss sigmoid, not hinge"):
        DpoOptions(loss="hinge", label_smoothing=0.1)
