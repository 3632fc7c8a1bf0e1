"""Builds the transformers model with its tuner, wrapped to return views of micro-batches. For use by backends."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from transformers import PreTrainedModel

from swift.config.incompatibilities import partly_quantized
from swift.contracts import Decision, ModelFacts, QuantizedShare
from swift.models.adapter_initialization import keep_starts, read_initialization
from swift.models.attention import AttentionChoice, choose_attention
from swift.models.fp8 import fp8_of, use_fp8
from swift.models.media import ProcessorReader
from swift.models.meta import meta_model
from swift.models.padding_row import train_padding_row
from swift.models.precision import resolve_dtype
from swift.models.quantize import Placer, quantized_build
from swift.models.tuners import adapter_config, apply_tuner, weight_counts
from swift.models.view import ViewModule
from swift.plugins.tuner import tuner_of

if TYPE_CHECKING:
    from swift.contracts import ModelSource, Run
    from swift.data.batch import MediaReader


_SAMPLES = r".*\['(packing'\]\.(edges|longest)|(cu_seq_lens|max_length)_[qk]'\])"
"""Where the compiler finds what it has to take for variable: in `swift.models.attention.Packing`, or flash-attn's."""


def build_view(
    run: Run,
    source: ModelSource,
    *,
    weights: bool = True,
    attention: AttentionChoice | None = None,
    view_class: Callable[..., ViewModule] = ViewModule,
    placer: Placer | None = None,
) -> ViewModule:
    """Model → tuner → FP8 → gradient checkpointing → compile → view, in this order.

    With `weights=False` the parameters of all but a quantised model are on the meta device, for the backend to lay out
    and fill. `attention` is a kernel of the backend's own; by default the `model` section chooses. `view_class` is
    called with the model, `attention` and `say`, and `placer` with each quantised weight as soon as it is read: the
    backend leaves a part of it in this process, and fills all other weights, which are on the meta device.
    """
    config, device = run.config, run.topology.device
    dtype_name, dtype_reason = resolve_dtype(config.model.dtype, device)
    compute = getattr(torch, dtype_name)
    if attention is None:
        flat = config.data.packing or bool(config.data.padding_free)
        attention = choose_attention(config.model.attention, source.config, flat=flat, device=device, dtype=compute)
    run.facts.precision = Decision(dtype_name, dtype_reason)
    run.facts.attention = Decision(attention.name, attention.reason)

    sizes: list[QuantizedShare] = []
    model: Any  # a transformers model, whose attributes torch's types do not know
    if config.tuner.quantize == "none":
        # Trained weights are fp32 masters; frozen ones need no more than the precision of the arithmetic.
        stored = compute if tuner_of(config.tuner).adapter else torch.float32
        model = source.build(dtype=stored, device=device) if weights else meta_model(source, stored)
    else:
        model = quantized_build(source, config.tuner, compute, device, placer, partial(_check_share, run, sizes))
    model.config.use_cache = False
    if config.train.pad_token:
        train_padding_row(model)
    if config.model.liger:
        _apply_liger(model)
    model = apply_tuner(model, config.tuner, seed=config.train.seed, say=run.say)
    run.facts.adapter = adapter_config(model)
    run.adapter_start.update(read_initialization(run, source, model))
    if weights:
        keep_starts(model, run.adapter_start, torch.Tensor.copy_)
    use_fp8(run, model, decoder_blocks(model))
    if config.train.gradient_checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        if tuner_of(config.tuner).adapter:
            # Frozen embeddings would otherwise leave the first block without an input that needs a gradient.
            model.enable_input_require_grads()
    view = view_class(model, attention=attention, say=run.say)
    view.pooling = config.model.pooling
    if config.train.neftune_alpha:
        view.add_neftune(config.train.neftune_alpha)
    _look_at_images(view, run.media_reader, weights=weights)
    if config.train.compile:
        compile_blocks(view, one_width=config.data.packing)
    trained, total = weight_counts(model)
    fp8 = fp8_of(run)
    precision = dtype_name if fp8 is None else f"{dtype_name} fp8 {fp8}"
    run.facts.model = ModelFacts(precision, total, trained, sizes[0] if sizes else None)
    return view


def _check_share(run: Run, sizes: list[QuantizedShare], share: QuantizedShare) -> None:
    """Note how much of a model is quantized; `--strict` refuses less than all matrices of its layers."""
    if run.config.data.strict and not share.complete:
        raise partly_quantized(run.config.tuner.quantize, str(share))
    sizes.append(share)


def _look_at_images(view: ViewModule, reader: MediaReader | None, *, weights: bool) -> None:
    """Check a model with images where the run has any: now, or by `self_check` once the backend has filled it."""
    if isinstance(reader, ProcessorReader):
        view.reader = reader
        if weights:
            view.check_images(reader)


def decoder_blocks(model: torch.nn.Module) -> list[torch.nn.Module]:
    """Return the blocks that a decoder is a stack of: the members of its longest list of alike modules."""
    inner = next((module for module in model.modules() if isinstance(module, PreTrainedModel)), None)
    decoder = model if inner is None else inner.get_decoder()  # an encoder's blocks may be the heavier ones
    lists = [module for module in decoder.modules() if isinstance(module, torch.nn.ModuleList) and len(module)]
    return max(([*each] for each in lists if len({*map(type, each)}) == 1), key=_weight_of, default=[])


def compile_blocks(model: torch.nn.Module, *, one_width: bool = False) -> None:
    """Compile each decoder block in place: the graph is small, is reused by all blocks, and names stay as they are.

    Only sizes change from step to step. A block's numbers are fixed: taking them for variables, as `dynamic` would,
    has the compiler begin anew as soon as it meets one. Where rows have `one_width`, as packs have, code is made for
    it, and what changes is the samples in them alone.
    """
    from torch._dynamo import config
    from torch.compiler import config as settings

    config.specialize_float = True
    if one_width:
        others = [source for source in settings.dynamic_sources.split(",") if source not in ("", _SAMPLES)]
        settings.dynamic_sources = ",".join([*others, _SAMPLES])
    for block in decoder_blocks(model):
        block.compile(dynamic=None if one_width else True)


def _weight_of(modules: list[torch.nn.Module]) -> int:
    """Parameters inside, so that the experts of one block are not taken for the blocks."""
    return sum(parameter.numel() for module in modules for parameter in module.parameters())


def _apply_liger(model: torch.nn.Module) -> None:
    from swift.config.incompatibilities import no_liger

    try:
        from liger_kernel.transformers import _apply_liger_kernel_to_instance
    except ImportError as error:
        raise no_liger() from error
    # Cross-entropy stays ours: no objective sees full logits.
    _apply_liger_kernel_to_instance(model=model, cross_entropy=False, fused_linear_cross_entropy=False)
