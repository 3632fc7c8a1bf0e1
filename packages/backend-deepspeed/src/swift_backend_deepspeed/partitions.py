"""Locates the fp32 weights and the optimizer's state of a parameter on this process, for each ZeRO stage.

DeepSpeed concatenates the flattened weights of a group and splits them into equal partitions, so that each process
updates a contiguous run of a parameter's elements. Checkpoints, weights and exact masters all follow from that.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from swift.contracts import Slot
from swift.toolkit import empty_slot

MOMENTS = ("exp_avg", "exp_avg_sq")
"""AdamW's, as DeepSpeed's own checkpoint formats name them."""


@dataclass(frozen=True)
class Fragment:
    """The run of a parameter's elements that this process updates."""

    start: int
    values: torch.Tensor
    """fp32, one-dimensional, live."""
    owner: torch.Tensor
    """The tensor that the optimizer updates: a flat partition, or a parameter."""
    at: int
    """Offset of the run in the owner."""

    def moment(self, slots: dict[str, Any], name: str) -> torch.Tensor:
        """Return the part of one of the optimizer's moments that corresponds to these values."""
        moment: torch.Tensor = slots[name]
        return moment.view(-1).narrow(0, self.at, self.values.numel())


class Partitions(ABC):
    """Partitioning of one ZeRO stage."""

    def __init__(self, zero: Any) -> None:
        self._zero = zero
        self.optimizer: torch.optim.Optimizer = zero.optimizer
        """The optimizer that updates fp32 values, inside of whatever DeepSpeed wraps around it."""

    @abstractmethod
    def fragment(self, parameter: nn.Parameter) -> Fragment | None:
        """Return this process's run of a trained parameter, if it has one."""

    @abstractmethod
    def refresh(self) -> None:
        """Update the working weights after the fp32 ones were written to."""

    @abstractmethod
    def gather(self, parameter: torch.Tensor) -> torch.Tensor:
        """Return the full parameter, gathered from all processes; in fp32 if it is trained."""

    def release(self) -> None:  # noqa: B027 - only fragments that are swapped have to be
        """Finish the use of fragments; values written to them are kept for training."""


def partitions_of(engine: Any) -> Partitions:
    """Return the partitions for the engine's ZeRO stage."""
    optimizer = engine.optimizer
    if hasattr(optimizer, "fp32_partitioned_groups_flat"):
        return ZeRO3Nvme(optimizer) if optimizer.swap_optimizer else ZeRO3(optimizer)
    if hasattr(optimizer, "single_partition_of_fp32_groups"):
        return ZeRO12(optimizer)
    return ZeRO0(optimizer)


class ZeRO0(Partitions):
    """ZeRO 0: torch's own optimizer over the parameters themselves."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer

    def fragment(self, parameter: nn.Parameter) -> Fragment | None:
        """Return the whole parameter."""
        if not parameter.requires_grad:
            return None
        return Fragment(0, parameter.detach().view(-1), parameter, 0)

    def refresh(self) -> None:
        """Do nothing: there is one copy."""

    def gather(self, parameter: torch.Tensor) -> torch.Tensor:
        """Return the parameter itself."""
        return parameter.detach()


class ZeRO12(Partitions):
    """ZeRO 1 and 2: working weights are replicated, fp32 ones and the optimizer's state are partitioned."""

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
        """Copy fp32 partitions to this process's working weights, and these to all processes."""
        self._zero.update_lp_params()

    def gather(self, parameter: torch.Tensor) -> torch.Tensor:
        """Return the parameter assembled from the runs of all processes."""
        if not parameter.requires_grad:
            return parameter.detach()
        full = torch.zeros(parameter.shape, dtype=torch.float32, device=parameter.device)
        assert isinstance(parameter, nn.Parameter)
        fragment = self.fragment(parameter)
        if fragment is not None:
            full.view(-1).narrow(0, fragment.start, fragment.values.numel()).copy_(fragment.values)
        dist.all_reduce(full, group=self._zero.dp_process_group)
        return full


class ZeRO3(Partitions):
    """ZeRO 3: working weights are partitioned as well."""

    def fragment(self, parameter: nn.Parameter) -> Fragment | None:
        """Return this process's run; all runs are equally long, and the last one ends in padding."""
        if not parameter.requires_grad:
            return None
        zero, known = self._zero, parameter
        group, at, length = zero.grad_position[zero.get_param_id(known)]
        start = length * dist.get_rank(known.ds_process_group)  # type: ignore[attr-defined]  # DeepSpeed's
        held = max(0, min(length, known.ds_numel - start))  # type: ignore[attr-defined]  # DeepSpeed's
        flat = zero.fp32_partitioned_groups_flat[group]
        return Fragment(min(start, known.ds_numel), flat.detach().narrow(0, at, held), flat, at)  # type: ignore[attr-defined]

    def refresh(self) -> None:
        """Copy fp32 partitions to working ones, and these to the small parameters that are replicated."""
        zero = self._zero
        for index, flat in enumerate(zero.fp32_partitioned_groups_flat):
            working = zero.fp16_partitioned_groups_flat[index]
            if working is None:
                continue
            working.data.copy_(flat.data)
            zero._unflatten_partitioned_parameters(index)
        self._refresh_replicated()

    def _refresh_replicated(self) -> None:
        """Rebuild the small parameters, which are replicated, from their partitions."""
        kept = self._zero.persistent_parameters
        if kept:
            kept[0].partition(kept)
            kept[0].all_gather(kept)

    def gather(self, parameter: torch.Tensor) -> torch.Tensor:
        """Return one gathered parameter: fp32 values of a trained one, working values of a frozen one."""
        from deepspeed import zero as public

        if not hasattr(parameter, "ds_id"):
            return parameter.detach()
        if not parameter.requires_grad:
            with public.GatheredParameters([parameter]):
                return parameter.detach().clone()
        assert isinstance(parameter, nn.Parameter)
        fragment = self.fragment(parameter)
        assert fragment is not None
        return self.gather_values(parameter, fragment.values)

    def gather_values(self, parameter: nn.Parameter, values: torch.Tensor) -> torch.Tensor:
        """Gather the parts of a parameter from all processes and return it in its shape."""
        known: Any = parameter
        length = self._zero.grad_position[self._zero.get_param_id(parameter)][2]
        own = values.new_zeros(length, device=self._zero.device)
        own[: values.numel()].copy_(values)
        parts = own.new_empty(length * dist.get_world_size(known.ds_process_group))
        dist.all_gather_into_tensor(parts, own, group=known.ds_process_group)
        return parts[: known.ds_numel].view(tuple(known.ds_shape))


class ZeRO3Nvme(ZeRO3):
    """ZeRO 3 with fp32 weights and optimizer state on a disk, group by group; one group is in memory at a time."""

    _in_memory: int | None = None

    def fragment(self, parameter: nn.Parameter) -> Fragment | None:
        """Return this process's run; it is valid until a parameter of another group is requested."""
        if parameter.requires_grad:
            self._swap_in(self._zero.grad_position[self._zero.get_param_id(parameter)][0])
        return super().fragment(parameter)

    def refresh(self) -> None:
        """Refresh the working copies from the fp32 weights, one group at a time."""
        zero = self._zero
        for index, working in enumerate(zero.fp16_partitioned_groups_flat):
            self._swap_in(index)
            working.data.copy_(zero.fp32_partitioned_groups_flat[index].data)
            zero._unflatten_partitioned_parameters(index)
        self._refresh_replicated()

    def release(self) -> None:
        """Write the group in memory back to the disk."""
        self._swap_in(None)

    def _swap_in(self, index: int | None) -> None:
        if index == self._in_memory:
            return
        zero = self._zero
        if self._in_memory is not None:
            zero.optimizer_swapper.swap_out_optimizer_state(zero.fp32_partitioned_groups_flat[self._in_memory])
        if index is not None and zero._swappable_optimizer_subgroup(index):
            zero.optimizer_swapper.swap_in_optimizer_state(zero.fp32_partitioned_groups_flat[index])
            self._in_memory = index
        else:
            self._in_memory = None


def make_slots(partitions: Partitions, fragment: Fragment, declared: Mapping[str, Slot]) -> None:
    """Create the optimizer's state of a fragment's owner where there is none yet: zeros to read into."""
    slots = partitions.optimizer.state[fragment.owner]
    owner = fragment.owner.detach()
    for name, slot in declared.items():
        if name in slots:
            continue
        integer = slot.shape == "scalar" and type(partitions.optimizer).__module__.startswith("deepspeed")
        slots[name] = 0 if integer else empty_slot(slot, owner)
