"""Base class of backends whose models torch's autograd trains. Does not import torch."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from swift.config.limits import Threads
from swift.config.sections import Section
from swift.contracts import HOOK_API, Capabilities
from swift.hookspecs import lazy_hook


class TorchOptions(Section):
    """Options of every backend that trains with torch's autograd."""

    device: Literal["auto", "cpu", "cuda"] = Field(
        "auto", description="Device to train on; auto: a GPU if there is one"
    )
    cpu_threads: Threads | None = Field(
        None, description="CPU threads per process; default: the cores divided by the processes on this machine"
    )


class TorchBackend:
    """A backend in plain PyTorch: data parallel, with gradients that are all-reduced after the last micro-batch.

    A subclass declares its `capabilities`, and overrides `swift_shard` with a subclass of `swift.toolkit.TorchState`
    that does differently what the backend does differently. All other hooks work on that state.
    """

    HOOK_API = HOOK_API
    config_model: type[Section] = TorchOptions
    capabilities = Capabilities(
        parallel=frozenset({"dp_replicate"}),
        precisions=frozenset({"float32", "bfloat16"}),
        tuners=frozenset({"full", "lora"}),
        features=frozenset(
            {"train.gradient_checkpointing", "train.router_aux_loss", "train.router_z_loss", "train.router_bias_rate"}
        ),
        calls_before_update=True,
    )

    swift_check_layout = lazy_hook("swift.backends.torch.layout:check_run")
    swift_setup = lazy_hook("swift.backends.torch.topology:setup")
    swift_wrap_model = lazy_hook("swift.models.build:build_view")
    swift_shard = lazy_hook("swift.backends.torch.state:TorchState")
    swift_train_step = lazy_hook("swift.backends.torch.step:train_step")
    swift_forward = lazy_hook("swift.backends.torch.step:forward")
    swift_save_checkpoint = lazy_hook("swift.backends.torch.checkpoint:save")
    swift_load_checkpoint = lazy_hook("swift.backends.torch.checkpoint:load")
    swift_iter_weights = lazy_hook("swift.backends.torch.checkpoint:stream")
    swift_teardown = lazy_hook("swift.processes.device:leave_group")
