"""The engines and layouts between which a run moves, and which pairs of them are tried."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

from swift_testing import Layout
from swift_testing.cases import BY_NAME
from swift_testing.subjects import Subject

WHOLE = bool(os.environ.get("SWIFT_WHOLE_MATRIX"))
"""Every ordered pair, as `make matrix` asks for; otherwise each place writes and reads once."""

DENSE = Subject(blocks=4)
EXPERTS = Subject(
    "Qwen3Moe",
    blocks=2,
    changes=(("num_experts", 4), ("num_experts_per_tok", 2), ("moe_intermediate_size", 48), ("norm_topk_prob", True)),
)


@dataclass(frozen=True)
class Engine:
    """What the processes of a backend need."""

    backend: str
    preload: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)


TORCH = Engine("torch")
FSDP = Engine("fsdp", ("torch.distributed.fsdp", "torch.distributed.tensor.parallel", "swift_backend_fsdp.shard"))
DEEPSPEED = Engine("deepspeed", ("deepspeed", "swift_backend_deepspeed.shard"), {"DS_ACCELERATOR": "cpu"})
MEGATRON = Engine("megatron", ("megatron_imported",))


@dataclass(frozen=True)
class Place:
    """An engine under a layout, as the table names it."""

    name: str
    engine: Engine
    layout: Layout

    def __str__(self) -> str:
        return self.name

    def __hash__(self) -> int:
        return hash(self.name)

    def settings(self, model: Path, output: Path, name: str, **more: Any) -> dict[str, Any]:
        """Of a run of the kit's plainest case here, by dotted keys."""
        return {
            **BY_NAME["clipped"].settings(self.layout),
            "backend.name": self.engine.backend,
            "model.path": str(model),
            "logging.output": str(output),
            "logging.run_name": name,
            "data.cache": str(output / "cache"),
            **more,
        }


def _zero(name: str, preset: str, **parallel: Any) -> Place:
    return Place(name, DEEPSPEED, Layout(2, parallel or {"dp_shard": 2}, {"backend.config": preset}))


def _megatron(name: str, world: int, **parallel: Any) -> Place:
    return Place(name, MEGATRON, Layout(world, parallel))


PLACES = (
    Place("torch 1", TORCH, Layout(1)),
    Place("FSDP 2", FSDP, Layout(2, {"dp_shard": 2})),
    _zero("ZeRO-1", "zero1"),
    _megatron("Megatron TP2", 2, tp=2),
    Place("DDP 2", TORCH, Layout(2)),
    _zero("ZeRO-2", "zero2"),
    Place("HSDP 2x2", FSDP, Layout(4, {"dp_replicate": 2, "dp_shard": 2})),
    _megatron("Megatron PP2", 2, pp=2),
    _zero("ZeRO-3 offload", "zero3_offload"),
    Place("FSDP TP2", FSDP, Layout(2, {"tp": 2})),
    _megatron("Megatron TP2xPP2", 4, tp=2, pp=2, sequence_parallel=True),
    _zero("ZeRO-3", "zero3"),
    _megatron("Megatron PP2xVPP2", 2, pp=2, vpp=2),
    _zero("AutoTP 2", "zero1", tp=2),
    _megatron("Megatron DP2", 2, dp_shard=2),
)
"""In such an order that each differs from the next in its engine."""

FSDP_EXPERTS = Place("FSDP EP2", FSDP, Layout(2, {"ep": 2}))
EXPERT_PLACES = (
    _megatron("Megatron EP2", 2, ep=2),
    _zero("ZeRO-3", "zero3"),
    _megatron("Megatron EP2xPP2", 4, ep=2, pp=2),
    Place("FSDP 2", FSDP, Layout(2, {"dp_shard": 2})),
    FSDP_EXPERTS,
    PLACES[0],
)


@dataclass(frozen=True)
class Pair:
    """Saved here, resumed there."""

    case: str
    """Of the conformance kit."""
    subject: Subject
    wrote: Place
    reads: Place

    def __str__(self) -> str:
        model = "experts" if self.subject is EXPERTS else "dense"
        return f"{model}-{self.case}-{self.wrote}-to-{self.reads}"


def pairs() -> Iterator[Pair]:
    """Those that are tried, all of one reader one after the other."""
    found = [*_whole()] if WHOLE else [*_covering()]
    yield from sorted(found, key=lambda pair: (str(pair.subject), pair.case, pair.reads.name))


def _whole() -> Iterator[Pair]:
    for subject, places in ((DENSE, PLACES), (EXPERTS, EXPERT_PLACES)):
        yield from (Pair("clipped", subject, wrote, reads) for wrote, reads in product(places, repeat=2))
    for case in ("lora", "dpo", "dpo, lora", "reward", "seq_cls, lora, packed"):
        yield from _around(case, PLACES)


def _covering() -> Iterator[Pair]:
    yield from _around("clipped", PLACES)
    experts = (*_around("clipped", EXPERT_PLACES, EXPERTS), *_both_ways("clipped", FSDP_EXPERTS, EXPERTS))
    yield from dict.fromkeys(experts)
    yield from _around("lora", PLACES[::5])
    yield from _around("dpo", PLACES[1::7])
    yield from _around("dpo, lora", PLACES[3::5])
    yield from _around("reward", PLACES[:4])
    yield from _around("seq_cls, lora, packed", PLACES[1:4])


def _around(case: str, places: Sequence[Place], subject: Subject = DENSE) -> Iterator[Pair]:
    """Each goes on with what the one before it saved."""
    yield from (
        Pair(case, subject, wrote, reads) for wrote, reads in zip(places, (*places[1:], places[0]), strict=True)
    )


def _both_ways(case: str, place: Place, subject: Subject) -> Iterator[Pair]:
    """What one place saved, each other one goes on with, and the other way round."""
    for other in EXPERT_PLACES:
        if other is not place:
            yield Pair(case, subject, place, other)
            yield Pair(case, subject, other, place)
