"""A model of Qwen3's architecture that is small enough for any laptop, with random weights."""

from __future__ import annotations

from pathlib import Path

from swift_testing import byte_tokenizer


def write_model(folder: Path, *, hidden: int = 96, layers: int = 2, seed: int = 0, spread: float = 0.02) -> Path:
    """Return a model folder like any other: configuration, weights, tokenizer and chat template.

    `spread` is the standard deviation of the weights.
    """
    from swift.models.quiet import quiet_libraries

    quiet_libraries()  # first: the libraries speak up while they are imported
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    tokenizer = byte_tokenizer()
    config = Qwen3Config(
        vocab_size=264,
        hidden_size=hidden,
        intermediate_size=3 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,  # vLLM on the CPU has attention for this size, and for none below
        max_position_embeddings=1024,
        tie_word_embeddings=True,
        initializer_range=spread,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        Qwen3ForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
