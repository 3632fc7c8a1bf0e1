"""Compares what Megatron computes with what transformers computes, before a run trains on it.

mcore-bridge reads a configuration key by key, and what it does not read changes the model silently. So a small model of
the same architecture (`probe_model`) is built both ways, with Megatron in the process groups and the precision of the
run, and log-probabilities of a few tokens are compared. All processes come to the same decision.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, cast

import numpy as np
import torch
import torch.distributed as dist

from swift.contracts import ModelSource, Need, Run
from swift.data.batch import collate
from swift.data.samples import Encoded, Segment
from swift.errors import UnsupportedLayout
from swift.toolkit import resolve_dtype
from swift_backend_megatron import megatron_runtime
from swift_backend_megatron.architectures import as_refusal
from swift_backend_megatron.head import view_of
from swift_backend_megatron.layout import options_of
from swift_backend_megatron.model import build, megatron_model
from swift_backend_megatron.probe_model import ProbeModel, probe_config
from swift_backend_megatron.sequences import MicroBatchSlice
from swift_backend_megatron.shard import slicer_of
from swift_backend_megatron.step import hidden_of, same_dropout_again
from swift_backend_megatron.tensor_map import MegatronModel
from swift_backend_megatron.topology import take_apart

LENGTHS = (29, 18)
"""Lengths of the samples: beyond windows (`probe_model.WINDOW`), no multiples of them, and not the same."""
EXACT = 1e-4
"""Largest relative difference where both compute in fp32."""
MEDIAN, MEAN = 3.0, 6.0
"""Largest differences elsewhere, as multiples of what bfloat16 costs transformers itself. Healthy models have up to 1.3
in both, but for a token that rounding sends to another expert, which a mean shows and a median does not."""
_PASSED: set[tuple[object, ...]] = set()
"""Configurations and layouts that Megatron computes as transformers does, of all models and runs of this process."""


def build_checked(run: Run, source: ModelSource) -> MegatronModel:
    """Check the architecture, and build everything about the model but its weights."""
    self_check(run, source)
    return build(run, source)


def self_check(run: Run, source: ModelSource) -> None:
    """Refuse, on every process alike, an architecture that Megatron computes otherwise than transformers."""
    config = probe_config(source, run.config.parallel)
    probe_run = _probe_run(run, config)
    cpu = run.topology.device == "cpu"
    precision = "float32" if cpu else resolve_dtype(run.config.model.dtype, run.topology.device)[0]
    layout = (run.config.parallel.model_dump_json(), probe_run.backend_options.model_dump_json(), _is_flat(run))
    attention = run.config.model.attention
    known = (config.to_json_string(use_diff=False), *layout, run.world.size, precision, attention)
    if known in _PASSED:
        return
    probe = ProbeModel(config, trust_remote_code=getattr(source, "trust_remote_code", False))
    ids = _ids(config)
    expected = _own_logps(probe.model, ids)
    with as_refusal(source.config.model_type):
        found = _megatron_logps(probe_run, probe, ids, getattr(torch, precision))
    if found is None:  # stages before the last one have nothing to compare
        excess = difference = 0.0
    else:
        difference = float((found - expected).abs().max())
        excess = excess_of(found, expected, None if cpu else _own_logps(probe.model.bfloat16(), ids))
    worst = torch.tensor([excess, difference], device=run.topology.device).nan_to_num(nan=torch.inf)
    dist.all_reduce(worst, op=dist.ReduceOp.MAX)
    if float(worst[0]) > 1:
        raise UnsupportedLayout(
            f"Megatron computes {source.config.model_type} with this configuration otherwise than transformers: "
            f"token log-probabilities of a small model with the same settings differ by {float(worst[1]):.2g}.",
            hint="Type --backend fsdp (or deepspeed), which train what transformers computes.",
        )
    _PASSED.add(known)


def excess_of(found: torch.Tensor, expected: torch.Tensor, rounded: torch.Tensor | None) -> float:
    """Return how far values differ as a multiple of what is tolerated.

    `rounded` is what transformers computes in bfloat16, where `found` was computed in something less than exact fp32.
    """
    errors = (found - expected).abs()
    if rounded is None:
        return float((errors / (1 + expected.abs())).max()) / EXACT
    usual = (rounded - expected).abs()
    ratios = errors.median() / usual.median() / MEDIAN, errors.mean() / usual.mean() / MEAN
    return float(torch.stack(ratios).max())


def _probe_run(run: Run, config: Any) -> Run:
    """Return the run as the small model has it: in even stages, recomputing nothing, in no FP8, dropping no token."""
    model = {"task": "causal_lm", "value_head": False}
    stages = run.config.parallel.pp * run.config.parallel.vpp
    even, more = divmod(config.get_text_config().num_hidden_layers, stages)
    options = options_of(run).model_copy(
        update={
            "stages": tuple(even + (n < more) for n in range(stages)) if more else (),
            "first_stage": None,
            "last_stage": None,
            "moe_capacity": None,
            "moe_pad_to_capacity": False,
            "fp8": "none",
        }
    )
    return replace(
        run,
        config=run.config.changed(model=model, train={"gradient_checkpointing": False}),
        backend_options=options,
        facts=copy.deepcopy(run.facts),
        say=lambda _: None,
    )


def _ids(config: Any) -> list[torch.Tensor]:
    """Return the tokens of each sample, spread over the vocabulary; none stands for an image."""
    text = config.get_text_config()
    both = [*vars(config).items(), *vars(text).items()]
    reserved = {value for name, value in both if name.endswith("_token_id") and isinstance(value, int)}
    usable = torch.tensor([token for token in range(text.vocab_size) if token not in reserved])
    return [usable[(torch.arange(length) + 100 * n) * 7919 % len(usable)] for n, length in enumerate(LENGTHS)]


@torch.no_grad()
def _own_logps(model: Any, ids: list[torch.Tensor]) -> torch.Tensor:
    found = []
    for each in ids:
        logits = model(input_ids=each[None], use_cache=False).logits[0, :-1]
        found.append(logits.float().log_softmax(-1).gather(-1, each[1:, None])[:, 0])
    return torch.cat(found)


def _megatron_logps(run: Run, probe: ProbeModel, ids: list[torch.Tensor], dtype: torch.dtype) -> torch.Tensor | None:
    """Return the log-probabilities of the small model as Megatron computes them, on the last stage of the pipeline."""
    with megatron_runtime.active(), torch.no_grad(), _same_random_numbers(run.topology.device):
        built = megatron_model(run, cast("ModelSource", probe), dtype)
        try:
            _fill(built, probe)
            return _forward(run, built, ids)
        finally:
            for chunk in built.chunks:
                take_apart(chunk)


def _fill(built: MegatronModel, probe: ProbeModel) -> None:
    for name, mapped in built.tensor_map.items():
        for tile in mapped.tiles:
            values = probe.read(name)[tile.region] - tile.shift
            tile.tensor.view(-1).narrow(0, tile.start, tile.numel).copy_(values.flatten())


def _forward(run: Run, built: MegatronModel, ids: list[torch.Tensor]) -> torch.Tensor | None:
    from megatron.core.pipeline_parallel import get_forward_backward_func

    segments = [Encoded(n, (_all_learned(each),)) for n, each in enumerate(ids)]
    batch = collate(segments, flat=_is_flat(run))
    slicer = slicer_of(run, built.config)
    # Stages that take turns do so with as many micro-batches as there are stages.
    shards = [slicer.slice(batch, True)] * (run.config.parallel.pp if run.config.parallel.vpp > 1 else 1)

    def logps(shard: MicroBatchSlice, hidden: torch.Tensor, **_: Any) -> torch.Tensor:
        values = view_of(built, shard, hidden, {Need.TOKEN_LOGPS}).token_logps
        assert values is not None
        rows = [values[shard.batch.segment_ids == n][:-1] for n in range(batch.segments)]
        return torch.cat(rows).float().cpu()

    def step(shards: Iterator[MicroBatchSlice], chunk: Any) -> tuple[torch.Tensor, Any]:
        shard = next(shards)
        return hidden_of(built, chunk.eval(), shard), partial(logps, shard)

    several = len(built.chunks) > 1
    found: list[torch.Tensor] = get_forward_backward_func()(
        forward_step_func=step,
        data_iterator=[iter(shards) for _ in built.chunks] if several else iter(shards),
        model=built.chunks if several else built.chunks[0],
        num_microbatches=len(shards),
        seq_length=shards[0].input_ids.shape[1] * slicer.cp,
        micro_batch_size=shards[0].input_ids.shape[0],
        forward_only=True,
        collect_non_loss_data=True,
    )
    return found[-1] if found else None


def _is_flat(run: Run) -> bool:
    return run.config.data.packing or bool(run.config.data.padding_free)


def _all_learned(ids: torch.Tensor) -> Segment:
    weights = np.ones(len(ids), dtype=np.float32)
    weights[0] = 0
    return Segment(ids.numpy().astype(np.int32), weights)


@contextmanager
def _same_random_numbers(device: str) -> Iterator[None]:
    """Let the run draw the random numbers that it would draw without the check."""
    with torch.random.fork_rng(devices=[device] if device != "cpu" else []), same_dropout_again():
        yield
