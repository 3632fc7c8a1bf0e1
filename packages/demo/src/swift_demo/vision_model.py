"""A model of Qwen2.5-VL's architecture, with its vision encoder, small enough for any laptop."""

from __future__ import annotations

from pathlib import Path

from swift_demo.images import CELL
from swift_testing import VISION_CHAT_TEMPLATE, VISION_TOKENS, byte_tokenizer

SPREAD = 0.08
"""Standard deviation of weights with which the demo learns to read: with 0.02 it never begins to."""


def write_vision_model(
    folder: Path, *, hidden: int = 96, layers: int = 2, seed: int = 0, spread: float = SPREAD
) -> Path:
    """Return a model folder like any other: configuration, random weights, tokenizer and processor.

    A digit of the demo's images becomes one token. `hidden` is a multiple of 32; `spread` is the standard deviation
    of the weights.
    """
    from swift.models.quiet import quiet_libraries

    quiet_libraries()  # first: the libraries speak up while they are imported
    import torch
    from transformers import (
        Qwen2_5_VLConfig,
        Qwen2_5_VLForConditionalGeneration,
        Qwen2_5_VLProcessor,
        Qwen2VLImageProcessorPil,
    )

    from swift.models import without_video_processor

    tokenizer = byte_tokenizer(VISION_TOKENS, VISION_CHAT_TEMPLATE)
    start, end, image, video = tokenizer.convert_tokens_to_ids(list(VISION_TOKENS))
    config = Qwen2_5_VLConfig(
        text_config={
            "vocab_size": 264 + len(VISION_TOKENS),
            "hidden_size": hidden,
            "intermediate_size": 3 * hidden,
            "num_hidden_layers": layers,
            "num_attention_heads": hidden // 32,
            "num_key_value_heads": hidden // 32,
            "max_position_embeddings": 1024,
            "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [4, 6, 6]},
            "initializer_range": spread,
            "bos_token_id": None,
            "eos_token_id": tokenizer.eos_token_id,
            "pad_token_id": tokenizer.pad_token_id,
        },
        vision_config={
            "depth": layers,
            "hidden_size": hidden,
            "intermediate_size": 2 * hidden,
            "out_hidden_size": hidden,
            "num_heads": hidden // 32,
            "patch_size": CELL // 2,
            "spatial_merge_size": 2,
            "temporal_patch_size": 2,
            "window_size": 2 * CELL,
            "fullatt_block_indexes": [layers - 1],
            "initializer_range": spread,
        },
        vision_start_token_id=start,
        vision_end_token_id=end,
        image_token_id=image,
        video_token_id=video,
        tie_word_embeddings=True,
    )
    images = Qwen2VLImageProcessorPil(
        patch_size=CELL // 2, merge_size=2, size={"shortest_edge": CELL * CELL, "longest_edge": 64 * CELL * CELL}
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        Qwen2_5_VLForConditionalGeneration(config).save_pretrained(folder)
    processor = without_video_processor(Qwen2_5_VLProcessor)(images, tokenizer, chat_template=VISION_CHAT_TEMPLATE)
    processor.save_pretrained(folder)
    return folder
