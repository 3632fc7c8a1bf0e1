"""How the processes share the work: sizes of the parallel dimensions, and which plans cannot be honoured."""

from __future__ import annotations

from typing import Any

from swift.config.own_options import LoraOptions
from swift.config.sections import Config, ParallelSection
from swift.contracts import ProcessLayout, RequestedRun
from swift.errors import UnsupportedLayout
from swift.models.sizes import check_experts, check_widths, experts_of
from swift.optim.selected import slots_of
from swift_backend_megatron import fp8
from swift_backend_megatron.architectures import check_architecture
from swift_backend_megatron.config import MegatronConfig


def options_of(run: RequestedRun) -> MegatronConfig:
    """Return the backend's own section."""
    return run.options(MegatronConfig)


def layout_of(config: Config, processes: int) -> ProcessLayout:
    """Return the sizes for so many processes; data parallelism takes what was left open."""
    own = ProcessLayout.of(config.parallel, processes)
    dense = processes // own.pp
    if dense % (own.ep * own.etp):
        raise UnsupportedLayout(
            f"The experts' layout ep {own.ep} × etp {own.etp} takes {own.ep * own.etp} processes or a multiple of "
            f"it in each pipeline stage, which has {dense} (tp {own.tp} × cp {own.cp} × dp {own.data}).",
            hint=f"Start with --nproc {own.ep * own.etp * own.pp} or a multiple, or lower --parallel.ep.",
        )
    return own


def sizes_of(run: RequestedRun) -> ProcessLayout:
    """Return the sizes of a run."""
    return layout_of(run.config, run.world.size)


def shards_optimizer(run: RequestedRun) -> bool:
    """Return whether Megatron's distributed optimizer is used: where there is something to shard over."""
    sizes = sizes_of(run)
    return options_of(run).use_distributed_optimizer and sizes.shard * sizes.cp > 1


def describe(config: Config, processes: int) -> list[str]:
    """Return which rank has what, one line per rank."""
    sizes = layout_of(config, processes)
    lines = []
    dense = processes // sizes.pp
    for rank in range(processes):
        tensor, rest = rank % sizes.tp, rank // sizes.tp
        sequence, rest = rest % sizes.cp, rest // sizes.cp
        data, stage = rest % sizes.data, rest // sizes.data
        within = rank % dense
        indices = [("stage", stage, sizes.pp), ("data", data, sizes.data), ("sequence", sequence, sizes.cp)]
        indices += [("tensors", tensor, sizes.tp), ("experts", within // sizes.etp % sizes.ep, sizes.ep)]
        indices += [("expert tensors", within % sizes.etp, sizes.etp)]
        described = ", ".join(f"{name} {index + 1} of {size}" for name, index, size in indices if size > 1)
        lines.append(f"rank {rank}: {described or 'everything'}")
    return lines


def check_plan(run: RequestedRun) -> None:
    """Refuse what sizes, options or tuner rule out, before anything is set up."""
    config, options = run.config, options_of(run)
    parallel = config.parallel
    sizes = sizes_of(run)
    if options.device == "cpu" and _has_cuda():
        raise UnsupportedLayout(
            "Megatron takes the GPU where there is one, and backend.device is cpu.",
            hint="Hide the GPU before Python starts: CUDA_VISIBLE_DEVICES= swift ...",
        )
    if config.model.experts_impl != "auto":
        raise UnsupportedLayout(
            f"model.experts_impl {config.model.experts_impl} is code of transformers, and Megatron has its own for "
            "experts.",
            hint="Type --model.experts_impl auto",
        )
    if parallel.sequence_parallel and parallel.tp == 1:
        raise UnsupportedLayout(
            "parallel.sequence_parallel shards activations over the tensor parallel processes, and parallel.tp is 1.",
            hint="Type --tp 2 (or more), or --parallel.sequence_parallel false",
        )
    if parallel.vpp > 1 and parallel.pp == 1:
        raise UnsupportedLayout(
            f"parallel.vpp {parallel.vpp} divides the stages of a pipeline, and parallel.pp is 1.",
            hint="Type --pp 2 (or more), or --parallel.vpp 1",
        )
    if sizes.replicate > 1 and sizes.shard > 1 and not options.use_distributed_optimizer:
        raise UnsupportedLayout(
            "parallel.dp_shard shards the optimizer, and backend.use_distributed_optimizer is off.",
            hint=f"Type --parallel.dp_replicate {sizes.data} --parallel.dp_shard 1, or switch it on.",
        )
    if options.stages and len(options.stages) != parallel.pp * parallel.vpp:
        raise UnsupportedLayout(
            f"backend.stages names {len(options.stages)} stages, and pp {parallel.pp} × vpp {parallel.vpp} has "
            f"{parallel.pp * parallel.vpp}.",
            hint="Give one number of layers for each, from the first to the last.",
        )
    _check_ends(parallel, options)
    if options.moe_pad_to_capacity and options.moe_capacity is None:
        raise UnsupportedLayout(
            "backend.moe_pad_to_capacity pads to a capacity, and none is given.",
            hint="Type --backend.moe_capacity 1.25",
        )
    fp8.check_fp8(run, options)
    other = [slot.name for slot in slots_of(config.optim).values() if slot.shape != "like"]
    if other and config.optim.name != "adamw":
        raise UnsupportedLayout(
            f"Megatron keeps flat ranges of what is like the weights; optim.name {config.optim.name} keeps {other[0]}.",
            hint="Type --optim.name adamw, or --backend fsdp.",
        )
    if config.tuner.options(LoraOptions).modules_to_save:
        raise UnsupportedLayout(
            "tuner.modules_to_save makes copies of modules, which Megatron has sharded or distributed.",
            hint="Leave it out, or type --backend fsdp.",
        )


def _check_ends(parallel: ParallelSection, options: MegatronConfig) -> None:
    """Refuse a first or last stage of its own where there are no such stages, or where all are named."""
    for name in ("first_stage", "last_stage"):
        if getattr(options, name) is None:
            continue
        if parallel.pp == 1 or parallel.vpp > 1:
            have = "parallel.pp is 1" if parallel.pp == 1 else f"parallel.vpp {parallel.vpp} has several on a process"
            raise UnsupportedLayout(
                f"backend.{name} is the size of a pipeline's stage, and {have}.",
                hint="Type --pp 2 (or more) without --vpp; under it: --backend.stages with a number for each.",
            )
        if options.stages:
            raise UnsupportedLayout(
                f"backend.stages and backend.{name} both name the stages.", hint="Keep one of them."
            )


def stages_of(options: MegatronConfig, parallel: ParallelSection, layers: int) -> tuple[int, ...]:
    """Return the layers of each stage where they are named; stages between the named ends share what is left evenly."""
    first, last = options.first_stage, options.last_stage
    if first is None and last is None:
        return options.stages
    ends = (first or 0) + (last or 0)
    between = parallel.pp - (first is not None) - (last is not None)
    left = layers - ends
    if left != 0 if between == 0 else left <= 0 or left % between:
        raise UnsupportedLayout(
            f"{layers} layers without the {ends} of backend.first_stage and backend.last_stage leave "
            f"{max(left, 0)} for {between} stages.",
            hint="Choose numbers that leave a multiple of the other stages, or name all: --backend.stages.",
        )
    share = (left // between,) * between if between else ()
    return (*((first,) if first else ()), *share, *((last,) if last else ()))


def _has_cuda() -> bool:
    import torch

    return torch.cuda.is_available()


def check_model(run: RequestedRun, model_config: Any) -> None:
    """Refuse a model whose sizes the plan does not divide, before weights are read."""
    check_architecture(run, model_config)
    parallel, options = run.config.parallel, options_of(run)
    text = model_config.get_text_config()
    layers, stages = text.num_hidden_layers, parallel.pp * parallel.vpp
    named = stages_of(options, parallel, layers)
    if named and sum(named) != layers:
        raise UnsupportedLayout(
            f"backend.stages adds up to {sum(named)} layers, and the model has {layers}.",
            hint="Make the numbers add up.",
        )
    _check_vectors(run.config.model.task, model_config)
    _check_first_stage(model_config, named[0] if named else layers // stages)
    if not named and layers % stages:
        even, more = divmod(layers, stages)
        uneven = " ".join(str(even + (1 if index < more else 0)) for index in range(stages))
        product = f"pp {parallel.pp}" + (f" × vpp {parallel.vpp}" if parallel.vpp > 1 else "")
        raise UnsupportedLayout(
            f"{layers} layers are not divisible by {product} stages.",
            hint=f"Choose divisors of {layers}"
            + (f", or name unequal numbers: --backend.stages {uneven}" if even else "."),
        )
    tp = parallel.tp
    heads = text.num_attention_heads
    groups = getattr(text, "num_key_value_heads", None) or heads
    _check_divisible(heads, "attention heads", "tp", tp)
    if getattr(text, "kv_lora_rank", None) is None:
        _check_divisible(groups, "heads of keys and values", "tp", tp)
    check_widths(model_config, tp)
    fp8.check_widths(options, text, tp)
    experts = experts_of(text)
    check_experts(model_config, parallel.ep, parallel.etp)
    chosen = getattr(text, "num_experts_per_tok", None) or 1
    if options.moe_pad_to_capacity and (options.moe_capacity or 0) * chosen > experts > 0:
        raise UnsupportedLayout(
            f"backend.moe_capacity {options.moe_capacity:g} pads every expert to more than all tokens.",
            hint=f"Type --backend.moe_capacity {experts / chosen:g} (no token is dropped then), or less.",
        )
    width = getattr(text, "moe_intermediate_size", None) or getattr(text, "intermediate_size", None) or 0
    if experts and width % parallel.etp:
        raise UnsupportedLayout(
            f"Experts of width {width} are not divisible by etp {parallel.etp}.",
            hint=f"Choose a divisor of {width}.",
        )


def _check_divisible(count: int, what: str, dimension: str, ways: int) -> None:
    if count % ways:
        raise UnsupportedLayout(
            f"{count} {what} are not divisible by {dimension} {ways}.", hint=f"Choose a divisor of {count}."
        )


def _check_vectors(task: str, model_config: Any) -> None:
    """Refuse to make vectors by a model with an encoder, which mcore-bridge builds around a model that writes text."""
    if task == "embedding" and getattr(model_config, "vision_config", None) is not None:
        raise UnsupportedLayout(
            f"{model_config.model_type} reads images, and Megatron makes vectors by models of text alone.",
            hint="Type --backend fsdp, or --backend deepspeed",
        )


def _check_first_stage(model_config: Any, layers: int) -> None:
    """Refuse a first stage that is shorter than the layers to which features of images are added."""
    vision = getattr(model_config, "vision_config", None)
    added = len(getattr(vision, "deepstack_visual_indexes", None) or ())
    if added > layers:
        raise UnsupportedLayout(
            f"{model_config.model_type} adds features of images to its first {added} layers, but the first stage of "
            f"the pipeline, which has the vision encoder, has {layers}.",
            hint=f"Type --backend.first_stage {added} (or more), or lower --parallel.pp.",
        )
