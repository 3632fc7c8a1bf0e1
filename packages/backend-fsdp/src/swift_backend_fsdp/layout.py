"""How the processes share the work: sizes of the parallel dimensions, and which plans cannot be honoured."""

from __future__ import annotations

import os
from typing import Any

from swift.config.own_options import LoraOptions
from swift.config.sections import Config
from swift.contracts import ProcessLayout, RequestedRun
from swift.errors import UnsupportedLayout
from swift.models.fp8 import check_fp8
from swift.models.sizes import check_experts, check_heads, check_widths


def layout_of(config: Config, processes: int) -> ProcessLayout:
    """Return the sizes of a run; with `backend.hybrid` there is a replica on every machine.

    Parameters are sharded over shard × sequence processes. What was left open is taken up by `dp_shard`.
    """
    replicas = None
    if getattr(config.backend, "hybrid", False) and config.parallel.dp_shard is None:
        here = int(os.environ.get("LOCAL_WORLD_SIZE", processes))
        replicas = max(1, processes // here)
    own = ProcessLayout.of(config.parallel, processes, replicas=replicas)
    if own.tp > 1 and own.ep > 1:
        raise UnsupportedLayout(
            f"FSDP does not combine parallel.tp {own.tp} with parallel.ep {own.ep}.",
            hint="Type --parallel.tp 1, or for both --backend megatron",
        )
    if (own.shard * own.sequence) % own.ep:
        kept = " in each replica" if own.replicate > 1 else ""
        raise UnsupportedLayout(
            f"parallel.ep {own.ep} does not divide the {own.shard * own.sequence} processes that share the model"
            f"{kept}.",
            hint=f"Start with --nproc {own.replicate * own.ep} or a multiple, or lower --parallel.ep.",
        )
    return own


def check_plan(run: RequestedRun) -> None:
    """Refuse what the sizes or the tuner rule out, before anything is set up."""
    config = run.config
    parallel, tuner = config.parallel, config.tuner
    layout_of(config, run.world.size)
    check_fp8(run)
    if parallel.cp > 1 and parallel.ulysses > 1:
        raise UnsupportedLayout(
            "parallel.cp and parallel.ulysses both shard sequences, and cannot be combined.",
            hint=f"Type --parallel.cp {parallel.cp * parallel.ulysses} --parallel.ulysses 1, or the other way round.",
        )
    if parallel.tp > 1 and tuner.quantize != "none":
        raise UnsupportedLayout(
            f"parallel.tp {parallel.tp} cannot shard weights that tuner.quantize {tuner.quantize} stores.",
            hint="Type --parallel.tp 1 (FSDP shards them all the same), or --tuner.quantize none.",
        )
    if parallel.ep > 1 and tuner.quantize != "none":
        raise UnsupportedLayout(
            f"parallel.ep {parallel.ep} cannot distribute experts that tuner.quantize {tuner.quantize} stores.",
            hint="Type --parallel.ep 1 (FSDP shards them all the same), or --tuner.quantize none.",
        )
    lora = tuner.options(LoraOptions)
    if parallel.tp > 1 and (lora.dora or lora.modules_to_save):
        what = (
            "tuner.dora needs norms of whole matrices" if lora.dora else "tuner.modules_to_save makes copies of modules"
        )
        raise UnsupportedLayout(f"{what}, which parallel.tp {parallel.tp} shards.", hint="Type --parallel.tp 1")


def check_model(run: RequestedRun, model_config: Any) -> None:
    """Refuse a model whose sizes the plan does not divide."""
    check_experts(model_config, run.config.parallel.ep)
    check_heads(model_config, run.config.parallel.tp)
    check_widths(model_config, run.config.parallel.tp)
