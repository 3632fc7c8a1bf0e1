"""Losses of `grpo`: each kind against its formula in plain torch, and what must not matter for any of them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from pydantic import ValidationError
from stored_completions import completion, grpo, logps_of, summed

from swift.data.batch import collate

SAMPLES = [completion(number, length) for number, length in enumerate((5, 1, 7, 2, 4, 3, 6, 2, 9))]
KINDS: dict[str, dict[str, Any]] = {
    "dapo": {},
    "clip-higher": {"epsilon_high": 0.28},
    "dual clip": {"delta": 1.5},
    "grpo": {"loss_type": "grpo"},
    "dr_grpo": {"loss_type": "dr_grpo", "max_completion_length": 16},
    "gspo": {"loss_type": "gspo"},
    "gspo-token": {"loss_type": "gspo", "importance_sampling_level": "sequence_token"},
    "sequence ratio in dapo": {"importance_sampling_level": "sequence"},
    "cispo": {"loss_type": "cispo", "epsilon_high": 1.5},
    "cispo, relative": {"loss_type": "cispo", "cispo_bound": "relative"},
    "sapo": {"loss_type": "sapo"},
    "k1": {"beta": 0.1, "kl_estimator": "k1"},
    "k2": {"beta": 0.1, "kl_estimator": "k2"},
    "k3": {"beta": 0.1},
    "k3 in gspo": {"beta": 0.1, "loss_type": "gspo"},
    "unbiased k3": {"beta": 0.1, "use_bias_correction_kl": True},
    "clamped k3": {"beta": 0.1, "kl_log_ratio_clamp": 0.8, "kl_clamp": 0.3},
    "clamped ratio": {"log_ratio_clamp": 0.1},
    "completions that drifted": {"off_policy_sequence_mask_delta": 0.2},
}


def kl_of_formula(logps: torch.Tensor, reference: torch.Tensor, options: dict[str, Any]) -> torch.Tensor:
    q = reference - logps
    if "kl_log_ratio_clamp" in options:
        q = q.clamp(-options["kl_log_ratio_clamp"], options["kl_log_ratio_clamp"])
    value = {"k1": -q, "k2": q**2 / 2, "k3": torch.exp(q) - q - 1}[options.get("kl_estimator", "k3")]
    return value.clamp(max=options["kl_clamp"]) if "kl_clamp" in options else value


def by_formula(kind: str, options: dict[str, Any], logps: list[torch.Tensor]) -> torch.Tensor:
    """The loss of all samples at once, a completion after the other, as the papers write it."""
    rows: list[torch.Tensor] = []
    for sample, logp in zip(SAMPLES, logps, strict=True):
        given = {name: torch.from_numpy(each[3:]).double() for name, each in sample.segments[0].token_values.items()}
        advantage, length = given["advantages"], len(logp)
        log_ratio = logp - given["old_logps"]
        if "log_ratio_clamp" in options:
            log_ratio = log_ratio.clamp(-options["log_ratio_clamp"], options["log_ratio_clamp"])
        level = options.get("importance_sampling_level", "sequence" if options.get("loss_type") == "gspo" else "token")
        if level == "sequence":
            log_ratio = (log_ratio.sum() / length).expand(length)
        elif level == "sequence_token":
            log_ratio = torch.exp((log_ratio.sum() / length).detach()) * torch.exp(logp - logp.detach())
            log_ratio = torch.log(log_ratio)
        ratio = torch.exp(log_ratio)
        low, high = 1 - 0.2, 1 + options.get("epsilon_high", 0.2)
        if kind == "cispo":
            each = -ratio.clamp(max=1.5).detach() * advantage * logp
        elif kind == "cispo, relative":
            each = -ratio.clamp(low, high).detach() * advantage * logp
        elif kind == "sapo":
            tau = torch.where(advantage > 0, 1.0, 1.05).double()
            each = -4 / tau * torch.sigmoid(tau * (ratio - 1)) * advantage
        else:
            each = -torch.minimum(ratio * advantage, ratio.clamp(low, high) * advantage)
            if kind == "dual clip":
                each = torch.where(advantage < 0, torch.minimum(-1.5 * advantage, each), each)
        if "off_policy_sequence_mask_delta" in options:
            drifted = (given["old_logps"] - logp.detach()).mean() > options["off_policy_sequence_mask_delta"]
            each = torch.where((advantage < 0) & drifted, 0.0, each)
        each = each * given["is_weights"]
        if "beta" in options:
            apart = kl_of_formula(logp, given["ref_logps"], options)
            each = each + options["beta"] * (apart * ratio if "use_bias_correction_kl" in options else apart)
        rows.append(each)
    lengths = sum(len(row) for row in rows)
    if options.get("loss_type") in ("grpo", "gspo", "sapo"):
        return torch.stack([row.mean() for row in rows]).mean()
    if options.get("loss_type") == "dr_grpo":
        return torch.cat(rows).sum() / (len(rows) * options["max_completion_length"])
    return torch.cat(rows).sum() / lengths


@pytest.mark.parametrize("kind", KINDS)
def test_loss_types_match_formula_and_gradient(kind: str) -> None:
    """Each kind of loss has the value and the gradient of its formula."""
    loss, gradient, _ = summed(grpo(**KINDS[kind]), SAMPLES, len(SAMPLES), flat=False)
    leaves = logps_of(SAMPLES)
    expected = by_formula(kind, KINDS[kind], leaves)
    torch.testing.assert_close(loss, expected.detach(), rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(gradient, torch.cat(torch.autograd.grad(expected, leaves)), rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("kind", KINDS)
def test_padding_and_packing_do_not_change_loss(kind: str) -> None:
    objective = grpo(**KINDS[kind], log_entropy=True)
    whole = summed(objective, SAMPLES, len(SAMPLES), flat=False)
    for cut, flat, multiple in ((1, False, 1), (2, True, 8), (4, True, 1), (9, True, 64), (3, False, 16)):
        loss, gradient, metrics = summed(objective, SAMPLES, cut, flat=flat, multiple=multiple)
        torch.testing.assert_close(loss, whole[0], rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(gradient, whole[1], rtol=1e-12, atol=1e-12)
        assert metrics == pytest.approx(whole[2], rel=1e-5)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if "k" not in kind and "clamped" not in kind])
def test_missing_old_log_probs_give_policy_gradient(kind: str) -> None:
    """Without old log-probabilities the ratio is exactly one and the gradient that of the policy."""
    options = {name: value for name, value in KINDS[kind].items() if name != "off_policy_sequence_mask_delta"}
    samples = [completion(number, 4, without=("old_logps", "ref_logps", "is_weights")) for number in range(6)]
    objective = grpo(**options)
    _, gradient, metrics = summed(objective, samples, 2, flat=True)
    assert (metrics["ratio"], metrics["approx_kl"]) == (1.0, 0.0)
    assert (metrics["clip_ratio_low"], metrics["clip_ratio_high"]) == (0.0, 0.0)
    advantages = torch.cat([torch.from_numpy(each.segments[0].token_values["advantages"][3:]) for each in samples])
    per_token = 16 * 6 if options.get("loss_type") == "dr_grpo" else 24
    torch.testing.assert_close(gradient, -advantages.double() / per_token, rtol=1e-9, atol=1e-12)


def test_masked_completion_is_outside_loss_and_divisor() -> None:
    """A completion that is not learned from has no part in the loss or in what divides it."""
    from dataclasses import replace

    left_out = completion(99, 5)
    muted = replace(left_out, segments=(replace(left_out.segments[0], weights=left_out.segments[0].weights * 0),))
    for kind in ("dapo", "grpo", "dr_grpo", "gspo", "k3"):
        objective = grpo(**KINDS[kind])
        batch = collate([muted], flat=False)
        from swift.contracts import ModelView

        sums = objective.loss(ModelView(token_logps=torch.zeros(batch.weights.shape)), batch)
        assert float(sums.loss) == 0
        assert all(float(weight) == 0 for _, weight in sums.metrics.values())
        assert objective.row_weight([*SAMPLES, muted]) == objective.row_weight(SAMPLES)


def test_what_the_loss_is_a_mean_over_is_known_before_the_step() -> None:
    tokens = sum(len(sample.segments[0]) - 3 for sample in SAMPLES)
    weights = {kind: grpo(**KINDS[kind]).row_weight(SAMPLES) for kind in ("dapo", "cispo", "grpo", "gspo", "sapo")}
    assert weights == {"dapo": tokens, "cispo": tokens, "grpo": 9, "gspo": 9, "sapo": 9}
    assert grpo(loss_type="dr_grpo", max_completion_length=16).row_weight(SAMPLES) == 9 * 16


def test_clip_fraction_counts_clipped_tokens() -> None:
    """The clip fractions count tokens whose loss no longer depends on the ratio."""
    for kind in ("dapo", "clip-higher", "gspo"):
        _, gradient, metrics = summed(grpo(**KINDS[kind]), SAMPLES, 3, flat=False)
        stuck = float((gradient == 0).double().mean())
        assert metrics["clip_ratio_low"] + metrics["clip_ratio_high"] == pytest.approx(stuck)
        assert stuck > 0


def test_bnpo_equals_dapo_with_note() -> None:
    as_dapo = summed(grpo(), SAMPLES, 2, flat=False)
    as_bnpo = summed(grpo(loss_type="bnpo"), SAMPLES, 2, flat=False)
    assert torch.equal(as_bnpo[0], as_dapo[0])
    assert [line for line in grpo(loss_type="bnpo").options.notes() if "bnpo" in line and "dapo" in line]
    assert grpo().options.notes() == []


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"loss_type": "cispo", "epsilon_high": 0.28}, "cispo_bound relative"),
        ({"loss_type": "sapo", "delta": 2.0}, "delta bounds a clipped loss"),
        ({"delta": 1.2}, "above 1 \\+ epsilon_high"),
        ({"scale_rewards": "gdpo", "advantage_estimator": "rloo"}, "belongs to advantage_estimator grpo"),
        ({"leave_one_out": True, "advantage_estimator": "opo"}, "belongs to advantage_estimator grpo"),
    ],
)
def test_options_that_have_no_meaning_together_are_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        grpo(**options)
