"""The model as Megatron builds it: one chunk of layers per stage of the pipeline that this process has."""

from __future__ import annotations

import copy
import logging
import math
import warnings
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn

from swift.config.own_options import FullOptions
from swift.contracts import ModelFacts, ModelSource, Run
from swift.errors import UnsupportedLayout
from swift.toolkit import (
    VALUE_HEAD_MODULE,
    adapter_config,
    apply_tuner,
    canonical_parameters,
    choose_attention,
    experts_of,
    meta_model,
    rates_of_parts,
    read_initialization,
    resolve_dtype,
    summary_of,
    trains_on_images,
    transform_of,
    weight_counts,
)
from swift_backend_megatron import cpu, megatron_runtime
from swift_backend_megatron.adapters import adapt, train_head
from swift_backend_megatron.architectures import (
    LIKE_KNOWN,
    WITH_ENCODERS,
    as_refusal,
    check_settings,
    not_known,
    settings_of_files,
)
from swift_backend_megatron.expert_adapters import mark_expert
from swift_backend_megatron.fp8 import settings_of as fp8_settings
from swift_backend_megatron.images import language_of
from swift_backend_megatron.layout import options_of, sizes_of, stages_of
from swift_backend_megatron.tensor_map import MegatronModel, TensorMap, map_tensors

_UNEMBEDS, _HEADED = "causal_lm", "seq_cls"
"""The bridge's words for models that end in logits, and for all that have a head of their own instead."""


def build(run: Run, source: ModelSource) -> MegatronModel:
    """Build everything about the model but its weights."""
    name, reason = resolve_dtype(run.config.model.dtype, run.topology.device)
    run.facts["precision"] = f"{name} ({reason})"
    dtype: torch.dtype = getattr(torch, name)
    with megatron_runtime.active():
        with as_refusal(source.config.model_type):
            built = megatron_model(run, source, dtype)
        if not run.config.train.pad_token:
            mask_padding_row(built.chunks, source.padding_row)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            _tune(run, built)
    return built


def megatron_model(run: Run, source: ModelSource, dtype: torch.dtype) -> MegatronModel:
    """Build the chunks of a model, and find where its weights belong in them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logging.getLogger("mcore_bridge").setLevel(logging.ERROR)
        config = model_config(run, source, dtype)
        from mcore_bridge import get_mcore_model

        chunks = get_mcore_model(config)
        for chunk in chunks:
            if chunk.post_process:
                # The head is computed in head.py: on the last stage the model ends with hidden states.
                language = language_of(chunk)
                language._postprocess = lambda hidden_states, **_: hidden_states
                if config.task_type == _HEADED:
                    # Its gradient is complete on every tensor parallel process, and must not be summed over them.
                    language.output_layer.weight.sequence_parallel = False
        if run.config.model.value_head:
            add_value_head(chunks, config)
        tensor_map = map_tensors(chunks, config.bridge, source)
        mark_experts(chunks, config)
        return MegatronModel(
            chunks=chunks,
            config=config,
            tensor_map=tensor_map,
            source=source,
            dtype=dtype,
            vocabulary=source.config.get_text_config().vocab_size,
            transform=transform_of(source.config),
            unembeds=config.task_type == _UNEMBEDS,
            pooling=run.config.model.pooling,
            towered=config.is_multimodal,
        )


def map_without_memory(run: Run, source: ModelSource) -> tuple[Any, TensorMap]:
    """Return one chunk, whose memory is never touched, and where each weight would belong in it."""
    with megatron_runtime.active(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        config = model_config(run, source, torch.float32)
        config.perform_initialization = False
        from mcore_bridge import get_mcore_model

        (chunk,) = get_mcore_model(config)
        if run.config.model.value_head:
            add_value_head([chunk], config)
        return chunk, map_tensors([chunk], config.bridge, source)


def model_config(run: Run, source: ModelSource, dtype: torch.dtype) -> Any:
    """Return Megatron's configuration of a Hugging Face model under the run's plan."""
    architecture = _architecture(source.config.model_type)
    from mcore_bridge import hf_to_mcore_config
    from megatron.core.distributed import finalize_model_grads

    options, sizes = options_of(run), sizes_of(run)
    found = hf_to_mcore_config(source.config)
    settings: dict[str, Any] = {
        **found,
        # An encoder's section is changed by the bridge.
        "hf_config": copy.deepcopy(source.config),
        "tensor_model_parallel_size": sizes.tp,
        "pipeline_model_parallel_size": sizes.pp,
        "virtual_pipeline_model_parallel_size": sizes.vpp if sizes.vpp > 1 else None,
        "context_parallel_size": sizes.cp,
        "expert_model_parallel_size": sizes.ep,
        "expert_tensor_parallel_size": sizes.etp,
        "sequence_parallel": _sequence_parallel(run, source),
        "params_dtype": dtype,
        "pipeline_dtype": dtype,
        "bf16": dtype is torch.bfloat16,
        "fp16": dtype is torch.float16,
        # Parameters are marked as sharded only where they are initialised; their values come from the files.
        "perform_initialization": True,
        # Losses are divided by the weight of the global batch: gradients are sums everywhere.
        "calculate_per_token_loss": True,
        "variable_seq_lengths": options.dispatcher != "allgather",
        # Batched exchanges of interleaved stages give wrong numbers silently.
        "overlap_p2p_comm": sizes.vpp > 1,
        "batch_p2p_comm": sizes.vpp == 1,
        "gradient_accumulation_fusion": False,
        "masked_softmax_fusion": False,
        "bias_activation_fusion": False,
        "bias_dropout_fusion": False,
        "apply_rope_fusion": False,
        "moe_permute_fusion": False,
        "moe_token_dispatcher_type": options.dispatcher,
        # See routers.py, which also updates biases.
        "moe_router_load_balancing_type": "none",
        "moe_aux_loss_coeff": 0.0,
        "moe_z_loss_coeff": None,
        "moe_router_bias_update_rate": 0.0,
        "moe_expert_capacity_factor": options.moe_capacity,
        "moe_pad_expert_input_to_capacity": options.moe_pad_to_capacity,
        "mtp_num_layers": None,
        **settings_of_files(source.config.get_text_config(), source.names(), found),
        **_task(run, source),
        **_recompute(run),
        **_stages(run, source),
        **fp8_settings(options),
        **_attention(run, source, dtype),
    }
    check_settings(source.config.get_text_config(), settings)
    config = architecture.config_cls(**settings)
    config.finalize_model_grads_func = lambda models, tokens=None, **named: finalize_model_grads(models, None, **named)
    return config


def _sequence_parallel(run: Run, source: ModelSource) -> bool:
    parallel = run.config.parallel
    if parallel.sequence_parallel or parallel.tp == 1 or not experts_of(source.config.get_text_config()):
        return parallel.sequence_parallel
    run.say("sequence parallelism is on: Megatron shards the tensors of a mixture of experts only with it")
    return True


def _task(run: Run, source: ModelSource) -> dict[str, Any]:
    """Return the bridge's words for what the model returns; without an unembedding there is none to be tied."""
    task = run.config.model.task
    if task == _UNEMBEDS:
        return {}
    settings: dict[str, Any] = {"untie_embeddings_and_output_weights": True}
    if task == "embedding":
        return {**settings, "task_type": task}
    return {**settings, "task_type": _HEADED, "num_labels": source.config.num_labels}


def _recompute(run: Run) -> dict[str, Any]:
    options = options_of(run)
    if not run.config.train.gradient_checkpointing:
        return {}
    if options.recompute == "selective":
        return {"recompute_granularity": "selective", "recompute_modules": list(options.recompute_modules)}
    return {
        "recompute_granularity": "full",
        "recompute_method": options.recompute_method,
        "recompute_num_layers": options.recompute_layers,
    }


def _stages(run: Run, source: ModelSource) -> dict[str, Any]:
    stages = stages_of(options_of(run), run.config.parallel, source.config.get_text_config().num_hidden_layers)
    if not stages:
        return {}
    described = ["t" * layers for layers in stages]
    described[0] = "E" + described[0]
    described[-1] += "L"
    return {"pipeline_model_parallel_layout": "|".join(described)}


def _architecture(model_type: str) -> Any:
    """Return the bridge's record of an architecture; raise UnsupportedLayout for one that it does not know."""
    from mcore_bridge.model.register import ModelMeta, get_mcore_model_type, get_model_meta, register_model

    for name in LIKE_KNOWN:
        if get_mcore_model_type(name) is None:
            register_model(ModelMeta(name, [name]), exist_ok=True)
            from mcore_bridge.model import register

            register.model_type_mapping = None
    known = get_mcore_model_type(model_type)
    found = get_model_meta(known) if known else None
    if found is None or (found.is_multimodal and model_type not in WITH_ENCODERS):
        raise not_known(model_type, encodes_images=found is not None)
    return found


def _tune(run: Run, built: MegatronModel) -> None:
    """Freeze what is not trained, and put adapters next to the layers."""
    tuner = run.config.tuner
    weights = sum(math.prod(entry.shape) for entry in built.tensor_map.values())
    _note_weights(run, weights, weights)
    patterns = tuner.options(FullOptions)
    if tuner.kind == "full" and not patterns.selects and not built.towered and not tuner.freeze_router:
        return
    # Transformers and PEFT themselves decide, on a model without weights.
    meta_copy = apply_tuner(meta_model(built.source, torch.float32), tuner, seed=run.config.train.seed, say=run.say)
    run.facts.adapter = adapter_config(meta_copy)
    run.adapter_start.update(read_initialization(run, built.source, meta_copy))
    _note_weights(run, *weight_counts(meta_copy))
    if built.towered:
        built.sees = trains_on_images(run, meta_copy)
    if tuner.kind == "full":
        _freeze(built, meta_copy)
        built.rates = _rates(run, built, meta_copy)
        return
    for chunk in built.chunks:
        chunk.requires_grad_(False)
    built.adapter_tensors = adapt(run, built, meta_copy) | train_head(built, meta_copy)


def _note_weights(run: Run, trained: int, total: int) -> None:
    precision, _ = resolve_dtype(run.config.model.dtype, run.topology.device)
    fp8 = options_of(run).fp8
    run.facts["trainable"] = summary_of(trained, total)
    run.facts.model = ModelFacts(precision if fp8 == "none" else f"{precision} fp8 {fp8}", total, trained)


def _freeze(built: MegatronModel, meta_copy: torch.nn.Module) -> None:
    trained = {
        piece.name: parameter.requires_grad for pieces, parameter in canonical_parameters(meta_copy) for piece in pieces
    }
    requested: dict[int, dict[bool, str]] = {}
    tensors: dict[int, torch.Tensor] = {}
    for name, entry in built.tensor_map.items():
        for tile in entry.tiles:
            if entry.trained:
                tensors[id(tile.tensor)] = tile.tensor
                requested.setdefault(id(tile.tensor), {})[trained[name]] = name
    for key, names in requested.items():
        if len(names) > 1:
            raise UnsupportedLayout(
                f"{names[True]} is to be trained and {names[False]} is not, and for Megatron they are one parameter.",
                hint="Freeze both or neither, or type --backend fsdp.",
            )
        tensors[key].requires_grad_(next(iter(names)))


def _rates(run: Run, built: MegatronModel, meta_copy: torch.nn.Module) -> dict[int, float]:
    """Return the factors on the learning rate that parts of the model have of their own, by Megatron's parameters."""
    factors = rates_of_parts(run.config, meta_copy)
    rates: dict[int, float] = {}
    for pieces, parameter in canonical_parameters(meta_copy) if factors else ():
        factor = factors.get(id(parameter))
        if factor is not None:
            rates |= {id(tile.tensor): factor for piece in pieces for tile in built.tensor_map[piece.name].tiles}
    return rates


def _attention(run: Run, source: ModelSource, dtype: torch.dtype) -> dict[str, Any]:
    """Choose one of Transformer Engine's attention kernels; on the CPU layer there is torch's only."""
    requested, device = run.config.model.attention, run.topology.device
    if requested in ("flash_attention_3", "flex_attention"):
        raise UnsupportedLayout(
            f"model.attention {requested} does not choose among the kernels of Transformer Engine.",
            hint="Type --model.attention auto, flash_attention_2, sdpa or eager",
        )
    if requested == "flash_attention_2":
        choose_attention(
            requested, source.config, flat=False, device=device, dtype=dtype
        )  # or raises what is in the way
    if cpu.needed():
        run.facts["attention"] = "sdpa (portable layer)"
        return {}
    from megatron.core.transformer.enums import AttnBackend

    backend = {"flash_attention_2": AttnBackend.flash, "sdpa": AttnBackend.fused, "eager": AttnBackend.unfused}
    run.facts["attention"] = f"Transformer Engine's ({requested})"
    return {"attention_backend": backend.get(requested, AttnBackend.auto)}


def mark_experts(models: Iterable[nn.Module], config: Any) -> None:
    """Mark on every routed expert's weight who reduces its gradient, and that each process has another shard of it.

    Versions of megatron-core before 0.19 set the marks wrongly, with CUDA and without. Under tensor parallelism 0.16.1
    reduces the gradients of experts over the wrong processes where neither experts nor their tensors are sharded, and
    counts only some shards in the gradient norm, so that clipping is too weak. Neither shows in the losses.

    To be called with the bare models, before megatron's data parallel wrapper and optimizer read the marks. Shared
    experts follow the dense layers and are left alone.
    """
    expert_tensor = config.expert_tensor_parallel_size or config.tensor_model_parallel_size
    for model in models:
        for name, parameter in model.named_parameters():
            if ".experts." not in name:
                continue
            row = "linear_fc2" in name
            if parameter.dim() < 2 and row and expert_tensor > 1:
                raise NotImplementedError(f"biases of experts with expert tensor parallelism: {name}")
            mark_expert(parameter, config, dimension=int(row))


def add_value_head(chunks: Sequence[Any], config: Any) -> None:
    """Put the head, whose weight is read later, on the chunk that the model ends with, where this process has it."""
    for chunk in chunks:
        if chunk.post_process:
            like = next(chunk.parameters())
            head = torch.nn.Linear(config.hidden_size, 1, bias=False, dtype=config.params_dtype, device=like.device)
            # Its gradient is complete on every tensor parallel process, and must not be summed over them.
            head.weight.sequence_parallel = False  # type: ignore[attr-defined]  # Megatron's mark
            chunk.add_module(VALUE_HEAD_MODULE, head)


def mask_padding_row(chunks: Sequence[Any], row: int | None) -> None:
    """Mask the gradient that inputs give this row, in the chunk that embeds, where this process has it.

    It is transformers' `padding_idx`, which Megatron's embedding lacks. The gradient is masked where the embedding's
    output leaves it, by token: the same on every shard of the vocabulary. The unembedding's share of a tied weight, on
    whichever stage, stays.
    """
    for chunk in chunks:
        if row is not None and language_of(chunk).pre_process:
            language_of(chunk).embedding.word_embeddings.register_forward_hook(_mask_of(row))


def _mask_of(row: int) -> Any:
    def mask(embedding: Any, arguments: tuple[torch.Tensor], output: torch.Tensor) -> None:
        if not output.requires_grad:
            return
        held = arguments[0] == row
        if embedding.reduce_scatter_embeddings:  # the output is this process's part of [tokens, rows, size]
            held = held.t().chunk(embedding.tp_group.size())[embedding.tp_group.rank()]
        masked = partial(torch.Tensor.masked_fill, mask=held[..., None], value=0.0)
        output.register_hook(masked)  # type: ignore[no-untyped-call]  # torch declares no types

    return mask
