"""'cuda' means the CPU inside the context, and nothing of it is left outside."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch

from swift_backend_megatron.cpu.cuda_means_cpu import cuda_on_cpu


def everything() -> list[dict[str, Any]]:
    return [dict(vars(owner)) for owner in (torch, torch.cuda, torch.cuda.random, torch.Tensor, torch.nn.Module)]


def use_cuda() -> None:
    x = torch.zeros(2, device="cuda")
    assert x.device.type == "cpu"
    assert x.cuda(0).to("cuda:1").to(torch.cuda.current_device()).device.type == "cpu"
    assert torch.device("cuda", 1) == torch.device("cpu")
    assert torch.device("cuda", index=0) == torch.device("cpu")
    assert torch.device("meta").type == "meta"
    assert x.type() == "torch.cuda.FloatTensor"
    assert x.type(torch.float16).type("torch.cuda.FloatTensor").dtype is torch.float32
    assert not torch.zeros(1, pin_memory=True).pin_memory().is_pinned()
    assert torch.nn.Linear(1, 1).cuda().to("cuda").weight.device.type == "cpu"
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda.Event(enable_timing=True).record()
    torch.cuda.synchronize()
    torch.cuda.manual_seed(5)
    state = torch.cuda.get_rng_state()
    first = torch.rand(3, device="cuda")
    torch.cuda.set_rng_state(state)
    assert torch.equal(first, torch.rand(3))
    with torch.autocast("cuda", dtype=torch.bfloat16):
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype is torch.bfloat16
    with cuda_on_cpu():
        pass
    assert torch.zeros(1, device="cuda").device.type == "cpu"


def test_cuda_is_mapped_to_cpu_only_inside_context() -> None:
    """CUDA means the CPU inside and nothing is left of it outside."""
    torch.cuda.is_available()
    before = everything()
    with cuda_on_cpu(), cuda_on_cpu():
        use_cuda()
    assert everything() == before
    with pytest.raises(ZeroDivisionError), cuda_on_cpu():
        1 / torch.zeros(1, device="cuda").long().item()
    assert everything() == before
    assert torch.device("cuda").type == "cuda"
    assert torch.overrides._get_current_function_mode_stack() == []


def test_generators_fork_after_device_module_lookup() -> None:
    """Generators can be forked after code inside the context has looked up the device module."""
    with cuda_on_cpu():
        torch.get_device_module("cuda")
    with torch.random.fork_rng():  # as PEFT does for EVA
        torch.rand(1)
    assert torch.get_device_module("cuda") is torch.cuda


def test_threads_leave_each_other_their_patches() -> None:
    before = everything()
    entered, leave = threading.Event(), threading.Event()

    def other() -> None:
        with cuda_on_cpu():
            entered.set()
            leave.wait(10)

    thread = threading.Thread(target=other)
    thread.start()
    assert entered.wait(10)
    assert torch.device("cuda").type == "cuda"
    with cuda_on_cpu():
        pass
    assert torch.cuda.current_device() == torch.device("cpu")
    leave.set()
    thread.join()
    assert everything() == before
