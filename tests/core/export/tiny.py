"""Tiny models with a byte-level tokenizer, made from configurations."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

torch.set_num_threads(1)

_COMMON = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 96,
    "max_position_embeddings": 128,
    "initializer_range": 0.1,
}


def tiny_model(folder: Path, kind: str = "qwen3", dtype: torch.dtype = torch.float32, **changes: Any) -> Path:
    """A model folder with weights and tokenizer; biases and norms are given values that matter."""
    tokenizer = byte_tokenizer()
    common = {**_COMMON, "vocab_size": len(tokenizer), "tie_word_embeddings": False, **changes}
    torch.manual_seed(1)
    model: Any
    if kind == "qwen3":
        model = Qwen3ForCausalLM(Qwen3Config(head_dim=16, **common))
    elif kind == "qwen2":
        model = Qwen2ForCausalLM(Qwen2Config(**common))
    elif kind == "moe":
        experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "mlp_only_layers": []}
        model = Qwen3MoeForCausalLM(Qwen3MoeConfig(head_dim=16, **experts, **common))
    else:
        model = GPT2LMHeadModel(GPT2Config(vocab_size=len(tokenizer), n_embd=64, n_layer=2, n_head=4, n_positions=128))
    for name, parameter in model.named_parameters():
        if "norm" in name or "bias" in name:
            parameter.data.add_(torch.randn_like(parameter) * 0.1)
    model.to(dtype).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """One token a byte, and an end token."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: at for at, letter in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|end|>", chat_template="{{ messages }}")


def logits(model: torch.nn.Module) -> torch.Tensor:
    """What a model says about one fixed prompt."""
    model.eval()
    with torch.no_grad():
        tokens = torch.arange(5, 45)[None]
        result: torch.Tensor = model(input_ids=tokens).logits.float()
    return result
