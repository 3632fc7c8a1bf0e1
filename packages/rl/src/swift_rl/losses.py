"""Losses of single tokens, as pure functions of tensors in the layout of a micro-batch.

None of them looks beyond the segment that a token belongs to, so how completions are cut into micro-batches, packed or
padded changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from swift.data.batch import MicroBatch
    from swift_rl.algorithm_options import AlgorithmOptions


@dataclass(frozen=True)
class TokenLosses:
    """One value for every position."""

    loss: torch.Tensor
    ratio: torch.Tensor
    """Importance ratio between the policy and the one that the completions were sampled from."""
    clipped_low: torch.Tensor
    """True where the ratio lies below the clip and a lower one would not change the loss."""
    clipped_high: torch.Tensor


def segment_means(values: torch.Tensor, batch: MicroBatch) -> torch.Tensor:
    """Return the mean over the learned tokens of its segment, at every position."""
    counts = (batch.weights > 0).to(values.dtype)
    means = batch.segment_sum(values * counts) / batch.segment_sum(counts).clamp(min=1)
    return means[batch.segment_ids.clamp(min=0)]


def log_ratios(
    logps: torch.Tensor, old_logps: torch.Tensor, batch: MicroBatch, options: AlgorithmOptions
) -> torch.Tensor:
    """Return the logarithm of the importance ratio at every position: its token's, or that of its completion.

    The ratio of a completion is the geometric mean over its tokens. `sequence_token` has the value of `sequence`, and
    at each token the gradient of this token alone (GSPO-token, arXiv 2507.18071).
    """
    log_ratio = torch.where(batch.weights > 0, logps - old_logps, 0.0)
    if options.log_ratio_clamp is not None:
        log_ratio = log_ratio.clamp(-options.log_ratio_clamp, options.log_ratio_clamp)
    if options.level == "token":
        return log_ratio
    means = segment_means(log_ratio, batch)
    if options.level == "sequence":
        return means
    return means.detach() + (log_ratio - log_ratio.detach())


def policy_losses(
    logps: torch.Tensor, log_ratio: torch.Tensor, advantages: torch.Tensor, options: AlgorithmOptions
) -> TokenLosses:
    """Return the loss of every token, whose gradient at ratio 1 is -advantage · ∇ log p for every kind."""
    ratio = log_ratio.exp()
    if options.loss_type == "cispo":
        lowest, highest = options.cispo_limits
        weight = ratio.detach().clamp(lowest, highest)
        low = torch.zeros_like(ratio, dtype=torch.bool) if lowest is None else ratio < lowest
        return TokenLosses(-weight * advantages * logps, ratio.detach(), low, ratio > highest)
    if options.loss_type == "sapo":
        return _soft_gate(ratio, advantages, options)
    lowest, highest = 1 - options.epsilon, 1 + options.upper
    return clipped(ratio, advantages, lowest=lowest, highest=highest, most=options.delta)


def clipped(
    ratio: torch.Tensor, advantages: torch.Tensor, *, lowest: float, highest: float, most: float | None = None
) -> TokenLosses:
    """Return the surrogate of PPO (arXiv 1707.06347), with a bound on each side; `most` is that of a dual clip."""
    bounded = ratio if most is None else ratio.clamp(max=most)
    loss = -torch.minimum(bounded * advantages, ratio.clamp(lowest, highest) * advantages)
    low, high = (ratio < lowest) & (advantages < 0), (ratio > highest) & (advantages > 0)
    return TokenLosses(loss, ratio.detach(), low, high)


def _soft_gate(ratio: torch.Tensor, advantages: torch.Tensor, options: AlgorithmOptions) -> TokenLosses:
    """Return the loss with a sigmoid instead of the clip (SAPO, arXiv 2511.20347)."""
    positive = advantages > 0
    temperature = torch.where(positive, options.sapo_temperature_pos, options.sapo_temperature_neg).to(ratio.dtype)
    loss = -(4 / temperature) * (temperature * (ratio - 1)).sigmoid() * advantages
    never = torch.zeros_like(positive)
    return TokenLosses(loss, ratio.detach(), never, never)


def on_policy_enough(
    logps: torch.Tensor, old_logps: torch.Tensor, advantages: torch.Tensor, batch: MicroBatch, most: float
) -> torch.Tensor:
    """Return 0.0 at the tokens of completions with a negative advantage that have become too unlikely, else 1.0.

    A completion has become too unlikely where its mean log-ratio old − current is above `most` (DeepSeek-V3.2).
    """
    drift = segment_means(old_logps - logps.detach(), batch)
    return ((advantages >= 0) | (drift <= most)).to(logps.dtype)
