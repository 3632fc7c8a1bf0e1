"""Where the fp32 weights and the optimizer's state of a parameter lie on this process, under each stage.

DeepSpeed lays the weights of a group end to end and cuts them into equal pieces; what a process updates of one
parameter is a run of its elements. Everything else here follows from that: checkpoints, weights, exact masters.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import nn

MOMENTS = ("exp_avg", "exp_avg_sq")


@dataclass(frozen=True)
class Fragment:
    """The run of a parameter's elements that this process updates."""

    start: int
    values: torch.Tensor
    """fp32, one-dimensional, live."""
    owner: torch.Tensor
    """What the optimizer knows them by: a flat piece, or a parameter."""
    at: int
    """Where the run begins in the owner."""

    def moment(self, slots: dict[str, Any], name: str) -> torch.Tensor:
        """Return the part of one of the optimizer's moments that corresponds to these values."""
        moment: torch.Tensor = slots[name]
        return moment.view(-1).narrow(0, self.at, self.values.numel())


class Partitions(Protocol):
    """One stage's way of cutting."""

    optimizer: torch.optim.Optimizer
    """The one that updates fp32 values, inside of whatever DeepSpeed put around it."""

    def fragment(self, parameter: nn.Parameter) -> Fragment | None:
        """This process's run of a trained parameter, if it has one."""

    def refresh(self) -> None:
        """Make working weights of the fp32 ones, after these were written to."""

    def whole(self, parameter: torch.Tensor) -> torch.Tensor:
        """A whole parameter in fp32 if it is trained, gathered from all processes."""

    def release(self) -> None:
        """Fragments are not looked at any more; those that were written to are what training goes on with."""


def partitions_of(engine: Any) -> Partitions:
    """Which of them an engine has."""
    optimizer = engine.optimizer
    if hasattr(optimizer, "fp32_partitioned_groups_flat"):
        return Swapped(optimizer) if optimizer.swap_optimizer else Cut(optimizer)
    if hasattr(optimizer, "single_partition_of_fp32_groups"):
        return FlatCut(optimizer)
    return Replicated(optimizer)


class Replicated:
    """ZeRO 0: torch's own optimizer over the parameters themselves."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer

    def fragment(self, parameter: nn.Parameter) -> Fragment | None:
        """All of it."""
        if not parameter.requires_grad:
            return None
        return Fragment(0, parameter.detach().view(-1), parameter, 0)

    def refresh(self) -> None:
        """Nothing to do: there is one copy."""

    def whole(self, parameter: torch.Tensor) -> torch.Tensor:
        """Itself."""
        return parameter.detach()

    def release(self) -> None:
        """Nothing to do."""


class FlatCut:
    """ZeRO 1 and 2: working weights are whole everywhere, fp32 ones and the optimizer's state are cut."""

    def __init__(self, zero: Any) -> None:
        self._zero = zero
        self.optimizer = zero.optimizer

    def fragment(self, parameter: nn.Parameter) -> Fragment | None:
        """Return the process's fragment of a parameter according to DeepSpeed's own mapping."""
        mapping = getattr(parameter, "_hp_mapping", None)
        if mapping is None:
            return None
        address = mapping.hp_fragment_address
        flat = self._zero.single_partition_of_fp32_groups[mapping.param_group_index]
        values = flat.detach().narrow(0, address.start, address.numel)
        return Fragment(mapping.lp_fragment_address.start, values, flat, address.start)

    def refresh(self) -> None:
        """fp32 pieces → working weights of this process → those of all."""
        self._zero.update_lp_params()

    def whole(self, parameter: torch.Tensor) -> torch.Tensor:
        """Runs of all processes put together."""
        if not parameter.requires_grad:
            return parameter.detach()
        whole = torch.zeros(parameter.shape, dtype=torch.float32, device=parameter.device)
        assert isinstance(parameter, nn.Parameter)
        fragment = self.fragment(parameter)
        if fragment is not None:
            whole.view(-1).narrow(0, fragment.start, fragment.values.numel()).copy_(fragment.values)
        dist.all_reduce(whole, group=self._zero.dp_process_group)
        return whole

    def release(self) -> None:
        """Nothing to do."""


class Cut:
    """ZeRO 3: working weights are cut as well."""

    def __init__(self, zero: Any) -> None:
        self._zero = zero
        self.optimizer = zero.optimizer

    def fragment(self, parameter: nn.Parameter) -> Fragment | None:
        """Every process has an equal part of every parameter; the last one's ends in padding."""
        if not parameter.requires_grad:
            return None
        zero, known = self._zero, parameter
        group, at, length = zero.grad_position[zero.get_param_id(known)]
        start = length * dist.get_rank(known.ds_process_group)  # type: ignore[attr-defined]  # DeepSpeed's
        held = max(0, min(length, known.ds_numel - start))  # type: ignore[attr-defined]  # DeepSpeed's
        flat = zero.fp32_partitioned_groups_flat[group]
        return Fragment(min(start, known.ds_numel), flat.detach().narrow(0, at, held), flat, at)  # type: ignore[attr-defined]

    def refresh(self) -> None:
        """fp32 pieces → working pieces → the small parameters that are kept whole."""
        zero = self._zero
        for index, flat in enumerate(zero.fp32_partitioned_groups_flat):
            working = zero.fp16_partitioned_groups_flat[index]
            if working is None:
                continue
            working.data.copy_(flat.data)
            zero._unflatten_partitioned_parameters(index)
        self._spread()

    def _spread(self) -> None:
        """Small parameters are kept whole on every process: made anew from its pieces."""
        kept = self._zero.persistent_parameters
        if kept:
            kept[0].partition(kept)
            kept[0].all_gather(kept)

    def whole(self, parameter: torch.Tensor) -> torch.Tensor:
        """Gathered for itself: the fp32 values of a trained one, the working ones of another."""
        from deepspeed import zero as public

        if not hasattr(parameter, "ds_id"):
            return parameter.detach()
        if not parameter.requires_grad:
            with public.GatheredParameters([parameter]):
                return parameter.detach().clone()
        assert isinstance(parameter, nn.Parameter)
        fragment = self.fragment(parameter)
        assert fragment is not None
        return self.together(parameter, fragment.values)

    def together(self, parameter: nn.Parameter, values: torch.Tensor) -> torch.Tensor:
        """Gather the parts of a parameter from all processes and return it in its shape."""
        known: Any = parameter
        length = self._zero.grad_position[self._zero.get_param_id(parameter)][2]
        own = values.new_zeros(length, device=self._zero.device)
        own[: values.numel()].copy_(values)
        parts = own.new_empty(length * dist.get_world_size(known.ds_process_group))
        dist.all_gather_into_tensor(parts, own, group=known.ds_process_group)
        return parts[: known.ds_numel].view(tuple(known.ds_shape))

    def release(self) -> None:
        """Nothing to do."""


class Swapped(Cut):
    """ZeRO 3 whose fp32 weights and optimizer state lie on a disk, group by group; one of them is here at a time."""

    _here: int | None = None

    def fragment(self, parameter: nn.Parameter) -> Fragment | None:
        """Valid until a parameter of another group is asked for."""
        if parameter.requires_grad:
            self._bring(self._zero.grad_position[self._zero.get_param_id(parameter)][0])
        return super().fragment(parameter)

    def refresh(self) -> None:
        """Refresh the working copies from the fp32 weights, one group at a time."""
        zero = self._zero
        for index, working in enumerate(zero.fp16_partitioned_groups_flat):
            self._bring(index)
            working.data.copy_(zero.fp32_partitioned_groups_flat[index].data)
            zero._unflatten_partitioned_parameters(index)
        self._spread()

    def release(self) -> None:
        """Back to the disk, as it was changed."""
        self._bring(None)

    def _bring(self, index: int | None) -> None:
        if index == self._here:
            return
        zero = self._zero
        if self._here is not None:
            zero.optimizer_swapper.swap_out_optimizer_state(zero.fp32_partitioned_groups_flat[self._here])
        if index is not None and zero._swappable_optimizer_subgroup(index):
            zero.optimizer_swapper.swap_in_optimizer_state(zero.fp32_partitioned_groups_flat[index])
            self._here = index
        else:
            self._here = None


def make_moments(partitions: Partitions, fragment: Fragment) -> None:
    """The optimizer's state of a fragment's owner, where there is none yet: zeros to be read into."""
    slots = partitions.optimizer.state[fragment.owner]
    if MOMENTS[0] in slots:
        return
    owner = fragment.owner.detach()
    slots["step"] = 0 if _counts_in_integers(partitions.optimizer) else torch.zeros((), dtype=torch.float32)
    for name in MOMENTS:
        slots[name] = torch.zeros_like(owner)


def _counts_in_integers(optimizer: torch.optim.Optimizer) -> bool:
    return type(optimizer).__module__.startswith("deepspeed")
