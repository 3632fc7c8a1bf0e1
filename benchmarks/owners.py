"""What it costs to bring matrices to their owners: an update of Muon on two processes beside one of AdamW.

Muon's own arithmetic, the Newton-Schulz iteration, is left out: what it gives back is what it is given. All else is as
it is, momentum, traffic and the update of weights. Time is that of the processors of both processes.
"""

from __future__ import annotations

import json
import math
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

PROCESSES = 2
VARIANTS = {"adamw": False, "adamw, fused": True}
"""torch's AdamW over lists of tensors, as Muon is written, and by its fused kernel."""


def measure_owners(model: Path, rounds: int) -> dict[str, Any]:
    """Return the processor's seconds of an update by both, the median over rounds in which they take turns."""
    from functools import partial

    from swift.testing.crew import run_jobs, succeeded

    (answers,) = run_jobs(PROCESSES, [partial(_take_turns, model, rounds)])
    found = succeeded(answers)
    seconds = {
        name: statistics.median(sum(turns) for turns in zip(*(each["seconds"][name] for each in found), strict=True))
        for name in found[0]["seconds"]
    }
    return {
        "processor_seconds": seconds,
        "rounds": rounds,
        "beyond": seconds["muon"] / seconds["adamw"],
        "beyond_fused": seconds["muon"] / seconds["adamw, fused"],
        "sent_per_weight": sum(each["sent"] for each in found) / found[0]["elements"],
    }


def _take_turns(model: Path, rounds: int) -> dict[str, Any]:
    import torch
    import torch.distributed as dist

    from swift.contracts import Matrix, Placement
    from swift_tuning import muon
    from swift_tuning.options import MuonOptions

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, group = dist.get_rank(), dist.group.WORLD
    shapes = _shapes(model)
    weights, placements = [], []
    for name, (rows, columns) in shapes.items():
        region = (slice(rank * rows // PROCESSES, (rank + 1) * rows // PROCESSES), slice(0, columns))
        part = torch.nn.Parameter(torch.randn(region[0].stop - region[0].start, columns) * 0.02)
        part.grad = torch.randn_like(part)
        weights.append(part)
        placements.append(
            Placement(name, (rows, columns), region, (Matrix(name, 0, (rows, columns)),), processes=group)
        )
    common = {"lr": 1e-4, "weight_decay": 0.1}
    by_owners = muon.OrthogonalMomentum([{"params": weights, "placements": placements, **common}], MuonOptions())
    muon.orthogonal = lambda whole, *_: whole
    adamw = {name: torch.optim.AdamW(weights, **common, fused=fused) for name, fused in VARIANTS.items()}
    sent = _counted(by_owners.step)
    turns: dict[str, Callable[[], Any]] = {"muon": by_owners.step, **{name: each.step for name, each in adamw.items()}}
    seconds: dict[str, list[float]] = {name: [] for name in turns}
    for at in range(rounds + 1):
        for name, turn in turns.items():
            for part in weights:  # which Muon makes the update of
                part.grad.fill_(1e-3)
            dist.barrier()
            begin = time.process_time()
            turn()
            if at:  # the first one makes the states
                seconds[name].append(time.process_time() - begin)
    elements = sum(math.prod(shape) for shape in shapes.values())
    dist.destroy_process_group()
    return {"seconds": seconds, "sent": sent, "elements": elements}


def _counted(step: Callable[[], Any]) -> int:
    """Return how many elements this process sends to others in a step."""
    import torch.distributed as dist

    real, sent = dist.batch_isend_irecv, 0

    def counting(operations: Any) -> Any:
        nonlocal sent
        sent += sum(each.tensor.numel() for each in operations if each.op is dist.isend)
        return real(operations)

    dist.batch_isend_irecv = counting
    try:
        step()
    finally:
        dist.batch_isend_irecv = real
    return sent


def _shapes(model: Path) -> dict[str, tuple[int, int]]:
    """Return the matrices of the blocks of a Qwen3, of this shape."""
    config = json.loads((model / "config.json").read_text())
    width, inner = config["hidden_size"], config["intermediate_size"]
    queries = config["num_attention_heads"] * config["head_dim"]
    keys = config["num_key_value_heads"] * config["head_dim"]
    block = {
        **{"q_proj": (queries, width), "k_proj": (keys, width), "v_proj": (keys, width), "o_proj": (width, queries)},
        **{"gate_proj": (inner, width), "up_proj": (inner, width), "down_proj": (width, inner)},
    }
    layers = range(config["num_hidden_layers"])
    return {f"layers.{layer}.{name}": shape for layer in layers for name, shape in block.items()}
