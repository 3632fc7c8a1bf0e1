"""Preference objectives against the numbers of TRL's own loss functions, given the same log-probabilities.

TRL's trainers compute their losses in methods; these are called on a bare object that has just the attributes they
read, with a model that answers with prepared log-probabilities.
"""

from __future__ import annotations

from collections import defaultdict
from types import SimpleNamespace

import pytest
import torch
from made_up_batches import pairs, references, summed_logps, sums_of

from swift_objectives.kto import Kto, KtoOptions
from swift_objectives.preference import Cpo, CpoOptions, Dpo, DpoOptions, Orpo, OrpoOptions, SimPo, SimPoOptions

pytest.importorskip("trl")

ACCELERATOR = SimpleNamespace(device=torch.device("cpu"), gather=lambda x: x, gather_for_metrics=lambda x: x)


class PreparedModel:
    """Answers like TRL's patched models: per-token log-probabilities, here all of a completion in its last token."""

    training = True

    def __init__(self, sums: torch.Tensor) -> None:
        self.sums = sums

    def __call__(self, *, labels: torch.Tensor, **_: object) -> SimpleNamespace:
        logps = torch.zeros(labels.shape[0], labels.shape[1] - 1)
        logps[:, -1] = self.sums
        return SimpleNamespace(
            log_probs=logps, entropy=logps, mean_logits=logps, is_top1=torch.zeros_like(logps, dtype=torch.bool)
        )


def trainer(**attributes: object) -> SimpleNamespace:
    return SimpleNamespace(
        accelerator=ACCELERATOR, model=SimpleNamespace(training=True), aux_loss_enabled=False,
        precompute_ref_logps=True, _metrics=defaultdict(lambda: defaultdict(list)), _total_train_tokens=0, _tp_size=1,
        **attributes,
    )  # fmt: skip


def completion_mask(counts: torch.Tensor) -> torch.Tensor:
    """One prompt token, completions of these lengths, padding on the left of the prompt."""
    width = int(counts.max()) + 1
    return (torch.arange(width) >= width - counts[:, None]).long()


@pytest.mark.parametrize(("loss", "flat"), [("sigmoid", True), ("hinge", False), ("ipo", True)])
def test_dpo(loss, flat):
    from trl.trainer.dpo_trainer import DPOTrainer

    samples = pairs()
    logps, counts = summed_logps(samples)
    reference = references(samples)
    mask = completion_mask(counts.t().flatten())
    inputs = {
        "input_ids": torch.ones_like(mask),
        "attention_mask": torch.ones_like(mask),
        "completion_mask": mask,
        "ref_chosen_logps": reference[:, 0],
        "ref_rejected_logps": reference[:, 1],
    }
    theirs = trainer(
        ld_alpha=None, f_divergence_type="reverse_kl", loss_types=[loss], loss_weights=[1.0], beta=0.3,
        label_smoothing=0.0, use_weighting=False,
    )  # fmt: skip
    expected = DPOTrainer._compute_loss(theirs, PreparedModel(logps.t().flatten()), inputs, False)
    objective = Dpo(DpoOptions(loss=loss, beta=0.3))
    sums = sums_of(objective, samples, flat=flat)
    torch.testing.assert_close(sums.loss / objective.row_weight(samples), expected)
    metrics = theirs._metrics["train"]
    for name, key in {
        "rewards_chosen": "rewards/chosen",
        "rewards_rejected": "rewards/rejected",
        "reward_margin": "rewards/margins",
        "reward_accuracy": "rewards/accuracies",
        "logps_chosen": "logps/chosen",
    }.items():
        total, weight = sums.metrics[name]
        assert float(total / weight) == pytest.approx(metrics[key][0], rel=1e-5)


@pytest.mark.parametrize("shift", [-8.0, 8.0], ids=["reference point clamped", "reference point above zero"])
def test_kto(shift):
    from trl.trainer.kto_trainer import KTOTrainer

    samples = pairs()
    for sample in samples:
        sample.reference_logps[1] -= shift
    logps, counts = summed_logps(samples)
    reference = references(samples)
    mask = completion_mask(counts[:, 0])
    theirs = trainer(
        beta=0.3, desirable_weight=1.5, undesirable_weight=0.5, calculate_KL=True, loss_type="kto",
        _compute_kl_logps=lambda model, batch: logps[:, 1],
    )  # fmt: skip
    inputs = {
        "input_ids": torch.ones_like(mask),
        "attention_mask": torch.ones_like(mask),
        "completion_mask": mask,
        "label": torch.tensor([bool(sample.values["label"]) for sample in samples]),
        "ref_logps": reference[:, 0],
        "ref_KL_logps": reference[:, 1],
    }
    expected = KTOTrainer._compute_loss(theirs, PreparedModel(logps[:, 0]), inputs, False)
    objective = Kto(KtoOptions(beta=0.3, desirable_weight=1.5, undesirable_weight=0.5))
    total, weight = sums_of(objective.baseline, samples).metrics["kl"]
    sums = sums_of(objective.with_baseline({"kl": float(total / weight)}), samples)
    torch.testing.assert_close(sums.loss / objective.row_weight(samples), expected)
    for name in ("chosen", "rejected"):
        total, weight = sums.metrics[f"rewards_{name}"]
        assert float(total / weight) == pytest.approx(theirs._metrics["train"][f"rewards/{name}"][0], rel=1e-5)


def cpo_like(method, theirs, samples, *, per_token: bool, nll: torch.Tensor) -> torch.Tensor:
    """TRL's total loss, its forward pass replaced by prepared log-probabilities."""
    logps, counts = summed_logps(samples)
    scores = logps / counts if per_token else logps
    theirs.concatenated_forward = lambda model, batch: (*scores.unbind(1), logps, logps, nll)
    loss, _ = method(theirs, None, {})
    return loss


@pytest.mark.parametrize(
    ("loss", "smoothing", "objective"),
    [
        ("sigmoid", 0.0, Cpo(CpoOptions(beta=0.3, alpha=0.7))),
        ("sigmoid", 0.2, Cpo(CpoOptions(beta=0.3, alpha=0.7, label_smoothing=0.2))),
        ("hinge", 0.0, Cpo(CpoOptions(beta=0.3, alpha=0.7, loss="hinge"))),
        ("simpo", 0.0, SimPo(SimPoOptions(beta=0.3, alpha=0.7))),
    ],
)
def test_cpo_where_the_chosen_completions_are_equally_long(loss, smoothing, objective):
    from trl.experimental.cpo.cpo_trainer import CPOTrainer

    samples = pairs(completion=5)
    logps, counts = summed_logps(samples)
    theirs = trainer(alpha=0.0, beta=0.3, label_smoothing=smoothing, loss_type=loss, cpo_alpha=0.7, simpo_gamma=1.0)
    theirs.cpo_loss = lambda *scores: CPOTrainer.cpo_loss(theirs, *scores)
    token_mean = -logps[:, 0].sum() / counts[:, 0].sum()
    per_token = loss == "simpo"
    expected = cpo_like(CPOTrainer.get_batch_loss_metrics, theirs, samples, per_token=per_token, nll=token_mean)
    torch.testing.assert_close(sums_of(objective, samples).loss / objective.row_weight(samples), expected)


def test_simpo():
    from trl.experimental.cpo.cpo_trainer import CPOTrainer

    samples = pairs()
    theirs = trainer(alpha=0.0, beta=2.0, label_smoothing=0.0, loss_type="simpo", cpo_alpha=0.0, simpo_gamma=1.0)
    theirs.cpo_loss = lambda *scores: CPOTrainer.cpo_loss(theirs, *scores)
    expected = cpo_like(CPOTrainer.get_batch_loss_metrics, theirs, samples, per_token=True, nll=torch.zeros(()))
    objective = SimPo(SimPoOptions())
    torch.testing.assert_close(sums_of(objective, samples).loss / objective.row_weight(samples), expected)


def test_orpo_with_the_likelihood_of_completions():
    from trl.experimental.orpo.orpo_trainer import ORPOTrainer

    samples = pairs(completion=5)
    logps, counts = summed_logps(samples)
    theirs = trainer(beta=0.3)
    theirs.odds_ratio_loss = lambda *scores: ORPOTrainer.odds_ratio_loss(theirs, *scores)
    token_mean = -logps[:, 0].sum() / counts[:, 0].sum()
    expected = cpo_like(ORPOTrainer.get_batch_loss_metrics, theirs, samples, per_token=True, nll=token_mean)
    objective = Orpo(OrpoOptions(beta=0.3))
    torch.testing.assert_close(sums_of(objective, samples).loss / objective.row_weight(samples), expected)
