"""A context in which the device 'cuda' means the CPU, for code that names it: megatron-core's and mcore-bridge's."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

_CPU = torch.device("cpu")


def _is_cuda(value: Any) -> bool:
    kind = type(value)
    return (kind is str and value.startswith("cuda")) or (kind is torch.device and value.type == "cuda")


def _device(*args: Any, **kwargs: Any) -> torch.device:
    first = args[0] if args else kwargs.get("type", kwargs.get("device"))
    return _CPU if _is_cuda(first) or type(first) is int else torch.device(*args, **kwargs)


def _type(tensor: Tensor, dtype: Any = None, **kwargs: Any) -> Any:
    """Return the type's name as on a GPU: megatron-core's optimizers look for 'torch.cuda.FloatTensor'."""
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
    """Sends what this thread wants on the GPU to the CPU. Runs at every call of torch, so it is kept short."""

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
    """Replaces streams and events: everything is done when it is asked for."""

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
    """Make 'cuda' mean the CPU for this thread, and replace the functions of `torch.cuda` for the whole process."""
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
                # Which module of torch belongs to 'cuda' is kept for good by whoever asks first.
                torch.get_device_module.cache_clear()
