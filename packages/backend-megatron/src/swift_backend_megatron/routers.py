"""Routers of Megatron's mixtures: the losses, load and biases of `swift.models.routers`, on every layout.

Megatron's own losses look at whatever tokens share a micro-batch, and count packed samples as one. So each router's
result is noted here instead, and the gradient of the losses is added where the router computes: on any stage of the
pipeline, and in the repeated pass of a layer that is recomputed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from swift.contracts import Run
from swift.data.batch import Batch
from swift.toolkit import RouterOptions, balance_loss, follow_load, load_metrics, z_loss
from swift_backend_megatron.sequences import MicroBatchSlice
from swift_backend_megatron.tensor_map import MegatronModel


@dataclass
class _Router:
    """A router of this process, and the micro-batches that its layer will compute again."""

    module: Any
    waiting: deque[MicroBatchSlice] = field(default_factory=deque)

    @property
    def layer(self) -> int:
        """The index of its layer in the whole model."""
        return int(self.module.layer_number) - 1


class MegatronRouters:
    """The routers of a model in training."""

    def __init__(self, run: Run, built: MegatronModel) -> None:
        from megatron.core import parallel_state
        from megatron.core.transformer.moe.router import TopKRouter

        self._options = options = RouterOptions.of(run, built.source.config)
        self._config = built.config
        self._routers = [
            _Router(module) for chunk in built.chunks for module in chunk.modules() if isinstance(module, TopKRouter)
        ]
        self._shared = parallel_state.get_tensor_and_context_parallel_group()
        self._device = torch.device(run.topology.device)
        self._shard: MicroBatchSlice | None = None
        self._tokens = 0
        self._has_rows = True
        self._sums: torch.Tensor
        self._load: torch.Tensor
        count = torch.tensor([len(self._routers)], device=self._device)
        dist.all_reduce(count, group=parallel_state.get_pipeline_model_parallel_group())
        self._count = int(count)
        if options.requested and not self._count:
            raise options.refusal("the model has no experts.")
        if options.bias_rate and any(each.module.expert_bias is None for each in self._routers):
            raise options.refusal("the routers of the model have no bias that corrects their choice.")
        if options.requested or options.log_load:
            for each in self._routers:
                each.module.routing = self._noting(each, each.module.routing)

    @property
    def watched(self) -> bool:
        """Whether there is anything to note."""
        return bool(self._count and (self._options.requested or self._options.log_load))

    @contextmanager
    def step(self, batch: Batch) -> Iterator[None]:
        """Inside, note what the tokens of a process's slice of a global batch are routed to."""
        self._tokens = max(1, batch.tokens)
        self._has_rows = bool(batch.rows)  # a process without rows computes one of another's
        self._sums = torch.zeros(3, dtype=torch.float64, device=self._device)
        shape = (self._config.num_layers, self._config.num_moe_experts or 0)
        self._load = torch.zeros(shape, dtype=torch.float64, device=self._device)
        try:
            yield
        finally:
            self._tokens = 0
            for each in self._routers:
                each.waiting.clear()

    @contextmanager
    def forward(self, shard: MicroBatchSlice) -> Iterator[None]:
        """Inside, tokens are those of a micro-batch."""
        self._shard = shard
        try:
            yield
        finally:
            self._shard = None

    def _noting(self, router: _Router, routing: Callable[..., Any]) -> Callable[..., Any]:
        def routed(logits: torch.Tensor, *arguments: Any, **named: Any) -> Any:
            probabilities, chosen = routing(logits, *arguments, **named)
            shard = self._micro_batch(router)
            if shard is not None and shard.counts and self._has_rows:
                probabilities = self._note(router, shard, logits.flatten(0, 1), probabilities, chosen)
            return probabilities, chosen

        return routed

    def _micro_batch(self, router: _Router) -> MicroBatchSlice | None:
        """Return the micro-batch that is computed with gradients; None where it is not, or will be again."""
        if not self._tokens:
            return None
        if torch.is_grad_enabled():
            # A layer is recomputed in the backward passes of its micro-batches, which come in the same order.
            return self._shard or router.waiting.popleft()
        if self._shard is not None:
            router.waiting.append(self._shard)
        return None

    def _note(
        self,
        router: _Router,
        shard: MicroBatchSlice,
        logits: torch.Tensor,
        probabilities: torch.Tensor,
        chosen: torch.Tensor,
    ) -> torch.Tensor:
        """Add up the load and the losses of a router, and return its result with the gradient of the losses."""
        from megatron.core.transformer.moe.moe_utils import MoEAuxLossAutoScaler

        options, segment_ids = self._options, self._own(shard.segment_ids)
        inside = segment_ids >= 0
        taken = (chosen & (probabilities.detach() != 0) & inside[:, None]).sum(0)
        self._load[router.layer] += taken
        self._sums[2] += inside.sum() * router.module.topk - taken.sum()
        terms = []
        if options.aux_loss:
            shared = partial(dist.all_reduce, group=self._shared)
            scoring, segments = router.module.score_function, shard.batch.segments
            top_k = router.module.topk
            terms.append(balance_loss(logits, top_k, segment_ids, segments, scoring=scoring, add_up=shared))
            self._sums[0] += terms[-1].detach()
            terms[-1] = terms[-1] * options.aux_loss
        if options.z_loss:
            terms.append(z_loss(logits, inside))
            self._sums[1] += terms[-1].detach()
            terms[-1] = terms[-1] * options.z_loss
        if not terms:
            return probabilities
        loss = torch.stack(terms).sum() / (self._tokens * self._count)
        attached: torch.Tensor = MoEAuxLossAutoScaler.apply(probabilities, loss)
        return attached

    def _own(self, segment_ids: torch.Tensor) -> torch.Tensor:
        """Return the ids [tokens] of this process's part of [rows, width], as routers have tokens: by column."""
        ids = segment_ids.t()
        if self._config.sequence_parallel:
            from megatron.core import parallel_state

            group = parallel_state.get_tensor_model_parallel_group()
            ids = ids.chunk(group.size())[group.rank()]
        return ids.flatten()

    def finish(self, batch: Batch, *, skipped: bool) -> dict[str, tuple[float, float]]:
        """Add up over all processes, let biases follow the load, and return what is logged."""
        if not self.watched:
            return {}
        together = torch.cat([self._sums, self._load.flatten()])
        # Each process has other tokens (data, context and sequence parallel) or other layers (pipeline parallel).
        dist.all_reduce(together)
        (aux, z, dropped), load = together[:3].tolist(), together[3:].view_as(self._load)
        options = self._options
        for router in self._routers if options.bias_rate and not skipped else ():
            follow_load(router.module.expert_bias, load[router.layer], options.bias_rate)
        found = {"router_aux_loss": (aux, options.aux_loss), "router_z_loss": (z, options.z_loss)}
        metrics = {
            name: (total, float(batch.tokens * self._count)) for name, (total, weight) in found.items() if weight
        }
        if options.log_load:
            metrics |= {name: (value, 1.0) for name, value in load_metrics(load).items()}
            if self._config.moe_expert_capacity_factor is not None:
                metrics["expert_load/dropped"] = (dropped, float(dropped + load.sum()))
        return metrics
