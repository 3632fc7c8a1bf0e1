"""How the processes share the work: sizes of the parallel dimensions, and which plans cannot be honoured."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from swift.config.own_options import LoraOptions
from swift.errors import UnsupportedPlan
from swift.models.sizes import check_heads, check_widths
from swift_backend_fsdp.config import FsdpConfig

if TYPE_CHECKING:
    from swift.config.sections import ParallelSection
    from swift.contracts import Run


@dataclass(frozen=True)
class MeshSizes:
    """world = replicate × data × sequence × tp; parameters are sharded over data × sequence."""

    replicate: int
    data: int
    """Shards of one replica that train on samples of their own."""
    sequence: int
    """Processes that share each sample, a part of its tokens each (Ulysses or context parallel)."""
    tp: int

    @classmethod
    def of(cls, parallel: ParallelSection, world: int, *, per_machine: int | None = None) -> MeshSizes:
        """Return the sizes for so many processes.

        What was left open is taken up by `dp_shard`, within a machine if told.
        """
        within_machines = per_machine is not None and parallel.dp_shard is None
        replicas = max(1, world // per_machine) if within_machines and per_machine else None
        replicate, data = parallel.data_parallel(world, replicas=replicas)
        return cls(replicate, data, parallel.cp * parallel.ulysses, parallel.tp)


def sizes_of(run: Run) -> MeshSizes:
    """Return the sizes of a run; with `backend.hybrid` there is a replica on every machine."""
    hybrid = run.options(FsdpConfig).hybrid
    here = int(os.environ.get("LOCAL_WORLD_SIZE", run.world.size))
    return MeshSizes.of(run.config.parallel, run.world.size, per_machine=here if hybrid else None)


def check_plan(run: Run) -> None:
    """Refuse what the sizes or the tuner rule out, before anything is set up."""
    config = run.config
    parallel, tuner = config.parallel, config.tuner
    sizes_of(run)
    if parallel.cp > 1 and parallel.ulysses > 1:
        raise UnsupportedPlan(
            "parallel.cp and parallel.ulysses both shard sequences, and cannot be combined.",
            hint=f"Type --parallel.cp {parallel.cp * parallel.ulysses} --parallel.ulysses 1, or the other way round.",
        )
    if parallel.tp > 1 and tuner.quantize != "none":
        raise UnsupportedPlan(
            f"tensor parallel cannot shard weights that are stored as {tuner.quantize}.",
            hint="Type --parallel.tp 1 (FSDP shards them all the same), or --tuner.quantize none.",
        )
    lora = tuner.options(LoraOptions)
    if parallel.tp > 1 and (lora.dora or lora.modules_to_save):
        what = "DoRA needs norms of whole matrices" if lora.dora else "tuner.modules_to_save makes copies of modules"
        raise UnsupportedPlan(f"{what}, which tensor parallel shards.", hint="Type --parallel.tp 1")


def check_model(run: Run, model_config: Any) -> None:
    """Refuse a model whose sizes the plan does not divide."""
    check_heads(model_config, run.config.parallel.tp)
    check_widths(model_config, run.config.parallel.tp)
