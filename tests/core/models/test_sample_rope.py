"""Samples of models whose rotary positions depend on their length, in batches, against each of them alone."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import transformers
from tiny_models import encoded

from swift.contracts import Need
from swift.data.batch import collate
from swift.models.attention import choose_attention
from swift.models.view import ViewModule

LIMIT = 16
LENGTHS = (9, 40, 16, 17, 28, 5)
"""On both sides of the original length, at it, and just beyond it."""
SHARED: dict[str, Any] = {
    "vocab_size": 101, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "pad_token_id": 0, "initializer_range": 0.3,
}  # fmt: skip


def phi3() -> Any:
    factors = {"short_factor": [1.0] * 4, "long_factor": [1.5, 3.0, 6.0, 9.0]}
    rope = {"rope_type": "longrope", "rope_theta": 1e4, "original_max_position_embeddings": LIMIT, **factors}
    config = transformers.Phi3Config(
        **SHARED, max_position_embeddings=128, original_max_position_embeddings=LIMIT, rope_parameters=rope
    )
    return transformers.Phi3ForCausalLM(config)


def dynamic() -> Any:
    rope = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 4.0}
    config = transformers.LlamaConfig(**SHARED, max_position_embeddings=LIMIT, rope_parameters=rope)
    return transformers.LlamaForCausalLM(config)


@pytest.mark.parametrize("flat", [False, True], ids=["padded", "flat"])
@pytest.mark.parametrize("make", [phi3, dynamic])
def test_padded_samples_equal_single_samples(make: Any, flat: bool) -> None:
    torch.manual_seed(0)
    model = make().eval()
    rows = [torch.randint(1, 101, (length,)) for length in LENGTHS]
    with torch.no_grad():
        # Of a model that has seen no other sample: dynamic frequencies depend on what came before.
        alone = [_logps(copy.deepcopy(model)(input_ids=row[None], use_cache=False).logits, row) for row in rows]
        attention = choose_attention("auto", model.config, flat=flat, device="cpu")
        view = ViewModule(model, attention=attention, say=lambda _: None)
        samples = encoded(rows)
        for order in (range(len(rows)), (1, 0), (2, 5), (3, 4, 0)):
            batch = collate([samples[number] for number in order], flat=flat, pad_to_multiple=8)
            found = view(batch, {Need.TOKEN_LOGPS}).token_logps
            for place, number in enumerate(order):
                ours = found[batch.segment_ids == place][:-1]
                torch.testing.assert_close(ours, alone[number], atol=1e-5, rtol=1e-5)


def _logps(logits: torch.Tensor, row: torch.Tensor) -> torch.Tensor:
    return logits[0, :-1].log_softmax(-1).gather(-1, row[1:, None])[:, 0]
