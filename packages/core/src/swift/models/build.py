"""Builds the transformers model with its tuner, wrapped to return views of micro-batches. For use by backends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from transformers import PreTrainedModel

from swift.config.incompatibilities import partly_quantized
from swift.contracts import Decision, ModelFacts, ModelSource, QuantizedShare, Run
from swift.data.batch import MediaReader
from swift.errors import ModelError
from swift.models.adapter_initialization import keep_starts, read_initialization
from swift.models.attention import AttentionChoice, choose_attention
from swift.models.experts_implementation import choose_experts
from swift.models.fp8 import fp8_of, use_fp8
from swift.models.heads import add_value_head, value_head_of
from swift.models.media import ProcessorReader
from swift.models.names import know_names
from swift.models.precision import resolve_dtype
from swift.models.quantize import Placer, quantize_model, quantized_share
from swift.models.quantized_experts import code_replaced
from swift.models.routers import routers_of
from swift.models.sample_by_sample import CHECKPOINTING
from swift.models.tuners import adapter_config, apply_tuner, weight_counts
from swift.models.view import ViewModule
from swift.plugins.tuner import tuner_of

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

    model: Any  # a transformers model, whose attributes torch's types do not know
    model, share = _built(run, source, compute, weights=weights, placer=placer)
    run.facts.experts = choose_experts(model, config.model.experts_impl)
    model.config.use_cache = False
    if config.train.pad_token:
        _train_padding_row(model)
    if config.model.liger:
        with code_replaced(model):
            _apply_liger(model)
    model = apply_tuner(model, config.tuner, seed=config.train.seed, say=run.say)
    run.facts.adapter = adapter_config(model)
    run.adapter_start.update(read_initialization(run, source, model))
    if weights:
        keep_starts(model, run.adapter_start, torch.Tensor.copy_)
    use_fp8(run, model, decoder_blocks(model))
    if config.train.gradient_checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=CHECKPOINTING)
        if tuner_of(config.tuner).adapter:
            # Frozen embeddings would otherwise leave the first block without an input that needs a gradient.
            model.enable_input_require_grads()
    view = view_class(model, attention=attention, say=run.say)
    run.facts.attention = Decision(view.attention.name, view.attention.reason)
    view.pooling = config.model.pooling
    if config.train.neftune_alpha:
        view.add_neftune(config.train.neftune_alpha)
    view.routers = routers_of(run, view.causal_lm)
    _look_at_images(view, run.media_reader, weights=weights)
    if config.train.compile:
        compile_blocks(view, one_width=config.data.packing)
    trained, total = weight_counts(model)
    fp8 = fp8_of(run)
    precision = dtype_name if fp8 is None else f"{dtype_name} fp8 {fp8}"
    run.facts.model = ModelFacts(precision, total, trained, share)
    return view


def _built(
    run: Run, source: ModelSource, compute: torch.dtype, *, weights: bool, placer: Placer | None
) -> tuple[Any, QuantizedShare | None]:
    """Return the model before it is tuned, and how much of it is quantized.

    `--strict` refuses less than all matrices of its layers.
    """
    config, device = run.config, run.topology.device
    if config.tuner.quantize == "none":
        # Trained weights are fp32 masters; frozen ones need no more than the precision of the arithmetic.
        stored = compute if tuner_of(config.tuner).adapter else torch.float32
        return source.build(dtype=stored, device=device) if weights else meta_model(source, stored), None
    model = meta_model(source, compute)
    share = quantized_share(model, compute)
    if config.data.strict and not share.complete:
        raise partly_quantized(config.tuner.quantize, str(share))
    return quantize_model(model, source, config.tuner, device, placer), share


def meta_model(source: ModelSource, dtype: torch.dtype) -> torch.nn.Module:
    """Parameters without memory in `dtype`, but real buffers: rotary tables are computed, not read."""
    from accelerate import init_empty_weights  # type: ignore[import-untyped]  # has no stubs; peft requires it

    skeleton: Any = source.build(dtype=dtype, weights=False)
    with init_empty_weights(include_buffers=False):
        model: Any = type(skeleton)(skeleton.config)
        if value_head_of(skeleton) is not None:
            add_value_head(model, skeleton.config, dtype)
    for parameter in model.parameters():
        parameter.data = parameter.data.to(dtype)
    model.tie_weights()
    model.name_or_path = skeleton.name_or_path
    read_off = getattr(source, "name_map_by", None)
    if read_off is not None:
        know_names(model, read_off(skeleton))
    built: torch.nn.Module = model
    return built


def _train_padding_row(model: Any) -> None:
    """Give the padding token's row its gradient, also in further embeddings of the same tokens (Gemma 3n has such)."""
    row = getattr(model.get_input_embeddings(), "padding_idx", None)
    for name, module in model.named_modules():
        if not isinstance(module, torch.nn.Embedding) or module.padding_idx != row:
            continue
        if not name.endswith("position_embeddings"):  # RoBERTa counts positions from that of padding
            module.padding_idx = None


def _look_at_images(view: ViewModule, reader: MediaReader | None, *, weights: bool) -> None:
    """Check a model with images where the run has any: now, or by `self_check` once the backend has filled it."""
    if isinstance(reader, ProcessorReader):
        view.reader = reader
        if weights:
            view.check_images(reader)


def decoder_blocks(model: torch.nn.Module) -> list[torch.nn.Module]:
    """Return the blocks that a decoder is a stack of: the members of its heaviest list of alike modules.

    They are called: an image tokenizer inside a decoder (Chameleon's) has lists of containers without a forward pass.
    """
    inner = next((module for module in model.modules() if isinstance(module, PreTrainedModel)), None)
    decoder = model if inner is None else inner.get_decoder()  # an encoder's blocks may be the heavier ones
    lists = [module for module in decoder.modules() if isinstance(module, torch.nn.ModuleList) and len(module)]
    called = (each for each in lists if type(each[0]).forward is not torch.nn.Module.forward)
    return max(([*each] for each in called if len({*map(type, each)}) == 1), key=_weight_of, default=[])


def refuse_calls_of_blocks(view: ViewModule, blocks: list[torch.nn.Module]) -> None:
    """Refuse a model whose blocks are called once for each packed sample, where each call gathers from all processes.

    Processes have different numbers of samples.
    """
    for module in view.by_sample:
        if any(part is block and part is not module for part in module.modules() for block in blocks):
            raise ModelError(
                f"{type(view.causal_lm).__name__} computes packed samples one by one, in all its layers, which "
                "sharded weights do not allow.",
                hint="Turn it off: --data.packing false --data.padding_free false",
            )


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
