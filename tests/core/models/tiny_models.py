"""Tiny models of several architectures, and folders of them, for the tests of swift.models."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.utils._python_dispatch
import transformers
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

from swift.data.samples import Encoded, Segment

VOCABULARY = 64
SHARED = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
HEADS = {**SHARED, "head_dim": 8}


def configurations() -> dict[str, Any]:
    """Name → configuration: dense, tied, with biases, and with experts that transformers stacks."""
    return {
        "qwen3": transformers.Qwen3Config(**HEADS),
        "qwen3-tied": transformers.Qwen3Config(**HEADS, tie_word_embeddings=True),
        "qwen2": transformers.Qwen2Config(**SHARED),
        "llama": transformers.LlamaConfig(**HEADS),
        "gemma": transformers.GemmaConfig(**HEADS),
        "gpt2": transformers.GPT2Config(
            vocab_size=VOCABULARY, n_embd=32, n_layer=2, n_head=4, n_positions=64, bos_token_id=1, eos_token_id=2
        ),
        "gpt-neox": transformers.GPTNeoXConfig(
            vocab_size=VOCABULARY,
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=2,
            num_attention_heads=4,
            bos_token_id=1,
            eos_token_id=2,
        ),
        "qwen3-moe": transformers.Qwen3MoeConfig(
            **HEADS, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16, decoder_sparse_step=1
        ),
        "mixtral": transformers.MixtralConfig(**HEADS, num_local_experts=4, num_experts_per_tok=2),
        "deepseek-v3": transformers.DeepseekV3Config(
            **{**SHARED, "num_key_value_heads": 4},
            moe_intermediate_size=16,
            n_routed_experts=4,
            num_experts_per_tok=2,
            n_group=1,
            topk_group=1,
            first_k_dense_replace=1,
            q_lora_rank=8,
            kv_lora_rank=8,
            qk_rope_head_dim=8,
            qk_nope_head_dim=8,
            v_head_dim=8,
        ),
    }


def tiny(architecture: str = "qwen3", seed: int = 0) -> Any:
    """A model with random weights; biases and norms are random too, so that mixing them up would show."""
    torch.manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_config(configurations()[architecture])
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim < 2:
                parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


def write_tokenizer(folder: Path, tokens: int = VOCABULARY) -> None:
    """A tokenizer of so many words."""
    words = {"<pad>": 0, "<bos>": 1, "<eos>": 2} | {f"w{index}": index for index in range(3, tokens)}
    tokenizer = Tokenizer(WordLevel(words, unk_token="<pad>"))
    tokenizer.pre_tokenizer = Whitespace()
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", bos_token="<bos>", eos_token="<eos>"
    )
    fast.chat_template = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
    fast.save_pretrained(folder)


def write_architecture(
    folder: Path, architecture: str = "qwen3", *, shard_size: str = "5GB", tokens: int = VOCABULARY
) -> Any:
    """The folder of a whole model; returns the model that is in it."""
    model = tiny(architecture)
    model.save_pretrained(folder, max_shard_size=shard_size)
    write_tokenizer(folder, tokens)
    return model


class Watch(torch.utils._python_dispatch.TorchDispatchMode):
    """Notes the operators that are called, and the shapes and bytes of what they return."""

    def __init__(self) -> None:
        super().__init__()
        self.called: set[str] = set()
        self.shapes: set[tuple[int, ...]] = set()
        self.largest = 0

    def __torch_dispatch__(self, function: Any, types: Any, arguments: Any = (), kwargs: Any = None) -> Any:
        result = function(*arguments, **(kwargs or {}))
        self.called.add(function.overloadpacket.__name__)
        if isinstance(result, torch.Tensor):
            self.shapes.add(tuple(result.shape))
            self.largest = max(self.largest, result.untyped_storage().nbytes())
        return result


def encoded(rows: Iterable[Any], weights: Any = None) -> list[Encoded]:
    """Samples of one segment each, of these tokens, whose weights are 1 where none are given."""
    made = []
    for number, row in enumerate(rows):
        ids = np.asarray(row, dtype=np.int32)
        own = np.ones(len(ids), np.float32) if weights is None else weights[number]
        made.append(Encoded(number, (Segment(ids, own),)))
    return made


def batch(seed: int = 0) -> torch.Tensor:
    """Token ids, [2, 12]."""
    return torch.randint(3, VOCABULARY, (2, 12), generator=torch.Generator().manual_seed(seed))
