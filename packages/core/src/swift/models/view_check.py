"""What a view is compared with before training: a few tokens, and the numbers of the model's own forward pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import nn

from swift.data.samples import Encoded, Segment
from swift.models.attention import BOTH_WAYS, VARLEN, AttentionChoice
from swift.models.classes import is_encoder
from swift.models.logits import LogitTransform

PROBED = (7, 4)
"""Lengths of the samples that layout and head are checked with: few, as DTensor plans each operation anew for each."""
FAR_PROBED = (5, 6, 7, 3, 37, 9, 11)
"""Lengths with which a small copy is probed. Short samples begin beyond its limits, a long one ends there, and none
begins at a multiple of a limit.
"""
PROBE_LOGIT = 40.0
"""Size of the logits at which the head is compared, where a cap or a scale that was missed shows."""


def probe_ids(causal_lm: Any, length: int) -> torch.Tensor:
    """Return a few token ids, spread over the vocabulary."""
    weight = causal_lm.get_input_embeddings().weight
    vocabulary = min(weight.shape[0], getattr(causal_lm.config.get_text_config(), "vocab_size", None) or len(weight))
    ids: torch.Tensor = torch.arange(1, length + 1)[None] * 7919 % vocabulary
    return ids


def probe_samples(causal_lm: Any, lengths: Sequence[int]) -> list[Encoded]:
    """Return samples of these lengths, of which every token but the first is learned."""
    samples = []
    for number, length in enumerate(lengths):
        weights = np.ones(length, dtype=np.float32)
        weights[0] = 0
        ids = probe_ids(causal_lm, length)[0].numpy().astype(np.int32)
        samples.append(Encoded(number, (Segment(ids, weights),)))
    return samples


def own_numbers(causal_lm: Any, lengths: Sequence[int], *, unembeds: bool) -> list[torch.Tensor]:
    """Return what a model by itself makes of each sample: log-probabilities of targets, or hidden states."""
    device = next(causal_lm.parameters()).device
    every = [probe_ids(causal_lm, length).to(device) for length in lengths]
    if not unembeds:
        trunk = trunk_of(causal_lm)
        return [trunk(input_ids=ids, use_cache=False).last_hidden_state[0] for ids in every]
    return [of_targets(causal_lm(input_ids=ids, use_cache=False).logits[0, :-1], ids[0, 1:]) for ids in every]


def trunk_of(model: Any) -> Any:
    """Return what makes hidden states of tokens; of an encoder not a part that transformers calls its decoder."""
    return model.base_model if is_encoder(model.config) else model.get_decoder()


def on_cpu(attention: AttentionChoice, config: Any) -> AttentionChoice:
    """Return the kernel that does in fp32 on the CPU what another one does elsewhere."""
    if attention.implementation in (VARLEN, BOTH_WAYS, "sdpa", "eager"):
        return attention
    caps = getattr(config.get_text_config(), "attn_logit_softcapping", None) is not None
    return replace(attention, implementation="eager" if caps else BOTH_WAYS if is_encoder(config) else VARLEN)


def of_targets(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return the targets' log-probabilities in the precision of the logits: it tells how closely others can agree."""
    return logits.float().log_softmax(-1).gather(-1, targets[:, None])[:, 0].to(logits.dtype)


def head_agrees(causal_lm: Any, transform: LogitTransform) -> bool:
    """Return whether decoder, head and `transform` give the model's own logits, where these are large."""
    ids = probe_ids(causal_lm, max(PROBED)).to(next(causal_lm.parameters()).device)
    decoder, head = causal_lm.get_decoder(), causal_lm.get_output_embeddings()
    if decoder is causal_lm or head is None:
        return False
    loud = None

    def make_loud(_module: nn.Module, _arguments: Any, output: Any) -> Any:
        nonlocal loud
        hidden = output.last_hidden_state
        loud = output["last_hidden_state"] = hidden * (PROBE_LOGIT / head(hidden).abs().max().clamp(min=1e-3))
        return output

    hook = decoder.register_forward_hook(make_loud)
    try:
        own = causal_lm(input_ids=ids, use_cache=False).logits
    finally:
        hook.remove()
    tolerance = PROBE_LOGIT * (1e-5 if own.dtype == torch.float32 else 2e-2)
    return bool(((transform(head(loud)) - own.float()).abs() <= tolerance).all())
