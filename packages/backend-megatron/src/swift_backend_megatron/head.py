"""What the last stage of the pipeline computes from hidden states: views of the tokens of a micro-batch."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

import torch

from swift.contracts import ModelView, Need
from swift.toolkit import TokenViews, VocabularyShard, token_logps
from swift_backend_megatron.sequences import gathered

if TYPE_CHECKING:
    import torch.distributed as dist

    from swift_backend_megatron.sequences import SequenceShard
    from swift_backend_megatron.shard import MegatronState


def view_of(
    state: MegatronState, shard: SequenceShard, hidden: torch.Tensor, weight: torch.Tensor, needs: Collection[Need]
) -> ModelView:
    """View a micro-batch from the hidden states of the last layer, through a head sharded by tokens.

    Only tokens that count go through the head. Under context parallel each process views its own tokens.
    """
    from megatron.core import parallel_state
    from megatron.core.tensor_parallel import mappings

    group = parallel_state.get_tensor_model_parallel_group()
    sequence_parallel = state.config.sequence_parallel
    if sequence_parallel:
        hidden = mappings.gather_from_sequence_parallel_region(hidden, tensor_parallel_output_grad=True)
    rows, width = shard.targets.shape
    chosen = _own_weights(shard).reshape(-1).nonzero()[:, 0]
    hidden = hidden.transpose(0, 1).flatten(0, 1).index_select(0, chosen)
    if not sequence_parallel and group.size() > 1:
        # After the transpose: Megatron accumulates gradients that are not contiguous into a temporary and loses them.
        hidden = mappings.copy_to_tensor_model_parallel_region(hidden)
    views = token_logps(
        hidden,
        weight,
        shard.targets.reshape(-1)[chosen],
        transform=state.built.transform,
        want=needs,
        shard=_vocabulary_shard(weight, state.built.vocabulary, group),
    )

    def spread(values: torch.Tensor) -> torch.Tensor:
        blank = values.new_zeros(rows * width).index_put((chosen,), values).view(rows, width)
        return _of_all(shard, blank)

    return _view(views, spread, needs)


def _vocabulary_shard(weight: torch.Tensor, vocabulary: int, group: dist.ProcessGroup) -> VocabularyShard | None:
    """Return which tokens this process's rows of the head stand for; None where they are all, without padding."""
    if group.size() == 1 and weight.shape[0] <= vocabulary:
        return None
    start = group.rank() * weight.shape[0]
    return VocabularyShard(start, max(0, min(weight.shape[0], vocabulary - start)), vocabulary, group)


def _of_all(shard: SequenceShard, values: torch.Tensor) -> torch.Tensor:
    """Return values of all tokens of the micro-batch from those of this process's shard."""
    if shard.gathered_at is None:
        return values
    return gathered(values)[: len(shard.batch.weights), shard.gathered_at]


def _view(views: TokenViews, spread: Callable[[torch.Tensor], torch.Tensor], needs: Collection[Need]) -> ModelView:
    return ModelView(
        token_logps=spread(views.logps) if Need.TOKEN_LOGPS in needs else None,
        token_correct=spread(views.correct) if Need.TOKEN_CORRECT in needs else None,
        mean_logps=spread(views.mean_logps) if Need.MEAN_LOGPS in needs else None,
    )


def _own_weights(shard: SequenceShard) -> torch.Tensor:
    """Return which tokens of this process's shard count."""
    weights = shard.batch.weights
    if shard.gathered_at is None:
        return weights != 0
    from megatron.core import parallel_state

    group = parallel_state.get_context_parallel_group()
    size = shard.targets.shape[1]
    everyone = torch.zeros(shard.targets.shape[0], size * group.size(), dtype=torch.bool, device=weights.device)
    everyone[: len(weights), shard.gathered_at] = weights != 0
    return everyone[:, group.rank() * size : (group.rank() + 1) * size]
