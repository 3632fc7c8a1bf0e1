"""Images in Megatron's models: transformers' encoder on the first stage, whole on every process of it.

Its features are put into the embeddings of whole rows before these are divided between processes that share sequences
or activations. Every tensor parallel process runs the encoder on the same images, and takes back the whole gradient.
"""

from __future__ import annotations

from typing import Any

import torch

from swift_backend_megatron.sequences import MicroBatchSlice, WholeRows


def language_of(chunk: Any) -> Any:
    """Return Megatron's GPT model of a chunk, taken out of what has an encoder beside it."""
    return getattr(chunk, "language_model", chunk)


def embedded(chunk: Any, shard: MicroBatchSlice, config: Any) -> dict[str, Any]:
    """Return arguments of a chunk with an encoder: embeddings with features in place, and what the first layers add."""
    language = language_of(chunk)
    if not language.pre_process:
        return {}
    rows = shard.rows
    ids = shard.input_ids if rows is None else rows.input_ids
    embeddings = _text_embeddings(language.embedding.word_embeddings, ids)
    if rows is None:
        return {"decoder_input": _own(embeddings, None, config)}
    seen = rows.kinds == 1
    encoder = chunk.visual.visual
    found = encoder(rows.inputs["pixel_values"].to(encoder.dtype), grid_thw=rows.inputs["image_grid_thw"])
    arguments: dict[str, Any] = {"decoder_input": _own(_placed(embeddings, seen, found.pooler_output), rows, config)}
    added = getattr(found, "deepstack_features", None)
    if added:
        # Laid out as tokens, so that each process takes back the gradient of all, whoever has the token.
        blank = torch.zeros_like(embeddings)
        mine = _own(seen[..., None].to(embeddings.dtype), rows, config)[..., 0] > 0
        own = [_own(_placed(blank, seen, each), rows, config)[mine] for each in added]
        arguments |= {"visual_pos_masks": mine, "deepstack_visual_embeds": torch.stack(own)}
    return arguments


def _text_embeddings(embedding: Any, ids: torch.Tensor) -> torch.Tensor:
    """Return embeddings, [rows, tokens, size], of whole rows also where activations are divided after."""
    divides = embedding.reduce_scatter_embeddings
    embedding.reduce_scatter_embeddings = False
    try:
        found: torch.Tensor = embedding(ids)
    finally:
        embedding.reduce_scatter_embeddings = divides
    return found


def _placed(into: torch.Tensor, where: torch.Tensor, features: torch.Tensor) -> torch.Tensor:
    return into.masked_scatter(where[..., None].expand_as(into), features.to(into.dtype))


def _own(values: torch.Tensor, rows: WholeRows | None, config: Any) -> torch.Tensor:
    """Turn [rows, tokens, ...] into this process's [tokens, rows, ...]."""
    from megatron.core.tensor_parallel import scatter_to_sequence_parallel_region

    if rows is not None and rows.columns is not None:
        values = values[:, rows.columns]
    values = values.transpose(0, 1).contiguous()
    if config.sequence_parallel:
        values = scatter_to_sequence_parallel_region(values)
    return values
