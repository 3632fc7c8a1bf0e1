"""Losses of routers and the load of experts, as sums over tokens. For use by backends.

Sums depend on no layout: `balance_loss` looks at one sample at a time, as DeepSeek-V3 does (arXiv:2412.19437), and is
weighted with the sample's tokens.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import torch
from torch.nn.functional import softplus

SCORES: Mapping[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "softmax": lambda logits: logits.softmax(-1),
    "sigmoid": torch.sigmoid,
    "sqrtsoftplus": lambda logits: softplus(logits).sqrt(),
}
"""Scoring functions of routers, by the names that config.json has for them."""
LOSSES = ("router_aux_loss", "router_z_loss")
"""Losses of routers, as `ModelView` and logged lines have them."""
AddUp = Callable[[torch.Tensor], object]


def balance_loss(
    logits: torch.Tensor,
    top_k: int,
    segment_ids: torch.Tensor,
    segments: int,
    *,
    scoring: str,
    add_up: AddUp | None = None,
) -> torch.Tensor:
    """Return the sum over samples of tokens · experts · Σ_e f_e · P_e, of the logits [tokens, experts] of one router.

    f_e is the share of the sample's `top_k` highest scores that are of expert e, without gradient, and P_e the mean of
    its scores, which are normalized. A balanced router has 1 per token. Where processes share samples, `add_up` adds a
    tensor up over them, and the sum of what they return is the whole.
    """
    experts = logits.shape[-1]
    scores = SCORES[scoring](logits.float())
    scores = scores / scores.sum(-1, keepdim=True)
    rows = torch.where(segment_ids >= 0, segment_ids, segments).flatten().long()  # padding has a row of its own
    highest = scores.detach().topk(top_k, dim=-1).indices
    counts = scores.new_zeros((segments + 1) * experts)
    counts.scatter_add_(0, (rows[:, None] * experts + highest).flatten(), counts.new_ones(highest.numel()))
    counts = counts.view(segments + 1, experts)
    if add_up is not None:
        add_up(counts)
    tokens = counts.sum(-1, keepdim=True) / top_k
    sums = scores.new_zeros(segments + 1, experts).index_add(0, rows, scores)
    return (sums * counts * (experts / top_k) / tokens.clamp(min=1.0))[:segments].sum()


def z_loss(logits: torch.Tensor, inside: torch.Tensor) -> torch.Tensor:
    """Return the sum over the tokens `inside` of the squared logsumexp of their logits (ST-MoE, arXiv:2202.08906)."""
    return (logits.float().logsumexp(-1).square() * inside.flatten()).sum()


def load_of(chosen: torch.Tensor, inside: torch.Tensor, experts: int) -> torch.Tensor:
    """Return how many of the tokens `inside` each expert gets, of the experts [tokens, k] that are chosen for them."""
    counted = inside.flatten()[:, None].expand_as(chosen).flatten().float()
    return counted.new_zeros(experts).scatter_add_(0, chosen.flatten(), counted)


def load_metrics(load: torch.Tensor) -> dict[str, float]:
    """Return what is logged of the load [layers, experts] of a step; layers without a router have zeros.

    `expert_load/max` is the largest share of an expert relative to an equal share, `expert_load/entropy` the mean
    entropy of layers relative to that of equal shares, and `expert_load/unused` the number of experts without a token.
    """
    load = load.double()
    load = load[load.sum(-1) > 0]
    if not len(load):
        return {}
    share, experts = load / load.sum(-1, keepdim=True), load.shape[-1]
    entropy = torch.special.entr(share).sum(-1).mean() / (math.log(experts) if experts > 1 else 1.0)
    return {
        "expert_load/max": float(share.max()) * experts,
        "expert_load/entropy": float(entropy),
        "expert_load/unused": float((load == 0).sum()),
    }


def follow_load(bias: torch.Tensor, load: torch.Tensor, rate: float) -> None:
    """Raise the bias of experts with less than the mean load by `rate`, in place, and lower that of the others."""
    with torch.no_grad():
        bias.add_((torch.sign(load.sum() - load * load.numel()) * rate).to(bias))
