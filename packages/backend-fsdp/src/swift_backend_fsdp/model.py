"""Builds the model on the meta device, before it has weights."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from torch import nn

from swift.contracts import ModelSource, Run
from swift.errors import ModelError, UnsupportedLayout
from swift.toolkit import (
    SequenceView,
    ViewModule,
    base_model,
    build_view,
    decoder_blocks,
    refuse_calls_of_blocks,
    sequence_attention,
)
from swift_backend_fsdp.config import FsdpConfig
from swift_backend_fsdp.topology import meshes_of


@dataclass
class MetaModel:
    """A view of a model whose parameters are on the meta device (unless they are quantised)."""

    view: ViewModule
    source: ModelSource
    blocks: list[nn.Module]
    filled: bool
    """Whether it has its weights: quantised ones are read before they are sharded."""


def build(run: Run, source: ModelSource) -> MetaModel:
    """Build the model without its weights."""
    config = run.config
    meshes = meshes_of(run)
    attention = sequence_attention(run, source.config) if meshes.sizes.sequence > 1 else None
    quantised = config.tuner.quantize != "none"
    view_class = partial(SequenceView, group=meshes.sequence) if attention is not None else ViewModule
    view = build_view(run, source, weights=quantised, attention=attention, view_class=view_class)
    blocks = decoder_blocks(view.model)
    if not blocks:
        raise ModelError(
            f"{type(base_model(view.model)).__name__} has no list of decoder blocks that could be sharded one by one.",
            hint="Type --backend torch",
        )
    refuse_calls_of_blocks(view, blocks)
    _check_shards(view.model, meshes.sizes.shard * meshes.sizes.sequence)
    if config.train.gradient_checkpointing:
        every = run.options(FsdpConfig).checkpoint_every
        for index, block in enumerate(blocks):
            # transformers' own switch
            block.gradient_checkpointing = index % every == 0  # type: ignore[assignment]
    return MetaModel(view, source, blocks, filled=quantised)


def _check_shards(model: nn.Module, ways: int) -> None:
    """Refuse weights that torchao has quantized in too few blocks to shard them."""
    for name, parameter in model.named_parameters():
        blocks = getattr(parameter, "quantization_factor", None)
        if blocks is not None and blocks.numel() % ways:
            raise UnsupportedLayout(
                f"torchao's NF4 has {name} in {blocks.numel()} blocks, which {ways} processes cannot share equally.",
                hint="Type --tuner.quantize bnb-nf4",
            )
