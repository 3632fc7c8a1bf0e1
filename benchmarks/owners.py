"""Cost of matrix sharding by owner: an update of Muon on two processes compared with one of AdamW.

Muon's own arithmetic, the Newton-Schulz iteration, is left out: what it gives back is what it is given. All else is as
it is, momentum, traffic and the update of weights. Its traffic is also timed by itself: the messages of an update, sent
once more and received by bare torch. Time is that of the processors of both processes, the kernel's included.
"""

from __future__ import annotations

import json
import math
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.facts import Figure
from benchmarks.inputs import LARGE, ensure

PROCESSES = 2
VARIANTS = {"adamw": False, "adamw, fused": True}
"""torch's AdamW over lists of tensors, as Muon is written, and by its fused kernel."""


NOTE = (
    "Two processes hold half of the rows of each matrix. An update of Muon without its own arithmetic, the "
    "Newton-Schulz iteration, is timed and compared with one of AdamW for the same halves, over lists of tensors as "
    "Muon is written, and by the fused kernel. Its messages are timed once more by themselves: between two processes "
    "of one machine they go through the kernel, whose time is counted, while an update of AdamW sends nothing."
)


def measure(quick: bool) -> tuple[list[Figure], dict[str, Any]]:
    ensure()
    found = _measured(LARGE, rounds=4 if quick else 24)
    figures = [
        Figure("muon by owners without its arithmetic, over an update of AdamW", found["beyond"], at_most=1.25),
        Figure("of it traffic between the processes, by bare torch", found["traffic"]),
        Figure("and all else: momentum, updates, putting matrices together", found["beyond_traffic"]),
        Figure("muon by owners without its arithmetic, over one of AdamW's fused kernel", found["beyond_fused"]),
        Figure("elements that are sent for each weight of a matrix", found["sent_per_weight"], unit=""),
    ]
    return figures, {"model": LARGE.name, **found, "notes": [NOTE]}


def _measured(model: Path, rounds: int) -> dict[str, Any]:
    """Return the processor's seconds of an update by both, the median over rounds in which they take turns."""
    from swift.testing.crew import run_jobs, succeeded

    (results,) = run_jobs(PROCESSES, [partial(_take_turns, model, rounds)])
    found = succeeded(results)
    seconds = {
        name: statistics.median(sum(turns) for turns in zip(*(each["seconds"][name] for each in found), strict=True))
        for name in found[0]["seconds"]
    }
    return {
        "processor_seconds": seconds,
        "rounds": rounds,
        "beyond": seconds["muon"] / seconds["adamw"],
        "beyond_fused": seconds["muon"] / seconds["adamw, fused"],
        "traffic": seconds["traffic"] / seconds["adamw"],
        "beyond_traffic": (seconds["muon"] - seconds["traffic"]) / seconds["adamw"],
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
    messages = _messages_of(by_owners.step)
    sent = sum(each.tensor.numel() for some in messages for each in some if each.op is dist.isend)
    turns: dict[str, Callable[[], Any]] = {
        "muon": by_owners.step,
        "traffic": partial(_send, messages),
        **{name: each.step for name, each in adamw.items()},
    }
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


def _messages_of(step: Callable[[], Any]) -> list[list[Any]]:
    """Return what this process sends and receives in a step, batch by batch."""
    import torch.distributed as dist

    real, found = dist.batch_isend_irecv, list[list[Any]]()

    def noting(operations: list[Any]) -> Any:
        found.append(operations)
        return real(operations)

    dist.batch_isend_irecv = noting
    try:
        step()
    finally:
        dist.batch_isend_irecv = real
    return found


def _send(messages: list[list[Any]]) -> None:
    """Send and receive them again."""
    import torch.distributed as dist

    for batch in messages:
        for work in dist.batch_isend_irecv(batch):
            work.wait()


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
