"""Computes the views of a micro-batch from hidden states, on the last stage of the pipeline.

Under context parallel each process views its own tokens; what is known of all of them is gathered, or summed, after.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from swift.contracts import ModelView, Need
from swift.toolkit import VALUE_HEAD_MODULE, VocabularyShard, pooled, pooling_weights, token_logps
from swift_backend_megatron.images import language_of
from swift_backend_megatron.sequences import MicroBatchSlice, gathered, summed
from swift_backend_megatron.tensor_map import MegatronModel


def view_of(built: MegatronModel, shard: MicroBatchSlice, hidden: torch.Tensor, needs: Collection[Need]) -> ModelView:
    """View a micro-batch from the hidden states of the last layer, [tokens, rows, size]."""
    chunk = built.chunks[-1]
    weight = _weight_of(chunk)
    view = _token_views(built, shard, hidden, weight, needs) if built.unembeds else ModelView()
    whole = frozenset(needs) & {Need.POOLED, Need.SCORES, Need.VALUES}
    if built.unembeds and Need.VALUES in needs:
        weight = _gathered_weight(getattr(chunk, VALUE_HEAD_MODULE))
    if whole:
        _add_views_of_hidden(built, shard, hidden, weight, whole, view)
    return view


def _weight_of(chunk: Any) -> torch.Tensor:
    """Return the head's weight, or nothing. The module is bypassed, so that its pre-forward hooks are run here."""
    chunk = language_of(chunk)
    if chunk.output_layer is None:
        return torch.empty(0)
    own = _gathered_weight(chunk.output_layer)
    weight: torch.Tensor = (
        chunk.shared_embedding_or_output_weight() if chunk.share_embeddings_and_output_weights else own
    )
    return weight


def _gathered_weight(module: Any) -> torch.Tensor:
    for hook in module._forward_pre_hooks.values():
        hook(module, ())
    weight: torch.Tensor = module.weight
    return weight


def _token_views(
    built: MegatronModel, shard: MicroBatchSlice, hidden: torch.Tensor, weight: torch.Tensor, needs: Collection[Need]
) -> ModelView:
    """View tokens through an unembedding sharded by tokens. Only tokens that count go through it."""
    from megatron.core import parallel_state
    from megatron.core.tensor_parallel import mappings

    group = parallel_state.get_tensor_model_parallel_group()
    sequence_parallel = built.config.sequence_parallel
    if sequence_parallel:
        hidden = mappings.gather_from_sequence_parallel_region(hidden, tensor_parallel_output_grad=True)
    rows, width = shard.targets.shape
    chosen = _own(shard, shard.batch.weights).reshape(-1).nonzero()[:, 0]
    hidden = hidden.transpose(0, 1).flatten(0, 1).index_select(0, chosen)
    if not sequence_parallel and group.size() > 1:
        # After the transpose: Megatron accumulates gradients that are not contiguous into a temporary and loses them.
        hidden = mappings.copy_to_tensor_model_parallel_region(hidden)
    candidates = shard.batch.candidates
    if candidates is not None:
        candidates = _own(shard, candidates).flatten(0, 1).index_select(0, chosen)
    views = token_logps(
        hidden,
        weight,
        shard.targets.reshape(-1)[chosen],
        transform=built.transform.at(shard.batch.temperature),
        candidates=candidates,
        want=needs,
        shard=_vocabulary_shard(weight, built.vocabulary, group),
    )

    def spread(values: torch.Tensor) -> torch.Tensor:
        blank = values.new_zeros(rows * width, *values.shape[1:]).index_put((chosen,), values)
        return _of_all(shard, blank.view(rows, width, *blank.shape[1:]))

    return views.laid_out(spread, needs)


def _vocabulary_shard(weight: torch.Tensor, vocabulary: int, group: dist.ProcessGroup) -> VocabularyShard | None:
    """Return which tokens this process's rows of the unembedding stand for; None where they are all of them."""
    if group.size() == 1 and weight.shape[0] <= vocabulary:
        return None
    start = group.rank() * weight.shape[0]
    return VocabularyShard(start, max(0, min(weight.shape[0], vocabulary - start)), vocabulary, group)


def _add_views_of_hidden(
    built: MegatronModel,
    shard: MicroBatchSlice,
    hidden: torch.Tensor,
    weight: torch.Tensor,
    needs: frozenset[Need],
    view: ModelView,
) -> None:
    """Add scores and values of a head that every tensor parallel process has whole, and vectors of segments.

    All of them compute the same of all tokens, so that the head's gradient is complete on each without a reduction.
    """
    if built.config.sequence_parallel:
        from megatron.core.tensor_parallel import mappings

        hidden = mappings.gather_from_sequence_parallel_region(hidden, tensor_parallel_output_grad=False)
    hidden = hidden.transpose(0, 1)
    batch = shard.batch
    segment_ids = _own(shard, batch.segment_ids, padding=-1)
    head = partial(_apply, weight)

    def weights(how: str) -> torch.Tensor:
        return _own(shard, pooling_weights(batch.segment_ids, batch.segments, how))

    if Need.POOLED in needs:
        view.pooled = _total(shard, pooled(hidden, segment_ids, weights(built.pooling), batch.segments))
    if Need.SCORES in needs:
        view.scores = _total(shard, pooled(hidden, segment_ids, weights("last"), batch.segments, head))
    if Need.VALUES in needs:
        rows, columns = _own(shard, batch.weights).nonzero(as_tuple=True)
        values = head(hidden[rows, columns])[:, 0]
        view.values = _of_all(shard, values.new_zeros(shard.targets.shape).index_put((rows, columns), values))


def _apply(weight: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
    """Return the head's outputs, computed in fp32 whatever the weights are stored in."""
    return torch.nn.functional.linear(hidden.float(), weight.float())


def _own(shard: MicroBatchSlice, values: torch.Tensor, padding: int = 0) -> torch.Tensor:
    """Return what this process has of values of all positions, [rows, width, ...]."""
    if shard.gathered_at is None:
        return values
    from megatron.core import parallel_state

    group = parallel_state.get_context_parallel_group()
    rows, size = shard.targets.shape
    everyone = values.new_full((rows, size * group.size(), *values.shape[2:]), padding)
    everyone[: len(values), shard.gathered_at] = values
    return everyone[:, group.rank() * size : (group.rank() + 1) * size]


def _of_all(shard: MicroBatchSlice, values: torch.Tensor) -> torch.Tensor:
    """Return values of all positions from those of this process's, [rows, width, ...]."""
    if shard.gathered_at is None:
        return values
    return gathered(values)[: len(shard.batch.weights), shard.gathered_at]


def _total(shard: MicroBatchSlice, values: torch.Tensor) -> torch.Tensor:
    """Return sums over all positions from those over this process's."""
    return values if shard.gathered_at is None else summed(values)
