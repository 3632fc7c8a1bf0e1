"""DDP: every process keeps a whole replica, and gradients are added up while the last backward pass goes on."""

from __future__ import annotations

import contextlib
import warnings
from contextlib import AbstractContextManager
from typing import Any, cast

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from swift.backends.torch.config import TorchConfig
from swift.backends.torch.state import TorchState
from swift.contracts import Objective, Run
from swift.data.batch import Batch
from swift.models.build import decoder_blocks
from swift.models.media import ProcessorReader
from swift.models.parts import reaches_trained
from swift.models.step_copies import use_copies, weights_cast_once
from swift.models.view import ViewModule
from swift.plugins.tuner import tuner_of
from swift.train.sums import GlobalSums


class DataParallelState(TorchState):
    """The training state of one process."""

    def distribute(self, run: Run, model: ViewModule) -> ViewModule:
        """Keep the whole model; a process by itself casts its weights once a step."""
        alone = run.world.size == 1
        if alone and self.arithmetic.compute is not torch.float32 and not tuner_of(run.config.tuner).adapter:
            use_copies(decoder_blocks(model.model))
        return model

    def wrap(self, run: Run) -> torch.nn.Module:
        """Wrap the view in DDP, unless this process is alone."""
        if run.world.size == 1:
            return self.view
        options, device = run.options(TorchConfig), self.arithmetic.device
        reader = run.media_reader if self.trains_encoder else None
        reached = reaches_trained(self.view, cast("ProcessorReader | None", reader))
        # Torch warns about a mixture where each expert has had a token in the first micro-batch.
        warnings.filterwarnings("ignore", message="find_unused_parameters=True was specified")
        with warnings.catch_warnings():
            # Newer torch has another name for it, which the oldest one that we support does not know.
            warnings.filterwarnings("ignore", message="`broadcast_buffers` is deprecated", category=FutureWarning)
            module = DistributedDataParallel(
                self.view,
                device_ids=[device.index] if device.type == "cuda" else None,
                bucket_cap_mb=options.bucket_mb,
                broadcast_buffers=False,
                gradient_as_bucket_view=True,
                find_unused_parameters=not reached,  # it would wait for their gradients otherwise
            )
        module.register_comm_hook(None, _add_up)
        return module

    def accumulate(self, run: Run, batch: Batch, objective: Objective) -> GlobalSums:
        """Run forward and backward passes, with weights that are cast once."""
        with weights_cast_once(self.model, self.arithmetic.compute):
            return super().accumulate(run, batch, objective)

    def around(self, last: bool) -> AbstractContextManager[Any]:
        """Let DDP add gradients up with the last micro-batch alone."""
        if isinstance(self.module, DistributedDataParallel) and not last:
            return self.module.no_sync()
        return contextlib.nullcontext()

    def reduce_gradients(self, run: Run) -> None:
        """Leave gradients as DDP reduced them; without images, those of a trained encoder are zero, not absent."""
        for parameter in self.trained() if self.trains_encoder else ():
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)


def _add_up(_, bucket):  # type: ignore[no-untyped-def]  # DDP compares annotations with types, and these are strings
    """Add gradients up, where DDP by itself averages: losses are divided by the weight of the global batch before."""
    work = dist.all_reduce(bucket.buffer(), async_op=True)
    assert work is not None
    return work.get_future().then(lambda done: done.value()[0])
