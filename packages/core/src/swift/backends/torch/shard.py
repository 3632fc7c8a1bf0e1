"""Optimizer, loss scaling and data parallel wrapping; the state that steps work on."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.parallel import DistributedDataParallel

from swift.backends.torch.gradients import add_up
from swift.models.precision import resolve_dtype
from swift.optim.build import build_optimizer, parameter_groups

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from swift.backends.torch.config import TorchConfig
    from swift.contracts import Run
    from swift.models.view import ViewModule


@dataclass
class TorchState:
    """The training state of one process."""

    view: ViewModule
    """Answers views; what evaluation calls."""
    replica: torch.nn.Module
    """The same behind DDP when there are several processes; what training calls."""
    optimizer: torch.optim.Optimizer
    scaler: torch.amp.GradScaler
    """Switched off unless the precision is float16."""
    device: torch.device
    compute: torch.dtype
    step: int = 0

    @property
    def model(self) -> torch.nn.Module:
        """The transformers (or PEFT) model itself."""
        return self.view.model

    def trained(self) -> list[torch.nn.Parameter]:
        """Parameters that the optimizer updates."""
        return [parameter for parameter in self.model.parameters() if parameter.requires_grad]

    def autocast(self) -> AbstractContextManager[Any]:
        """Arithmetic in the precision asked for, on fp32 masters."""
        return torch.autocast(self.device.type, self.compute, enabled=self.compute is not torch.float32)


def shard(run: Run, view: ViewModule) -> TorchState:
    """Nothing is cut here: every process keeps a whole replica, and gradients are added up."""
    assert run.topology is not None
    config, device = run.config, torch.device(run.topology.device)
    dtype_name, _ = resolve_dtype(config.model.dtype, run.topology.device)
    groups = parameter_groups(view.model.named_parameters(), config.optim, config.tuner)
    return TorchState(
        view=view,
        replica=_data_parallel(run, view, device) if run.world.size > 1 else view,
        optimizer=build_optimizer(groups, config.optim, config.learning_rate, device),
        scaler=torch.amp.GradScaler(device.type, enabled=dtype_name == "float16"),
        device=device,
        compute=getattr(torch, dtype_name),
    )


def _data_parallel(run: Run, view: ViewModule, device: torch.device) -> DistributedDataParallel:
    options: TorchConfig = run.backend_options  # type: ignore[assignment]  # validated by config_model
    with warnings.catch_warnings():
        # Newer torch has another name for it, which the oldest one that we support does not know.
        warnings.filterwarnings("ignore", message="`broadcast_buffers` is deprecated", category=FutureWarning)
        replica = DistributedDataParallel(
            view,
            device_ids=[device.index] if device.type == "cuda" else None,
            bucket_cap_mb=options.bucket_mb,
            broadcast_buffers=False,
            gradient_as_bucket_view=True,
        )
    replica.register_comm_hook(None, add_up)
    return replica
