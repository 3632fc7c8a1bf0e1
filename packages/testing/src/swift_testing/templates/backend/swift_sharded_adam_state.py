"""Every process has the whole model, and updates the parameters that it owns."""

import torch
from torch.distributed.optim import ZeroRedundancyOptimizer

from swift.toolkit import TorchState


class State(TorchState):
    def make_optimizer(self, run):
        if run.world.size == 1:
            return super().make_optimizer(run)
        optim = run.config.optim
        groups = self.parameter_groups(run)
        for group in groups:
            del group["names"]
        betas = (optim.beta1, optim.beta2)
        return ZeroRedundancyOptimizer(
            groups, torch.optim.AdamW, lr=run.config.learning_rate, betas=betas, eps=optim.eps
        )

    @property
    def local_optimizer(self):
        return getattr(self.optimizer, "optim", self.optimizer)

    def local(self, parameter):
        owned = (each for group in self.local_optimizer.param_groups for each in group["params"])
        return parameter if any(parameter is each for each in owned) else None
