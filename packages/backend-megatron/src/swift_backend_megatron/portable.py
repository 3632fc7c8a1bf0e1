"""Megatron-Core without CUDA: its Transformer Engine layers and mcore-bridge on the CPU, over gloo.

On a machine with CUDA the backend uses the real Transformer Engine, and nothing here is called. Elsewhere `prepare`
puts a stand-in of plain torch in its place, under which megatron-core builds the same layer spec: modules, parameter
names, marks on parameters, layouts of tensors and communication are those of the real one, and so are the conversions
of weights. `cuda_on_cpu` makes 'cuda' mean the CPU for what megatron-core does with devices, streams and generators.

This proves nothing about the kernels of Transformer Engine, fp8, fused operations, communication that overlaps with
computation, NCCL, or bf16 to the last bit. What the stand-in lacks is refused or missing, never skipped in silence.

mcore-bridge imports `datasets` and `PIL` without declaring them.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import logging
import os
import sys
import threading
import types
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from enum import Enum
from functools import lru_cache, partial, wraps
from typing import Any, NamedTuple, NoReturn
from unittest import mock

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from swift.toolkit import without_bitsandbytes

VERSION = "2.8.0"
"""The version of Transformer Engine that megatron-core sees. Later ones promise what the stand-in lacks."""

_CPU = torch.device("cpu")
_prepared = False


def needed() -> bool:
    """Whether this machine has to do without CUDA."""
    return not torch.cuda.is_available()


def prepare() -> None:
    """Make megatron-core and mcore-bridge importable, and import them. To be called before anything else does."""
    global _prepared
    if _prepared:
        return
    early = sorted({"megatron.core", "mcore_bridge", "transformer_engine"} & sys.modules.keys())
    if early:
        raise RuntimeError(f"imported before the portable layer was prepared: {', '.join(early)}")
    # Tensor and context parallelism insist on it.
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "1")
    # They look for Transformer Engine when they are imported, and are not to find the stand-in.
    with without_bitsandbytes():
        import peft  # noqa: F401
    import transformers  # noqa: F401

    _install()
    with (
        cuda_on_cpu(),
        _quietly("mcore_bridge"),
        # megatron-core decorates functions with it, and they would be compiled one by one when first called.
        mock.patch.object(torch, "compile", _leave),
    ):
        import megatron.core
        import megatron.core.jit

        _stand_in_for_triton()
        import mcore_bridge

        for name in ("ModelConfig", "get_mcore_model", "hf_to_mcore_config", "GPTBridge"):
            getattr(mcore_bridge, name)
    megatron.core.jit.disable_jit_fuser()
    _mend_megatron()
    mend_rope()
    _prepared = True


def mend_rope() -> None:
    """Keep mcore-bridge from overwriting an entry of transformers' table, with CUDA too.

    It does whenever it computes frequencies, and models of transformers that are built later fail.
    """
    from mcore_bridge.model import rope
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS as table

    original = rope.get_rope_inv_freq
    if hasattr(original, "__wrapped__"):
        return

    @wraps(original)
    def get_rope_inv_freq(*args: Any, **kwargs: Any) -> Any:
        before = dict(table)
        try:
            return original(*args, **kwargs)
        finally:
            table.clear()
            table.update(before)

    for name, module in list(sys.modules.items()):
        if name.startswith("mcore_bridge.") and getattr(module, "get_rope_inv_freq", None) is original:
            vars(module)["get_rope_inv_freq"] = get_rope_inv_freq


@contextmanager
def _quietly(name: str) -> Iterator[None]:
    """No Python warnings, and of one logger nothing below warnings."""
    logger = logging.getLogger(name)

    def loud(record: logging.LogRecord) -> bool:
        return record.levelno >= logging.WARNING

    logger.addFilter(loud)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.removeFilter(loud)


def _leave(function: Callable[..., Any] | None = None, **_: Any) -> Any:
    """Decorates nothing, with arguments or without."""
    return function if function is not None else _leave


def _stand_in_for_triton() -> None:
    """Two modules that are imported with every model cannot do without triton, and are of no use without CUDA."""
    if importlib.util.find_spec("triton") is not None:
        return
    for name, functions in {
        "megatron.core.inference.contexts.attention_context.triton.tensor_ops": (
            "tensor_get_slice_after",
            "tensor_masked_update",
            "tensor_merge",
        ),
        "mcore_bridge.model.modules.kernels.qsa_block_sparse_attn": ("qsa_sparse_attention_from_indices",),
    }.items():
        _module(name, **{function: partial(_refuse, f"{function}, in triton") for function in functions})


def _mend_megatron() -> None:
    """What megatron-core would do with tensors that it believes to be on the GPU."""
    from megatron.core.tensor_parallel import mappings, random
    from megatron.core.transformer.moe import moe_utils, token_dispatcher

    vars(random)["_get_cuda_rng_state"] = lambda *_, **__: torch.get_rng_state()
    vars(random)["_set_cuda_rng_state"] = lambda state, *_, **__: torch.set_rng_state(state)
    # The only generator is the CPU's, so that drawing from a tracked state changes it, and it is put back.
    logging.getLogger(random.__name__).addFilter(lambda record: "CPU RNG state changed" not in record.getMessage())

    def on_host(tensor: Any, as_numpy: bool = False, record_stream: bool = False) -> Any:
        return tensor.numpy() if as_numpy and torch.is_tensor(tensor) else tensor

    vars(moe_utils)["maybe_move_tensor_to_cpu"] = vars(token_dispatcher)["maybe_move_tensor_to_cpu"] = on_host

    gather, scatter = mappings._gather_along_first_dim, mappings._reduce_scatter_along_first_dim

    def gather_uneven(input_: Tensor, group: Any, output_split_sizes: Any = None, *args: Any, **kwargs: Any) -> Tensor:
        if group.size() == 1 or not _uneven(output_split_sizes):
            return gather(input_, group, output_split_sizes, *args, **kwargs)  # type: ignore[no-any-return]
        padded = F.pad(input_, (0, 0) * (input_.dim() - 1) + (0, max(output_split_sizes) - len(input_)))
        parts = [torch.empty_like(padded) for _ in output_split_sizes]
        dist.all_gather(parts, padded, group=group)
        return torch.cat([part[:size] for part, size in zip(parts, output_split_sizes, strict=True)])

    def scatter_uneven(input_: Tensor, group: Any, input_split_sizes: Any = None, *args: Any, **kwargs: Any) -> Tensor:
        if group.size() == 1 or not _uneven(input_split_sizes):
            return scatter(input_, group, input_split_sizes, *args, **kwargs)  # type: ignore[no-any-return]
        total = input_.clone()
        dist.all_reduce(total, group=group)
        part: Tensor = torch.split(total, list(input_split_sizes))[group.rank()]
        return part.clone()

    # gloo takes equal parts only, and the processes that share an expert have unequal ones.
    vars(mappings)["_gather_along_first_dim"] = gather_uneven
    vars(mappings)["_reduce_scatter_along_first_dim"] = scatter_uneven


def _uneven(sizes: Any) -> bool:
    return sizes is not None and len({int(size) for size in sizes}) > 1


# 'cuda' means the CPU


def _is_cuda(value: Any) -> bool:
    kind = type(value)
    return (kind is str and value.startswith("cuda")) or (kind is torch.device and value.type == "cuda")


def _device(*args: Any, **kwargs: Any) -> torch.device:
    first = args[0] if args else kwargs.get("type", kwargs.get("device"))
    return _CPU if _is_cuda(first) or type(first) is int else torch.device(*args, **kwargs)


def _type(tensor: Tensor, dtype: Any = None, **kwargs: Any) -> Any:
    """Optimizers of megatron-core know parameters by names such as 'torch.cuda.FloatTensor'."""
    if dtype is None:
        return tensor.type().replace("torch.", "torch.cuda.", 1)
    return tensor.type(dtype.replace("torch.cuda.", "torch.") if isinstance(dtype, str) else dtype, **kwargs)


def _same(tensor: Tensor, *_: Any, **__: Any) -> Tensor:
    return tensor


_SPECIAL: dict[Any, Callable[..., Any]] = {
    torch.device: _device,
    Tensor.cuda: _same,
    Tensor.pin_memory: _same,
    Tensor.record_stream: lambda *_: None,
    Tensor.type: _type,
}


class _CudaIsCpu(TorchFunctionMode):
    """Sends what this thread wants to have on the GPU to the CPU. Runs at every call of torch, so it is kept short."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _SPECIAL:
            return _SPECIAL[func](*args, **(kwargs or {}))
        for value in args:
            kind = value.__class__
            if (kind is str or kind is torch.device) and _is_cuda(value):
                args = tuple(_CPU if _is_cuda(each) else each for each in args)
                break
        if not kwargs:
            return func(*args)
        device = kwargs.get("device")
        if device is not None and (_is_cuda(device) or type(device) is int):
            kwargs = {**kwargs, "device": _CPU}
        if kwargs.get("pin_memory"):
            kwargs = {**kwargs, "pin_memory": False}
        return func(*args, **kwargs)


class _Stream:
    """Stands for streams and events: everything is done when it is asked for."""

    device = _CPU
    cuda_stream = 0

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def wait_stream(self, stream: Any) -> None: ...

    def wait_event(self, event: Any) -> None: ...

    def wait(self, stream: Any = None) -> None: ...

    def record(self, stream: Any = None) -> None: ...

    def synchronize(self) -> None: ...

    def query(self) -> bool:
        return True

    def record_event(self, event: Any = None) -> Any:
        return event or _Stream()


class _Autocast(torch.autocast):
    def __init__(self, device_type: str, *args: Any, **kwargs: Any) -> None:
        super().__init__("cpu" if device_type.startswith("cuda") else device_type, *args, **kwargs)


_STREAM = _Stream()
_REPLACED: list[tuple[Any, dict[str, Any]]] = [
    (torch, {"autocast": _Autocast}),
    (
        torch.cuda,
        {
            "Event": _Stream,
            "Stream": _Stream,
            "current_device": lambda: _CPU,
            "current_stream": lambda *_: _STREAM,
            "default_stream": lambda *_: _STREAM,
            "get_rng_state": lambda *_, **__: torch.get_rng_state(),
            "manual_seed": lambda seed: torch.default_generator.manual_seed(seed),
            "manual_seed_all": lambda seed: torch.default_generator.manual_seed(seed),
            "set_device": lambda *_: None,
            "set_rng_state": lambda state, *_, **__: torch.set_rng_state(state),
            "set_stream": lambda *_: None,
            "stream": lambda *_: nullcontext(),
            "synchronize": lambda *_: None,
        },
    ),
    (torch.cuda.random, {"get_rng_state": lambda *_, **__: torch.get_rng_state()}),
]

_thread = threading.local()
_lock = threading.Lock()
_inside = 0
_patches: list[Any] = []


@contextmanager
def cuda_on_cpu() -> Iterator[None]:
    """Inside, 'cuda' means the CPU for this thread; the functions of `torch.cuda` for the whole process."""
    global _inside
    if getattr(_thread, "inside", False):
        yield
        return
    with _lock:
        _inside += 1
        if _inside == 1:
            _patches[:] = [mock.patch.multiple(owner, **names) for owner, names in _REPLACED]
            for patch in _patches:
                patch.start()
    _thread.inside = True
    try:
        with _CudaIsCpu():
            yield
    finally:
        _thread.inside = False
        with _lock:
            _inside -= 1
            if _inside == 0:
                for patch in _patches:
                    patch.stop()


# The stand-in for Transformer Engine


def _refuse(what: str, *_: Any, **__: Any) -> NoReturn:
    raise NotImplementedError(f"{what}: needs CUDA and Transformer Engine, and this machine runs without them")


def _refuse_any(**options: Any) -> None:
    for name, value in options.items():
        if value is not None and value is not False:
            _refuse(f"{name}={value!r}")


def _mappings() -> Any:
    from megatron.core.tensor_parallel import mappings

    return mappings


class TransformerEngineBaseModule(nn.Module):
    """What all modules of Transformer Engine share."""

    def __init__(self, tp_group: Any = None) -> None:
        super().__init__()
        self.tp_group = tp_group
        self.fp8 = self.fp8_calibration = self.fp8_initialized = False
        self.fp8_meta: dict[str, Any] = {"fp8_checkpoint": False, "fp8_group": None, "recipe": None}

    def init_fp8_metadata(self, num_gemms: int = 1) -> None: ...

    def set_tensor_parallel_group(self, tp_group: Any) -> None:
        self.tp_group = tp_group

    def get_extra_state(self) -> Tensor:
        return torch.empty(0, dtype=torch.uint8)

    def set_extra_state(self, state: Tensor | None) -> None:
        if state is not None and state.numel():
            _refuse("a checkpoint with scales of fp8")


def _gain(size: int, options: dict[str, Any], zero_centered: bool, sequence_parallel: bool) -> nn.Parameter:
    gain = nn.Parameter(torch.full((size,), 0.0 if zero_centered else 1.0, **options))
    gain.sequence_parallel = sequence_parallel  # type: ignore[attr-defined]
    return gain


def _normalize(x: Tensor, gain: Tensor, bias: Tensor | None, eps: float, zero_centered: bool, rms: bool) -> Tensor:
    gain = gain + 1 if zero_centered else gain
    return F.rms_norm(x, gain.shape, gain, eps) if rms else F.layer_norm(x, gain.shape, gain, bias, eps)


class RMSNorm(TransformerEngineBaseModule):
    rms = True

    def __init__(
        self,
        hidden_size: int,
        eps: float = 1e-5,
        sequence_parallel: bool = False,
        params_dtype: torch.dtype | None = None,
        zero_centered_gamma: bool = False,
        device: Any = None,
    ) -> None:
        super().__init__()
        self.eps, self.zero_centered_gamma = eps, zero_centered_gamma
        options = {"dtype": params_dtype, "device": device}
        self.weight = _gain(hidden_size, options, zero_centered_gamma, sequence_parallel)
        self.bias = None if self.rms else _gain(hidden_size, options, True, sequence_parallel)

    def forward(self, x: Tensor) -> Tensor:
        return _normalize(x, self.weight, self.bias, self.eps, self.zero_centered_gamma, self.rms)


class LayerNorm(RMSNorm):
    rms = False


class _Projection(TransformerEngineBaseModule):
    """Arguments and weights that `Linear` and `GroupedLinear` share."""

    def __init__(
        self,
        in_features: int,
        out_features: int,
        sequence_parallel: bool = False,
        fuse_wgrad_accumulation: bool = False,
        tp_group: Any = None,
        tp_size: int = 1,
        get_rng_state_tracker: Callable[[], Any] | None = None,
        rng_tracker_name: str | None = None,
        init_method: Callable[[Tensor], Any] | None = None,
        bias: bool = True,
        return_bias: bool = False,
        params_dtype: torch.dtype | None = None,
        parallel_mode: str | None = None,
        device: Any = None,
        ub_name: str | None = None,
        **options: Any,
    ) -> None:
        super().__init__(tp_group)
        _refuse_any(fuse_wgrad_accumulation=fuse_wgrad_accumulation, **options)
        self.fuse_wgrad_accumulation = fuse_wgrad_accumulation
        self.parallel_mode = parallel_mode
        self.tp_size, self.sequence_parallel = tp_size, sequence_parallel and tp_size > 1
        self.use_bias, self.return_bias, self.ub_name = bias, return_bias, ub_name
        self.save_original_input = False
        self.in_features = in_features // tp_size if parallel_mode == "row" else in_features
        self.out_features = out_features // tp_size if parallel_mode == "column" else out_features
        self._new: dict[str, Any] = {"dtype": params_dtype, "device": device}
        self._draw = (init_method or partial(nn.init.normal_, std=0.02), get_rng_state_tracker, rng_tracker_name)

    def _add_weights(self, suffix: str = "") -> None:
        init_method, tracker, name = self._draw
        weight = nn.Parameter(torch.empty(self.out_features, self.in_features, **self._new))
        fork = nullcontext() if tracker is None else tracker().fork(*([name] if name else []))
        with torch.no_grad(), fork:
            init_method(weight)
        bias = nn.Parameter(torch.zeros(self.out_features, **self._new)) if self.use_bias else None
        if self.parallel_mode in ("column", "row"):
            _mark(weight, int(self.parallel_mode == "row"))
        if bias is not None and self.parallel_mode == "column":
            _mark(bias, 0)
        if bias is not None and self.parallel_mode == "row":
            bias.sequence_parallel = self.sequence_parallel  # type: ignore[attr-defined]
        self.register_parameter(f"weight{suffix}", weight)
        self.register_parameter(f"bias{suffix}", bias)


def _mark(parameter: nn.Parameter, dim: int) -> None:
    for name, value in {"tensor_model_parallel": True, "partition_dim": dim, "partition_stride": 1}.items():
        setattr(parameter, name, value)


class Linear(_Projection):
    """A product whose weight may be cut by rows or columns over the tensor parallel group."""

    weight: Tensor
    bias: Tensor | None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._add_weights()

    def forward(self, x: Tensor, is_first_microbatch: bool | None = None) -> Any:
        return self._multiply(self._enter(x))

    def _enter(self, x: Tensor) -> Tensor:
        if self.tp_size == 1 or self.parallel_mode != "column":
            return x
        if self.sequence_parallel:
            return _gathered(x, self.tp_group)
        return _mappings().copy_to_tensor_model_parallel_region(x, group=self.tp_group)  # type: ignore[no-any-return]

    def _multiply(self, x: Tensor) -> Any:
        row = self.tp_size > 1 and self.parallel_mode == "row"
        bias = None if self.return_bias else self.bias
        y = F.linear(x, self.weight, None if row else bias)
        if row and self.sequence_parallel:
            y = _mappings().reduce_scatter_to_sequence_parallel_region(y, group=self.tp_group)
        elif row:
            y = _mappings().reduce_from_tensor_model_parallel_region(y, group=self.tp_group)
        if row and bias is not None:
            y = y + bias
        return (y, self.bias) if self.return_bias else y


def _gathered(x: Tensor, group: Any) -> Tensor:
    """The parts of all processes along the first dimension; gradients are added up and cut again."""
    gather = _mappings().gather_from_sequence_parallel_region
    return gather(x.contiguous(), tensor_parallel_output_grad=True, group=group)  # type: ignore[no-any-return]


class LayerNormLinear(Linear):
    """A norm and a product in one module."""

    layer_norm_weight: Tensor
    layer_norm_bias: Tensor | None

    def __init__(
        self,
        in_features: int,
        out_features: int,
        eps: float = 1e-5,
        normalization: str = "LayerNorm",
        zero_centered_gamma: bool = False,
        return_layernorm_output: bool = False,
        return_layernorm_output_gathered: bool = False,
        sequence_parallel: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(in_features, out_features, sequence_parallel=sequence_parallel, **kwargs)
        self.eps, self.normalization, self.zero_centered_gamma = eps, normalization, zero_centered_gamma
        self.return_layernorm_output = return_layernorm_output
        self.return_layernorm_output_gathered = return_layernorm_output_gathered
        bias = None
        if normalization == "LayerNorm":
            bias = _gain(in_features, self._new, True, sequence_parallel)
        self.layer_norm_weight = _gain(in_features, self._new, zero_centered_gamma, sequence_parallel)
        self.register_parameter("layer_norm_bias", bias)
        for name in ("weight", "bias"):
            self._parameters[name] = self._parameters.pop(name)  # the norm's come first

    def forward(self, x: Tensor, is_first_microbatch: bool | None = None) -> Any:
        rms = self.normalization == "RMSNorm"
        x = _normalize(x, self.layer_norm_weight, self.layer_norm_bias, self.eps, self.zero_centered_gamma, rms)
        entered = self._enter(x)
        y = self._multiply(entered)
        if not self.return_layernorm_output:
            return y
        normed = entered if self.return_layernorm_output_gathered and self.sequence_parallel else x
        return (*y, normed) if self.return_bias else (y, normed)


class LayerNormMLP(TransformerEngineBaseModule):
    """PEFT and others ask whether a module is one."""

    def __init__(self, *_: Any, **__: Any) -> None:
        _refuse("LayerNormMLP")


class GroupedLinear(_Projection):
    """One product per expert over consecutive tokens. Experts without tokens get gradients of zero."""

    def __init__(self, num_gemms: int, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.tp_size > 1:
            _refuse("a grouped product that communicates by itself")
        self.num_gemms = num_gemms
        for index in range(num_gemms):
            self._add_weights(str(index))

    def forward(self, x: Tensor, m_splits: Iterable[int], is_first_microbatch: bool | None = None) -> Any:
        biases = [self._parameters[f"bias{index}"] for index in range(self.num_gemms)]
        parts = torch.split(x, [int(size) for size in m_splits])
        outs = [
            F.linear(part, self._parameters[f"weight{index}"], None if self.return_bias else biases[index])  # type: ignore[arg-type]
            for index, part in enumerate(parts)
        ]
        y = torch.cat(outs)
        return (y, biases) if self.return_bias else y


class _Piece(NamedTuple):
    """Queries of one process that follow each other in a sequence."""

    sequence: int
    first: int
    """The position of the first one in its sequence."""
    size: int
    real: int
    """The rest is padding."""


@lru_cache(maxsize=16)
def _pieces(lengths: tuple[int, ...], rooms: tuple[int, ...], size: int, rank: int) -> list[_Piece]:
    """The queries of a process: whole sequences, or of each the chunks `rank` and `-rank` of twice as many."""
    pieces = []
    for sequence, (length, room) in enumerate(zip(lengths, rooms, strict=True)):
        chunk = room // (2 * size)
        spans = [(0, room)] if size == 1 else [(rank * chunk, chunk), ((2 * size - 1 - rank) * chunk, chunk)]
        pieces += [_Piece(sequence, first, each, min(max(length - first, 0), each)) for first, each in spans]
    return pieces


def _sequences(cu: Tensor | None, padded: Tensor | None, tokens: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Lengths of packed sequences, and the room that each has. Tokens after the last one are padding."""
    if cu is None:
        raise ValueError("packed sequences without cu_seqlens_q")
    lengths, rooms = (each.diff().tolist() for each in (cu, cu if padded is None else padded))
    rest = tokens - sum(rooms)
    return (*lengths, *([0] if rest else [])), (*rooms, *([rest] if rest else []))


@lru_cache(maxsize=16)
@torch.inference_mode(False)
def _natural_order(rooms: tuple[int, ...], size: int) -> Tensor:
    """Where the tokens of the sequences lie in what was gathered from all processes."""
    places, start, stride = [], 0, sum(rooms) // size
    for room in rooms:
        chunk = room // (2 * size)
        for index in range(2 * size):
            late = index >= size
            rank = 2 * size - 1 - index if late else index
            begin = rank * stride + start + late * chunk
            places.append(torch.arange(begin, begin + chunk))
        start += 2 * chunk
    return torch.cat(places)


@lru_cache(maxsize=8)
@torch.inference_mode(False)
def _allowed(queries: int, keys: int, ahead: int, left: int, right: int) -> Tensor:
    """Which keys queries see that begin `ahead` of them. Negative limits are none."""
    distance = torch.arange(ahead, ahead + queries)[:, None] - torch.arange(keys)
    allowed = torch.ones_like(distance, dtype=torch.bool)
    if left >= 0:
        allowed &= distance <= left
    if right >= 0:
        allowed &= distance >= -right
    return allowed


class DotProductAttention(TransformerEngineBaseModule):
    """Attention over [sequence, batch, heads, channels], or over packed sequences without a batch.

    Context parallel processes gather keys and values. As in Transformer Engine a mask is looked at only where the kind
    of mask is padding or arbitrary.
    """

    def __init__(
        self,
        num_attention_heads: int,
        kv_channels: int | tuple[int, int],
        num_gqa_groups: int | None = None,
        attention_dropout: float = 0.0,
        attn_mask_type: str = "causal",
        window_size: tuple[int, int] | None = None,
        sequence_parallel: bool = False,
        get_rng_state_tracker: Callable[[], Any] | None = None,
        tp_group: Any = None,
        tp_size: int = 1,
        layer_number: int | None = None,
        attention_type: str = "self",
        cp_group: Any = None,
        cp_global_ranks: Sequence[int] | None = None,
        cp_stream: Any = None,
        cp_comm_type: str = "p2p",
        softmax_scale: float | None = None,
        softmax_type: str = "vanilla",
        **options: Any,
    ) -> None:
        super().__init__(tp_group)
        _refuse_any(**options)
        if softmax_type != "vanilla":
            _refuse(f"attention with a {softmax_type} softmax")
        if attention_type != "self":
            _refuse(f"{attention_type} attention")
        key_channels = kv_channels[0] if isinstance(kv_channels, tuple) else kv_channels
        self.softmax_scale = key_channels**-0.5 if softmax_scale is None else softmax_scale
        self.attn_mask_type, self.window_size, self.layer_number = attn_mask_type, window_size, layer_number
        self.attention_dropout = attention_dropout
        self._tracker = None if sequence_parallel else get_rng_state_tracker
        self.set_context_parallel_group(cp_group, cp_global_ranks, cp_stream, cp_comm_type)

    def set_context_parallel_group(
        self, cp_group: Any, cp_global_ranks: Any, cp_stream: Any, cp_comm_type: str = "p2p"
    ) -> None:
        if isinstance(cp_group, list):
            _refuse("hierarchical context parallelism")
        self.cp_group, self.cp_comm_type = cp_group, cp_comm_type

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None = None,
        qkv_format: str = "sbhd",
        cu_seqlens_q: Tensor | None = None,
        cu_seqlens_kv: Tensor | None = None,
        cu_seqlens_q_padded: Tensor | None = None,
        cu_seqlens_kv_padded: Tensor | None = None,
        max_seqlen_q: int | None = None,
        max_seqlen_kv: int | None = None,
        attn_mask_type: str | None = None,
        window_size: tuple[int, int] | None = None,
        **options: Any,
    ) -> Tensor:
        _refuse_any(**options)
        if qkv_format not in ("sbhd", "thd") or query.shape[0] != key.shape[0]:
            _refuse(f"attention of {query.shape[0]} over {key.shape[0]} in the layout {qkv_format}")
        kind = attn_mask_type or self.attn_mask_type
        if "bottom_right" in kind:
            _refuse(f"a mask of the kind {kind}")
        packed = qkv_format == "thd"
        if packed:
            query, key, value = (each.unsqueeze(1) for each in (query, key, value))
        size = 1 if self.cp_group is None else self.cp_group.size()
        rank = 0 if size == 1 else self.cp_group.rank()
        tokens = size * query.shape[0]
        lengths, rooms = _sequences(cu_seqlens_q, cu_seqlens_q_padded, tokens) if packed else ((tokens,), (tokens,))
        if size > 1:
            if sum(rooms) != tokens or any(room % (2 * size) for room in rooms):
                raise ValueError(f"sequences that context parallelism of {size} cannot cut: {rooms} of {tokens} tokens")
            order = _natural_order(rooms, size)
            key, value = (_gathered(each, self.cp_group).index_select(0, order) for each in (key, value))
        left, right = window_size or self.window_size or (-1, -1)
        right = 0 if "causal" in kind else right
        mask = None
        if not packed and attention_mask is not None and ("padding" in kind or kind == "arbitrary"):
            if size > 1:
                _refuse("a mask of padding with context parallelism")
            mask = ~attention_mask
        keys, values = torch.split(key, list(rooms)), torch.split(value, list(rooms))
        outs = []
        pieces = _pieces(lengths, rooms, size, rank)
        with self._drawing():
            for piece, part in zip(pieces, torch.split(query, [piece.size for piece in pieces]), strict=True):
                length = lengths[piece.sequence]
                k, v = keys[piece.sequence][:length], values[piece.sequence][:length]
                # Blocks of queries see few of the keys where there is a window.
                step = max(2 * left, 256) if left >= 0 and mask is None else max(piece.real, 1)
                for start in range(0, piece.real, step):
                    block = part[start : min(start + step, piece.real)]
                    outs.append(self._attend(block, k, v, piece.first + start, left, right, mask))
                if piece.size > piece.real:
                    outs.append(query.new_zeros(piece.size - piece.real, *query.shape[1:-1], value.shape[-1]))
        out = outs[0] if len(outs) == 1 else torch.cat(outs)
        return out.flatten(1) if packed else out.flatten(2)

    def _attend(
        self, query: Tensor, key: Tensor, value: Tensor, first: int, left: int, right: int, mask: Tensor | None
    ) -> Tensor:
        """Queries from `first` on over the keys of their whole sequence. Negative limits are none."""
        queries, low, high = len(query), 0, len(key)
        if mask is None:
            low = max(0, first - left) if left >= 0 else 0
            high = min(high, first + queries + right) if right >= 0 else high
        key, value, ahead = key[low:high], value[low:high], first - low
        keys, channels = high - low, value.shape[-1]
        triangle = right == 0 and ahead == 0 and queries == keys and (left < 0 or left >= queries - 1) and mask is None
        if not triangle and (left >= 0 or right >= 0):
            allowed = _allowed(queries, keys, ahead, left, right)
            mask = allowed if mask is None else mask & allowed
        if channels < query.shape[-1]:
            # The fast implementation wants as many channels of values as of keys.
            value = F.pad(value, (0, query.shape[-1] - channels))
        q, k, v = (each.permute(1, 2, 0, 3) for each in (query, key, value))
        out = F.scaled_dot_product_attention(
            q,
            k,
            v,
            attn_mask=mask,
            dropout_p=self.attention_dropout if self.training else 0.0,
            is_causal=triangle,
            scale=self.softmax_scale,
            enable_gqa=q.shape[1] != k.shape[1],
        )
        return out[..., :channels].permute(2, 0, 1, 3)

    def _drawing(self) -> AbstractContextManager[Any]:
        if self._tracker is None or not self.training or not self.attention_dropout:
            return nullcontext()
        return self._tracker().fork()  # type: ignore[no-any-return]


class FusedAdam(torch.optim.Optimizer):
    """Adam that counts steps per group, as Transformer Engine does."""

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        bias_correction: bool = True,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        adam_w_mode: bool = True,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
        **options: Any,
    ) -> None:
        _refuse_any(bias_correction=None if bias_correction else "off", amsgrad=amsgrad, **options)
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})
        self._update = torch._fused_adamw_ if adam_w_mode else torch._fused_adam_

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            if not group["params"]:
                continue
            group["step"] = group.get("step", 0) + 1
            params = [param for param in group["params"] if param.grad is not None and param.numel()]
            for param in params:
                for name in ("exp_avg", "exp_avg_sq"):
                    if name not in self.state[param]:
                        self.state[param][name] = torch.zeros_like(param)
            if params:
                self._update(
                    params,
                    [param.grad.to(param.dtype) for param in params],
                    [self.state[param]["exp_avg"] for param in params],
                    [self.state[param]["exp_avg_sq"] for param in params],
                    [],
                    [torch.tensor(float(group["step"]))] * len(params),
                    lr=float(group["lr"]),
                    beta1=group["betas"][0],
                    beta2=group["betas"][1],
                    weight_decay=group["weight_decay"],
                    eps=group["eps"],
                    amsgrad=False,
                    maximize=False,
                )
        return loss


def multi_tensor_applier(op: Callable[..., Any], overflow: Tensor, lists: list[list[Tensor]], *args: Any) -> Any:
    return op(2048 * 32, overflow, lists, *args)


def multi_tensor_scale(chunk: int, overflow: Tensor, lists: list[list[Tensor]], scale: float) -> None:
    sources, targets = lists
    if sources:
        torch._foreach_copy_(targets, sources if scale == 1.0 else torch._foreach_mul(sources, scale))


def multi_tensor_l2norm(
    chunk: int, overflow: Tensor, lists: list[list[Tensor]], per_tensor: bool = False
) -> tuple[Tensor, Tensor | None]:
    norms = torch.stack([norm.float() for norm in torch._foreach_norm(lists[0])]) if lists[0] else torch.zeros(1)
    return norms.norm().reshape(1), norms if per_tensor else None


def checkpoint(
    function: Callable[..., Any],
    *args: Any,
    distribute_saved_activations: bool = False,
    get_rng_state_tracker: Callable[[], Any] | None = None,
    tp_group: Any = None,
    **kwargs: Any,
) -> Any:
    """Compute `function` once more in the backward pass, from the same states of all generators."""
    from torch.utils import checkpoint as torch_checkpoint

    _refuse_any(distribute_saved_activations=distribute_saved_activations)
    tracker = None if get_rng_state_tracker is None else get_rng_state_tracker()
    before = None if tracker is None else tracker.get_states()

    @contextmanager
    def again() -> Iterator[None]:
        if tracker is None:
            yield
            return
        after = tracker.get_states()
        tracker.set_states(dict(before))  # type: ignore[arg-type]
        try:
            yield
        finally:
            tracker.set_states(after)

    return torch_checkpoint.checkpoint(
        function, *args, use_reentrant=False, context_fn=lambda: (nullcontext(), again()), **kwargs
    )


class CudaRNGStatesTracker:
    """Named states of the generator."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.states_: dict[str, Tensor] = {}

    def get_states(self) -> dict[str, Tensor]:
        return dict(self.states_)

    def set_states(self, states: dict[str, Tensor]) -> None:
        self.states_ = states

    def add(self, name: str, seed: int) -> None:
        if name in self.states_:
            raise ValueError(f"the state {name} exists already")
        self.states_[name] = torch.Generator().manual_seed(seed).get_state()

    @contextmanager
    def fork(self, name: str = "model-parallel-rng") -> Iterator[None]:
        outside = torch.get_rng_state()
        torch.set_rng_state(self.states_[name])
        try:
            yield
        finally:
            self.states_[name] = torch.get_rng_state()
            torch.set_rng_state(outside)


def fp8_autocast(enabled: bool = True, *_: Any, **__: Any) -> AbstractContextManager[None]:
    return nullcontext() if not enabled else _refuse("fp8")


class FP8GlobalStateManager:
    """Says that fp8 is off."""

    @staticmethod
    def is_fp8_enabled() -> bool:
        return False

    @staticmethod
    def get_fp8_recipe() -> None: ...


class _Recipe:
    def __init__(self, *_: Any, **__: Any) -> None:
        _refuse(f"fp8 with {type(self).__name__}")


class Format(Enum):
    E4M3 = "e4m3"
    HYBRID = "hybrid"


class QuantizedTensor(Tensor):
    """No tensor is one."""


class _SplitAlongDim:
    @staticmethod
    def apply(tensor: Tensor, dim: int, sizes: int | Sequence[int]) -> tuple[Tensor, ...]:
        return torch.split(tensor, sizes if isinstance(sizes, int) else list(sizes), dim=dim)


def _module(name: str, **names: Any) -> None:
    module = types.ModuleType(name, "A stand-in of plain torch.")
    module.__spec__ = importlib.machinery.ModuleSpec(name, None, is_package=True)
    module.__path__ = []
    vars(module).update(names)
    sys.modules[name] = module
    parent, _, last = name.rpartition(".")
    if parent in sys.modules:
        setattr(sys.modules[parent], last, module)


def _install() -> None:
    """Make modules of the stand-in importable under the names of Transformer Engine, and no others."""
    root = "transformer_engine"
    recipes = ("DelayedScaling", "Float8CurrentScaling", "Float8BlockScaling", "MXFP8BlockScaling")
    fused = ("fused_compute_score_for_moe_aux_loss", "fused_moe_aux_loss", "fused_topk_with_score_function")
    _module(root, __version__=VERSION)
    _module(f"{root}.common")
    _module(f"{root}.common.recipe", Format=Format, **{name: type(name, (_Recipe,), {}) for name in recipes})
    _module(
        f"{root}.pytorch",
        DotProductAttention=DotProductAttention,
        GroupedLinear=GroupedLinear,
        LayerNorm=LayerNorm,
        LayerNormLinear=LayerNormLinear,
        LayerNormMLP=LayerNormMLP,
        Linear=Linear,
        RMSNorm=RMSNorm,
        fp8_autocast=fp8_autocast,
        fp8_model_init=fp8_autocast,
    )
    # mcore-bridge looks for both.
    _module(
        f"{root}.pytorch.attention",
        _SplitAlongDim=_SplitAlongDim,
        apply_rotary_pos_emb=partial(_refuse, "fused rotary embeddings"),
    )
    _module(
        f"{root}.pytorch.distributed",
        CudaRNGStatesTracker=CudaRNGStatesTracker,
        activation_recompute_forward=partial(_refuse, "recomputation in fp8"),
        checkpoint=checkpoint,
    )
    _module(f"{root}.pytorch.fp8", FP8GlobalStateManager=FP8GlobalStateManager, fp8_autocast=fp8_autocast)
    # Annotations of megatron-core name these.
    _module(f"{root}.pytorch.ops", FusibleOperation=LayerNormMLP, Sequential=LayerNormMLP)
    _module(
        f"{root}.pytorch.optimizers",
        FusedAdam=FusedAdam,
        FusedSGD=torch.optim.SGD,
        multi_tensor_applier=multi_tensor_applier,
        multi_tensor_l2norm=multi_tensor_l2norm,
        multi_tensor_scale=multi_tensor_scale,
    )
    # megatron-core refuses what is None when it is asked for.
    _module(f"{root}.pytorch.router", **dict.fromkeys(fused))
    _module(f"{root}.pytorch.tensor", QuantizedTensor=QuantizedTensor)
