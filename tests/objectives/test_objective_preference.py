"""Preference objectives against the formulae of their papers, in the arithmetic of one pair at a time."""

from __future__ import annotations

import math

import pytest
import torch
from made_up_batches import muted, pairs, references, summed_logps, sums_of, view_of
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


def sigma(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def dpo(options, chosen, rejected, counts, reference):
    h = (chosen - reference[0]) - (rejected - reference[1])
    e, beta = options.label_smoothing, options.beta
    if options.loss == "hinge":
        return max(0.0, 1 - beta * h)
    if options.loss == "ipo":
        per_token = (chosen - reference[0]) / counts[0] - (rejected - reference[1]) / counts[1]
        return (per_token - 1 / (2 * beta)) ** 2
    return -(1 - e) * math.log(sigma(beta * h)) - e * math.log(sigma(-beta * h))


def cpo(options, chosen, rejected, counts, reference):
    margin = options.beta * (chosen - rejected)
    preference = max(0.0, 1 - margin) if options.loss == "hinge" else -math.log(sigma(margin))
    return preference - options.alpha * chosen / counts[0]


def simpo(options, chosen, rejected, counts, reference):
    margin = options.beta / counts[0] * chosen - options.beta / counts[1] * rejected - options.gamma
    return -math.log(sigma(margin)) - options.alpha * chosen / counts[0]


def orpo(options, chosen, rejected, counts, reference):
    p, q = math.exp(chosen / counts[0]), math.exp(rejected / counts[1])
    odds_ratio = (p / (1 - p)) / (q / (1 - q))
    return -chosen / counts[0] - options.beta * math.log(sigma(math.log(odds_ratio)))


CASES = {
    "dpo": (Dpo, DpoOptions(), dpo),
    "dpo smoothed": (Dpo, DpoOptions(beta=0.3, label_smoothing=0.2), dpo),
    "hinge": (Dpo, DpoOptions(loss="hinge", beta=0.5), dpo),
    "ipo": (Dpo, DpoOptions(loss="ipo", beta=0.2), dpo),
    "cpo": (Cpo, CpoOptions(), cpo),
    "cpo hinge": (Cpo, CpoOptions(loss="hinge", alpha=0.5), cpo),
    "simpo": (SimPo, SimPoOptions(), simpo),
    "cpo-simpo": (SimPo, SimPoOptions(alpha=0.7), simpo),
    "orpo": (Orpo, OrpoOptions(), orpo),
}


def formula(case, samples):
    _, options, of_pair = CASES[case]
    logps, counts = summed_logps(samples)
    rows = zip(logps.tolist(), counts.tolist(), references(samples).tolist(), strict=True)
    return sum(of_pair(options, *row, count, reference) for row, count, reference in rows)


@pytest.mark.parametrize("flat", [True, False])
@pytest.mark.parametrize("case", CASES)
def test_the_loss_is_the_papers(case, flat):
    objective, options, _ = CASES[case]
    samples = pairs()
    assert sums_of(objective(options), samples, flat=flat).loss.item() == pytest.approx(
        formula(case, samples), rel=1e-5
    )


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("cuts", [[1, 5], [2, 2, 2], [1] * 6])
def test_sums_do_not_depend_on_how_the_batch_is_cut(case, cuts):
    objective = CASES[case][0](CASES[case][1])
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
    objective = CASES[case][0](CASES[case][1])
    batch = muted(pairs(1))
    view = view_of(batch)
    sums = objective.loss(view, batch)
    assert sums.loss.item() == 0
    (gradient,) = torch.autograd.grad(sums.loss, view.token_logps)
    assert not gradient.any()
    assert all(float(total) == 0 and float(weight) == 0 for total, weight in sums.metrics.values())


def test_rewards_are_those_of_the_pairs():
    samples = pairs()
    metrics = sums_of(Dpo(DpoOptions(beta=0.3)), samples).metrics
    logps, _ = summed_logps(samples)
    chosen, rejected = (0.3 * (logps - references(samples))).unbind(1)
    expected = {
        "rewards_chosen": chosen,
        "rewards_rejected": rejected,
        "reward_margin": chosen - rejected,
        "reward_accuracy": (chosen > rejected).float(),
        "logps_chosen": logps[:, 0],
    }
    for name, value in expected.items():
        total, weight = metrics[name]
        assert float(total / weight) == pytest.approx(value.mean().item(), rel=1e-5)
    assert not metrics["rewards_chosen"][0].requires_grad


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


def test_smoothing_is_refused_where_it_has_no_meaning():
    with pytest.raises(ValidationError, match="label_smoothing needs loss sigmoid, not hinge"):
        DpoOptions(loss="hinge", label_smoothing=0.1)
