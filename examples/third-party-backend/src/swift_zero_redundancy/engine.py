"""How it is done: every process has the whole model, and updates the parameters that it owns."""

from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.optim import ZeroRedundancyOptimizer

from swift import Topology
from swift.errors import UnsupportedLayout
from swift.toolkit import (
    Arithmetic,
    accumulate,
    canonical_parameters,
    canonical_weights,
    choose_device,
    join_group,
    model_name,
    optim_name,
    parameter_groups,
    score,
    update,
)


def setup(run):
    wanted, size = run.config.parallel.dp_replicate, run.world.size
    if wanted not in (None, size):
        raise UnsupportedLayout(
            f"parallel.dp_replicate is {wanted}, but {size} processes were started.", hint=f"Type --nproc {wanted}"
        )
    device = choose_device("auto", run.world)
    join_group(device, run.world, timeout=timedelta(minutes=run.backend_options.timeout_minutes), alone=True)
    return Topology(run.world, data_rank=run.world.rank, data_size=size, device=str(device))


class State:
    """What the hooks share: the model as objectives see it, and the optimizer."""

    def __init__(self, run, model):
        optim = run.config.optim
        self.step = 0
        self.view = model
        self.arithmetic = Arithmetic.of(run)
        groups = parameter_groups(self.view.model.named_parameters(), optim, run.config.tuner)
        for group in groups:
            del group["names"]
        self.trained = [parameter for group in groups for parameter in group["params"]]
        self.optimizer = ZeroRedundancyOptimizer(
            groups,
            torch.optim.AdamW,
            lr=run.config.learning_rate,
            betas=(optim.beta1, optim.beta2),
            eps=optim.eps,
        )


def train_step(run, state, batch, objective):
    state.view.train()
    sums = accumulate(state.view, batch, objective, state.arithmetic)
    for parameter in state.trained:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        dist.all_reduce(parameter.grad)  # a sum: the loss was divided by the weight of the global batch
    limit = run.config.optim.max_grad_norm or float("inf")
    grad_norm = float(torch.nn.utils.clip_grad_norm_(state.trained, limit))
    return update(
        run,
        state,
        batch,
        sums,
        optimizer=state.optimizer,
        arithmetic=state.arithmetic,
        grad_norm=grad_norm,
        all_reduce=dist.all_reduce,
    )


def forward(state, batch, objective):
    return score(state.view, state.view.model, batch, objective, state.arithmetic, all_reduce=dist.all_reduce)


def tensors(state):
    """Weights, which every process has, and the optimizer state that this one owns, under their canonical names."""
    found = {}
    for pieces, parameter in canonical_parameters(state.view.model):
        for piece in pieces:
            found[model_name(piece.name)] = piece.view_of(parameter.detach())
            for slot, value in state.optimizer.optim.state.get(parameter, {}).items():
                found[optim_name(piece.name, slot)] = value if slot == "step" else piece.view_of(value)
    return found


def save(state, writer):
    writer.tensors(tensors(state))


def load(state, reader):
    """Make room for the state of the parameters that this process owns, then fill everything in place."""
    stored = set(reader.names())
    owned = {parameter for group in state.optimizer.optim.param_groups for parameter in group["params"]}
    for pieces, parameter in canonical_parameters(state.view.model):
        if parameter in owned and optim_name(pieces[0].name, "step") in stored:
            slots = state.optimizer.optim.state[parameter]
            slots["step"] = torch.zeros(())
            slots["exp_avg"], slots["exp_avg_sq"] = torch.zeros_like(parameter), torch.zeros_like(parameter)
    reader.tensors(tensors(state))


def weights(state):
    return canonical_weights(state.view.model)
