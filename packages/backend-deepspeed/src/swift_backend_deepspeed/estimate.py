"""Memory and traffic of a process, counted before anything is built, and what to lower where memory does not suffice.

Imports neither torch nor DeepSpeed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from swift.config.sections import Config
from swift.contracts import AFTERWARDS, GROWING, HOST, PASSING, LocalWeights, RequestedRun, Traffic
from swift_backend_deepspeed.config import DeepSpeedOptions
from swift_backend_deepspeed.ds_json import PRESETS, offload_device, stage_in_force, stage_of

DEFAULTS = {
    "reduce_bucket_size": 500_000_000,
    "allgather_bucket_size": 500_000_000,
    "stage3_prefetch_bucket_size": 50_000_000,
    "stage3_max_live_parameters": 1_000_000_000,
}
"""Elements, as DeepSpeed sets them by itself."""
_MATRICES = 7
"""Of a layer: four of attention, three of the MLP."""
_REUSED = 1e9
"""Values that DeepSpeed lets come and go before it takes a weight for one that is not used again soon."""


def variants() -> Mapping[str, Sequence[str]]:
    """Return the presets that spread something over processes."""
    return {name: ("--deepspeed", name) for name in PRESETS if name != "zero0"}


def estimate_memory(run: RequestedRun, weights: LocalWeights) -> Mapping[str, float]:
    """Weights in the precision of the arithmetic, and fp32 masters and moments cut from stage 1 on."""
    content = run.options(DeepSpeedOptions).content
    stage, over = _stage(content, weights), weights.layout.data * weights.layout.sequence
    compute, trained = weights.compute_bytes, weights.trained
    whole = weights.scale_bytes if stage == 3 else compute * trained + weights.frozen_bytes * weights.frozen
    cut = compute * trained + weights.frozen_bytes * weights.frozen - whole
    kept = {
        "weights": whole + cut / over,
        **_gradients(content, weights, stage, over),
        # Stage 0 updates the weights themselves.
        "fp32 weights": 4 * trained / over if stage else 0.0,
        "optimizer": weights.slot_bytes * trained / (over if stage else 1),
    }
    if offload_device(content, "offload_optimizer") != "none":
        kept["gradients"] = kept.pop(GROWING + "gradients", 0.0) + kept.pop("gradients", 0.0)
        kept = _on_host(kept, "fp32 weights", "optimizer", "gradients")
    if offload_device(content, "offload_param") != "none":
        kept = _on_host(kept, "weights")
    if stage == 3:
        ahead = min(_size(content, "stage3_prefetch_bucket_size"), weights.all)
        layers = min(weights.all - weights.ends, 2 * weights.block + ahead)
        gathered = compute * weights.ends + weights.gathered_bytes * layers
        # What a process sends of them is laid together first, which memory that is taken when written to shows.
        kept["gathered weights"] = gathered * (1 + 1 / over if weights.on_cpu and over > 1 else 1)
    return kept


def _gradients(content: dict[str, Any], weights: LocalWeights, stage: int, over: int) -> dict[str, float]:
    """Count gradients and the buckets that they are brought together in.

    A GPU's memory is taken for both buckets when they are made. A CPU's is taken when it is written to: gradients wait
    until they fill a bucket, are laid together in it, and a part of them stays.
    """
    compute, trained = weights.compute_bytes, weights.trained
    whole, bucket = compute * trained, compute * min(_size(content, "reduce_bucket_size"), trained)
    together = (AFTERWARDS if bucket >= whole else PASSING) + "buckets of gradients"
    if not weights.on_cpu:
        buckets = {PASSING + "buckets of gradients": 2 * bucket} if stage >= 2 else {}
        return {GROWING + "gradients": whole / (over if stage >= 2 else 1), **buckets}
    if stage == 3:  # keeps its parts and a bucket from step to step
        return {"gradients": whole / over + bucket, together: bucket}
    if stage == 2:
        return {GROWING + "gradients": (whole - bucket) / over + bucket, together: bucket}
    return {GROWING + "gradients": whole, **({together: bucket} if stage else {})}


def _on_host(kept: Mapping[str, float], *names: str) -> dict[str, float]:
    return {HOST + name if name in names else name: size for name, size in kept.items()}


def estimate_traffic(run: RequestedRun, weights: LocalWeights, micro_batches: int) -> Sequence[Traffic]:
    """Stages 1 and 2 add gradients up and gather updated weights; stage 3 gathers weights for every pass."""
    content = run.options(DeepSpeedOptions).content
    stage, layout = _stage(content, weights), weights.layout
    over, compute = layout.data * layout.sequence, weights.compute_bytes
    hidden = 0.7 if content.get("zero_optimization", {}).get("overlap_comm", stage == 3) else 0.0
    gradients = compute * weights.trained
    calls = max(1.0, weights.trained / _size(content, "reduce_bucket_size"))
    host = list(_host_traffic(content, weights, over, micro_batches))
    if stage == 0:
        return [Traffic("gradients", "all_reduce", gradients, over, layout.tp, calls, hidden / micro_batches)]
    if stage == 3:
        # A matrix is fetched by itself, or with as many that follow as the bucket for fetching ahead has room for.
        fetched = max(weights.block / _MATRICES, _size(content, "stage3_prefetch_bucket_size"))
        times = micro_batches * _gathered(content, weights, recompute=run.config.train.gradient_checkpointing)
        fetches = times * max(1.0, weights.all / max(fetched, 1.0))
        layers = weights.gathered_bytes * (weights.all - weights.ends)
        weights_out = times * (layers + compute * weights.ends)
        return [
            *host,
            Traffic("weights", "all_gather", weights_out, over, layout.tp, fetches, hidden),
            Traffic(
                "gradients", "reduce_scatter", micro_batches * gradients, over, layout.tp, micro_batches * calls, hidden
            ),
        ]
    times = micro_batches if stage == 2 else 1
    # A bucket with gradients of several processes is added up whole, on all of them, unless the JSON says otherwise.
    apart = content.get("zero_optimization", {}).get("use_multi_rank_bucket_allreduce") is False
    return [
        *host,
        Traffic(
            "gradients",
            "reduce_scatter" if apart else "all_reduce",
            times * gradients,
            over,
            layout.tp,
            times * calls,
            hidden / times,
        ),
        Traffic("updated weights", "all_gather", gradients, over, layout.tp, calls),
    ]


def _gathered(content: dict[str, Any], weights: LocalWeights, *, recompute: bool) -> float:
    """Return how often stage 3 gathers all weights for a micro-batch.

    What is used again before so many values have come and gone stays: on the way back that is the last half of them.
    A recomputed layer is left before its backward pass begins, and gathered once more as far as it is larger.
    """
    declared = content.get("zero_optimization", {}).get("stage3_max_reuse_distance")
    stays = (float(declared) if isinstance(declared, int | float) else _REUSED) / 2
    times = 2 - min(1.0, stays / max(weights.all, 1.0))
    return times + (max(0.0, 1 - stays / max(weights.block, 1.0)) if recompute else 0.0)


def _host_traffic(content: dict[str, Any], weights: LocalWeights, over: int, micro_batches: int) -> Iterator[Traffic]:
    """Yield what offloaded state sends between the device and the machine's memory, and what its update touches."""
    compute, trained = weights.compute_bytes, weights.trained / over
    if offload_device(content, "offload_optimizer") != "none":
        yield Traffic("gradients and weights to the host", "host", 2 * compute * trained, 1)
        yield Traffic("update on the host", "host", (12 + weights.slot_bytes) * trained, 1)
    if offload_device(content, "offload_param") != "none":
        moved = micro_batches * 2 * compute * weights.all / over
        yield Traffic("weights from the host", "host", moved, 1, hidden=0.5)


def _stage(content: dict[str, Any], weights: LocalWeights) -> int:
    return stage_in_force(content, "float32" if weights.compute_bytes == 4 else "bfloat16")


def _size(content: dict[str, Any], key: str) -> float:
    """Return a bucket's size in values: what the JSON says, or DeepSpeed's own default."""
    declared = content.get("zero_optimization", {}).get(key)
    return float(declared) if isinstance(declared, int | float) else float(DEFAULTS[key])


def to_save_memory(config: Config, content: dict[str, Any]) -> str:
    """Return one line, cheapest measures first."""
    return "In force, and to be lowered: " + "; ".join(_measures(config, content)) + "."


def _measures(config: Config, content: dict[str, Any]) -> Iterator[str]:
    train, zero, stage = config.train, content.get("zero_optimization", {}), stage_of(content)
    if train.micro_batch > 1:
        yield f"--train.micro_batch {train.micro_batch} (accumulation makes up for it)"
    if not train.gradient_checkpointing:
        yield "--gradient_checkpointing false (true recomputes activations)"
    for name, usual in DEFAULTS.items():
        if name.startswith("stage3_") == (stage == 3):
            yield f"{name} {zero.get(name, usual):,}"
    if stage < 3:
        yield f"stage {stage} (--deepspeed zero{stage + 1} shards more)"
    for part in ("offload_optimizer", "offload_param") if stage == 3 else ("offload_optimizer",):
        if offload_device(content, part) == "none" and stage > 0:
            yield f"{part} none (cpu takes it out of this device's memory)"
