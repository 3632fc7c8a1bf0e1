"""The losses of `grpo` against TRL's own: its trainer's method, called on an object that has just what it reads."""

from __future__ import annotations

from collections import defaultdict
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from stored_completions import PROMPT, completion, grpo, logps_of, summed

pytest.importorskip("trl")

SAMPLES = [completion(number, length) for number, length in enumerate((5, 1, 7, 2, 4, 3))]
WIDTH = 7
CASES: dict[str, dict[str, Any]] = {
    "dapo": {},
    "grpo": {"loss_type": "grpo"},
    "dr_grpo": {"loss_type": "dr_grpo", "max_completion_length": 16},
    "clip-higher and delta": {"epsilon_high": 0.28, "delta": 1.5},
    "sequence ratio": {"loss_type": "grpo", "importance_sampling_level": "sequence"},
    "sequence ratio in dapo": {"importance_sampling_level": "sequence"},
    "cispo": {"loss_type": "cispo", "epsilon_high": 1.5},
    "sapo": {"loss_type": "sapo"},
    "kl": {"beta": 0.1},
    "kl, corrected": {"beta": 0.1, "use_bias_correction_kl": True},
    "off-policy mask": {"off_policy_sequence_mask_delta": 0.2},
}


def rows(name: str) -> torch.Tensor:
    """One value per token of each completion, padded on the right."""
    given = [torch.from_numpy(each.segments[0].token_values[name][PROMPT:]).double() for each in SAMPLES]
    return torch.nn.utils.rnn.pad_sequence(given, batch_first=True)


def of_trl(options: dict[str, Any], logps: list[torch.Tensor]) -> torch.Tensor:
    """The loss that TRL computes of these log-probabilities, in one micro-batch."""
    from trl.trainer.grpo_trainer import GRPOTrainer

    lengths = torch.tensor([len(each) for each in logps])
    mask = (torch.arange(WIDTH) < lengths[:, None]).long()
    padded = torch.nn.utils.rnn.pad_sequence(logps, batch_first=True)
    loss_type = options.get("loss_type", "dapo")
    arguments = SimpleNamespace(
        delta=options.get("delta"), use_bias_correction_kl=options.get("use_bias_correction_kl", False),
        sapo_temperature_pos=1.0, sapo_temperature_neg=1.05, steps_per_generation=1,
    )  # fmt: skip
    trainer = SimpleNamespace(
        _get_per_token_logps_and_entropies=lambda *_, **__: (padded, torch.zeros_like(padded), None),
        get_off_policy_mask=GRPOTrainer.get_off_policy_mask, top_entropy_quantile=1.0, aux_loss_enabled=False,
        off_policy_mask_threshold=options.get("off_policy_sequence_mask_delta"), loss_type=loss_type, args=arguments,
        importance_sampling_level=options.get("importance_sampling_level", "token"), beta=options.get("beta", 0.0),
        epsilon_low=0.2, epsilon_high=options.get("epsilon_high", 0.2), use_vllm=True, max_completion_length=16,
        vllm_importance_sampling_correction=True, current_gradient_accumulation_steps=1,
        _entropy_bonus_enabled=False, model=SimpleNamespace(training=True),
        _metrics=defaultdict(lambda: defaultdict(list)),
        accelerator=SimpleNamespace(num_processes=1, gather=lambda x: x, reduce=lambda x, **_: x, sync_gradients=True),
    )  # fmt: skip
    prompt = torch.ones(len(logps), PROMPT, dtype=torch.long)
    inputs = {
        "prompt_ids": prompt, "prompt_mask": prompt, "completion_ids": mask, "completion_mask": mask,
        "advantages": rows("advantages")[:, 0], "old_per_token_logps": rows("old_logps"),
        "ref_per_token_logps": rows("ref_logps"), "importance_sampling_ratio": rows("is_weights"),
        "num_items_in_batch": lengths.sum(),
    }  # fmt: skip
    return GRPOTrainer._compute_loss(trainer, SimpleNamespace(training=True), inputs)


@pytest.mark.full
@pytest.mark.parametrize("case", CASES)
def test_the_loss_and_its_gradient_are_those_of_trl(case: str) -> None:
    leaves = logps_of(SAMPLES)
    theirs = of_trl(CASES[case], leaves)
    ours, gradient, _ = summed(grpo(**CASES[case]), SAMPLES, 2, flat=True)
    torch.testing.assert_close(ours, theirs.detach(), rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(gradient, torch.cat(torch.autograd.grad(theirs, leaves)), rtol=1e-5, atol=1e-8)
