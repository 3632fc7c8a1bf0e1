"""Memory and traffic of a process, counted before anything is built. Imports neither torch nor Megatron."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from swift.contracts import AFTERWARDS, LayerSizes, LocalWeights, RequestedRun, Traffic
from swift_backend_megatron.layout import options_of, shards_optimizer


def estimate_memory(run: RequestedRun, weights: LocalWeights) -> Mapping[str, float]:
    """Weights in the precision of the arithmetic, gradients in fp32, and masters and moments cut over the data."""
    layout, compute = weights.layout, weights.compute_bytes
    sharded = shards_optimizer(run)
    over = layout.shard * layout.cp if sharded else 1
    experts_over = max(1, layout.expert_data // layout.replicate) if sharded else 1
    dense, experts = weights.trained - weights.trained_experts, weights.trained_experts
    cut = dense / over + experts / experts_over
    # In fp32 the weights are their own masters: the optimizer's part of them is a view.
    masters = 4.0 if compute < 4 else 0.0
    # Where memory is taken when it is written to, gathering updated weights takes them once more.
    gathered = compute * weights.trained if sharded and weights.on_cpu and over > 1 else 0.0
    # Transformer Engine keeps what it has cast, as it is and transposed: assumed, as nothing of it was measured here.
    casts = {"casts of weights to FP8": 2.0 * (weights.all - weights.ends)} if options_of(run).fp8 != "none" else {}
    return {
        "weights": compute * weights.trained + weights.frozen_bytes * weights.frozen,
        **casts,
        "gradients": 4 * weights.trained,
        "fp32 weights": masters * cut,
        "optimizer": weights.slot_bytes * cut,
        AFTERWARDS + "updated weights": gathered,
    }


def estimate_activations(run: RequestedRun, layer: LayerSizes) -> float:
    """Count a layer of Megatron's: two norms with their outputs, queries, keys, values, their result, and the MLP.

    On the CPU norms are not fused, so that what is normalised stays beside what comes in and goes out.
    """
    tp, size = layer.layout.tp, layer.compute_bytes
    entering = float(not layer.drops)  # products keep what they multiply, except where only copies are multiplied
    normalised = float(layer.on_cpu and not layer.adapted)  # for the gradient of the norm's weights
    # In FP8, products keep what they have cast.
    entering *= 1 / size if options_of(run).fp8 != "none" else 1.0
    everywhere = 2 * (1 + normalised + entering) * size * layer.hidden
    # The activation's result, the gate and their product are tensors of their own, beside what both came from.
    mlp = ((4 if layer.gated else 1) + entering) * layer.width
    cut = size * (_attention(layer, normalised) + mlp) + 4 * layer.heads
    return everywhere / (tp if layer.layout.sequence_parallel else 1) + cut / tp


def _attention(layer: LayerSizes, normalised: float) -> float:
    """Count the values that attention keeps for a token."""
    queries, keys = layer.queries, layer.keys
    if not layer.on_cpu:
        return 2 * queries + 2 * keys + (queries + keys if layer.normed_heads else 0)
    # The values are a part of what came out of one product, which stays whole; queries and keys are turned.
    of_norms = queries + normalised * (queries + keys) if layer.normed_heads else 0
    return (queries + 2 * keys) + (2 * queries + keys) + of_norms


def estimate_traffic(run: RequestedRun, weights: LocalWeights, micro_batches: int) -> Sequence[Traffic]:
    """Gradients are added up once a step; with the distributed optimizer updated weights are gathered."""
    layout, options = weights.layout, options_of(run)
    dense, experts = weights.trained - weights.trained_experts, weights.trained_experts
    groups = [("", dense, layout.data * layout.cp, layout.tp)]
    if experts:
        groups.append((" of experts", experts, layout.expert_data, layout.ep * layout.etp))
    hidden = 0.8 / micro_batches if options.overlap else 0.0
    traffic = []
    for whose, values, ways, stride in groups:
        calls = max(1.0, values / 40e6)
        if not shards_optimizer(run):
            traffic.append(Traffic(f"gradients{whose}", "all_reduce", 4 * values, ways, stride, calls, hidden))
            continue
        traffic.append(Traffic(f"gradients{whose}", "reduce_scatter", 4 * values, ways, stride, calls, hidden))
        # Weights with and without experts have an optimizer each, and each of them has all weights gathered.
        updated = (2 if experts else 1) * weights.compute_bytes * values
        traffic.append(Traffic(f"updated weights{whose}", "all_gather", updated, ways, stride, calls, hidden))
    return traffic
