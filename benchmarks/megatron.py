"""The Megatron backend: speed against Megatron-Core by hand, how much of a pipeline stands still, and traffic.

Speed: swift and the loop take turns in the same two processes, step by step, on the same batches. Pipeline and
traffic: one command per layout, on samples of equally many tokens, whose answers are one word: a head that has work
would make the last stage longer than the others, for which no formula accounts.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median
from typing import Any

from benchmarks.commands import ROWS, swift_run
from benchmarks.engines import UNSAVED
from benchmarks.facts import Figure
from benchmarks.inputs import DEEP, EVEN, EXPERTS, MODEL, ensure
from benchmarks.megatron_watch import PipelineWatch
from benchmarks.turns import loss_difference, ratios, summary, turns

MEGATRON = ("--backend", "megatron", "--nproc", "2")
STAGES = 2
MICRO_BATCHES = PipelineWatch.MICRO_BATCHES
MICRO_ROWS = 4
BYTES = 4
"""Of a number in fp32."""
TRAFFIC_STEPS = 2
OBJECT = 4_096
"""What is not larger is norms, sums of losses, shapes, or Python objects."""

Work = dict[str, Any]
"""Forward or backward of a micro-batch through a chunk."""
Pass = list[list[Work]]
"""All work of a step, by process, in the order in which it was done."""


def measure(quick: bool) -> tuple[list[Figure], dict[str, Any]]:
    """Figures, and what they were made of."""
    ensure()
    of_speed, speed = _speed(quick)
    of_pipeline, pipeline = _pipelines(quick)
    of_traffic, traffic = _traffic_of_all()
    details = {"in_turn": speed, "pipeline": pipeline, "traffic": traffic, "notes": NOTES}
    return [*of_speed, *of_pipeline, *of_traffic], details


# Speed


def _speed(quick: bool) -> tuple[list[Figure], dict[str, Any]]:
    figures: list[Figure] = []
    details: dict[str, Any] = {}
    for name, arguments in {
        "tp 2": ("--tp", "2", "--per_device_train_batch_size", str(ROWS)),
        "pp 2": ("--pp", "2", "--per_device_train_batch_size", str(MICRO_ROWS), "--gradient_accumulation_steps", "4"),
    }.items():
        run = f"megatron-in-turn-{name.replace(' ', '')}"
        taken = turns(run, 15 if quick else 65, *MEGATRON, *arguments, observer="megatron-loop-in-turn")
        figures += [
            Figure(f"{name}: tokens/s over Megatron-Core by hand", median(ratios(taken)), at_least=0.97),
            Figure(f"{name}: largest relative difference of the loss", loss_difference(taken), "", at_most=1e-5),
        ]
        details[name] = {"arguments": arguments, "steps": len(taken), **summary(taken)}
    return figures, details


# Pipeline


def _pipelines(quick: bool) -> tuple[list[Figure], dict[str, Any]]:
    steps = 4 if quick else 10
    figures: list[Figure] = []
    details: dict[str, Any] = {}
    for chunks in (1, 2):
        for count, passes in _passes(chunks, steps).items():
            name = f"pp {STAGES}" + (f" x vpp {chunks}" if chunks > 1 else "") + f", {count} micro-batches"
            formula = (STAGES - 1) / (chunks * count + STAGES - 1)
            clock, alone = median(map(_bubble, passes)), _bubble(_replayed(_typical(passes)))
            figures += [
                Figure(f"{name}: bubble by formula", formula, ""),
                Figure(f"{name}: bubble of the order of work", alone, ""),
                Figure(f"{name}: bubble by the clock", clock, ""),
            ]
            details[name] = {
                "bubble": {"formula": formula, "order of work": alone, "clock": clock},
                "bubble_by_step": [_bubble(each) for each in passes],
                "clock_over_processor": median(map(_slowed, passes)),
                "processor_seconds_by_stage": [sum(work["processor"] for work in each) for each in _typical(passes)],
            }
    return figures, details


def _passes(chunks: int, steps: int) -> dict[int, list[Pass]]:
    """So many for each number of micro-batches."""
    layout = ("--pp", str(STAGES), "--parallel.vpp", str(chunks), *_micro_batches(max(MICRO_BATCHES)))
    place = (*MEGATRON, *layout, "--max_steps", str((steps + 1) * len(MICRO_BATCHES)), *UNSAVED)
    name = f"megatron-pipeline-{chunks}"
    folder = swift_run(name, *place, observers=["pipeline-watch"], model=DEEP, data=EVEN)
    passes = zip(*(_lines(folder / f"pipeline-{rank}.jsonl") for rank in range(STAGES)), strict=True)
    by_count: dict[int, list[Pass]] = {count: [] for count in MICRO_BATCHES}
    for work in passes:
        by_count[1 + max(each["number"] for each in work[0])].append(list(work))
    return {count: found[1:] for count, found in by_count.items()}  # the first warms up


def _micro_batches(count: int) -> tuple[str, ...]:
    return "--per_device_train_batch_size", str(MICRO_ROWS), "--gradient_accumulation_steps", str(count)


def _bubble(work: Pass) -> float:
    """Return the share of the time between the first and the last work of all processes that they did not work."""
    every = [each for own in work for each in own]
    took = max(each["end"] for each in every) - min(each["begin"] for each in every)
    return 1 - sum(each["end"] - each["begin"] for each in every) / (len(work) * took)


def _slowed(work: Pass) -> float:
    """By how much others on the machine made work longer than the processor took for it."""
    every = [each for own in work for each in own]
    return float(sum(each["end"] - each["begin"] for each in every) / sum(each["processor"] for each in every))


def _typical(passes: Sequence[Pass]) -> Pass:
    """Return the order of the last pass, with the median of the processor's seconds over all of them."""
    seconds = [
        {(rank, *_name(each)): each["processor"] for rank, own in enumerate(work) for each in own} for work in passes
    ]
    return [
        [{**each, "processor": median(found[rank, *_name(each)] for found in seconds)} for each in own]
        for rank, own in enumerate(passes[-1])
    ]


def _name(work: Work) -> tuple[str, int, int]:
    return work["what"], work["chunk"], work["number"]


def _replayed(work: Pass) -> Pass:
    """Schedule the same work in the same order, each part as soon as its inputs are ready, in CPU seconds."""
    stages = len(work)
    last = max(each["chunk"] for own in work for each in own) * stages + stages - 1
    ends: dict[tuple[str, int, int], float] = {}
    clocks = [0.0] * stages
    done: Pass = [[] for _ in work]
    while any(len(done[rank]) < len(own) for rank, own in enumerate(work)):
        stuck = True
        for rank, own in enumerate(work):
            while len(done[rank]) < len(own):
                each = own[len(done[rank])]
                what, chunk, number = _name(each)
                stage = chunk * stages + rank
                before = stage - 1 if what == "forward" else stage + 1
                needed = (what, before, number)
                if 0 <= before <= last and needed not in ends:
                    break
                begin = max(clocks[rank], ends.get(needed, 0.0))
                clocks[rank] = ends[what, stage, number] = begin + each["processor"]
                done[rank].append({**each, "begin": begin, "end": clocks[rank]})
                stuck = False
        if stuck:
            raise RuntimeError("no order of work: each waits for another")
    return done


# Traffic


@dataclass(frozen=True)
class Seen:
    """What the formulas are about: numbers of a process in a step."""

    tokens: int
    learned: int
    dense: int
    experts: int
    hidden: int
    layers: int
    keys: int
    """Width of a token's keys, and of its values."""
    vocabulary: int
    chosen: int
    """Experts of a token."""


@dataclass(frozen=True)
class Layout:
    """One that is measured, and what it should hand to its groups."""

    name: str
    arguments: tuple[str, ...]
    said: str
    """The formula."""
    numbers: Callable[[Seen], float]
    model: Path = MODEL


LAYOUTS = (
    Layout(
        "tp 2",
        ("--tp", "2"),
        "(4 layers + 1) x tokens x hidden + learned x hidden",
        lambda seen: (4 * seen.layers + 1) * seen.tokens * seen.hidden + seen.learned * seen.hidden,
    ),
    Layout(
        "tp 2 + sequence parallel",
        ("--tp", "2", "--parallel.sequence_parallel", "true"),
        "(8 layers + 4) x tokens x hidden",
        lambda seen: (8 * seen.layers + 4) * seen.tokens * seen.hidden,
    ),
    Layout(
        "pp 2",
        ("--pp", "2"),
        "tokens x hidden + vocabulary x hidden",
        lambda seen: (seen.tokens + seen.vocabulary) * seen.hidden,
    ),
    Layout(
        "cp 2",
        ("--cp", "2"),
        "4 layers x tokens x keys + 2 parameters",
        lambda seen: 4 * seen.layers * seen.tokens * seen.keys + 2 * seen.dense,
    ),
    Layout("dp 2", (), "2 parameters", lambda seen: 2 * seen.dense),
    Layout(
        "ep 2",
        ("--ep", "2"),
        "4 layers x tokens x experts of a token x hidden + 2 parameters of all but the experts",
        lambda seen: 4 * seen.layers * seen.tokens * seen.chosen * seen.hidden + 2 * seen.dense,
        EXPERTS,
    ),
)


def _traffic_of_all() -> tuple[list[Figure], dict[str, Any]]:
    figures: list[Figure] = []
    details: dict[str, Any] = {}
    for layout in LAYOUTS:
        ranks = _traffic(layout)
        # What experts and stages of a pipeline send depends on who they are.
        counted = fmean(_bytes(rank["traffic"]) for rank in ranks)
        theory = fmean(layout.numbers(_seen(layout, rank)) for rank in ranks) * BYTES
        small = fmean(_bytes(entry for entry in rank["traffic"] if entry[1] <= OBJECT) for rank in ranks)
        figures += [
            Figure(f"{layout.name}: 4 x ({layout.said}), per step and process", theory / 2**20, "MiB"),
            Figure(f"{layout.name}: counted", counted / 2**20, "MiB"),
            Figure(f"{layout.name}: counted over the formula", counted / theory),
        ]
        details[layout.name] = {
            "formula": f"4 bytes x ({layout.said})",
            "numbers": vars(_seen(layout, ranks[0])),
            "formula_bytes": theory,
            "counted_bytes": counted,
            f"of which in pieces of at most {OBJECT} bytes": small,
            "first process: operation, bytes, how often": ranks[0]["traffic"],
        }
    return figures, details


def _traffic(layout: Layout) -> list[dict[str, Any]]:
    """What each process counted in the last step."""
    place = (*MEGATRON, *layout.arguments, *_micro_batches(2), "--max_steps", str(TRAFFIC_STEPS), *UNSAVED)
    name = "megatron-traffic-" + "".join(letter for letter in layout.name if letter.isalnum())
    folder = swift_run(name, *place, observers=["traffic-watch"], model=layout.model, data=EVEN)
    return [_lines(folder / f"traffic-{rank}.jsonl")[-1] for rank in range(2)]


def _seen(layout: Layout, counted: dict[str, Any]) -> Seen:
    model = json.loads((layout.model / "config.json").read_text())
    return Seen(
        **{name: counted[name] for name in ("tokens", "learned", "dense", "experts")},
        hidden=model["hidden_size"],
        layers=model["num_hidden_layers"],
        keys=model["num_key_value_heads"] * model["head_dim"],
        vocabulary=model["vocab_size"],
        chosen=model.get("num_experts_per_tok", 0),
    )


def _bytes(traffic: Iterable[Sequence[Any]]) -> int:
    return sum(size * count for _, size, count in traffic)


def _lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()]


NOTES = (
    "Bubbles: 'of the order of work' replays the forward and backward passes of each process in the order in which "
    "Megatron ran them, each with the median of the processor's seconds that it took, and with messages that take no "
    "time. It differs from the formula where stages are not equally long: the first has the embedding, the last the "
    "head. 'By the clock' also has the messages, and what else the machine does meanwhile (clock_over_processor in "
    "the file).",
    "Traffic: what a process hands to its groups; of what is gathered or scattered the whole, of messages those that "
    "it sends. Beyond the formulas, each counted in the file: sums of losses and the norm of gradients; tensor "
    "parallel: the largest logit and sums over words for each learned token, and gradients of norms that all "
    "processes have; pipeline: shapes, as lengths differ from batch to batch, and what the last stage tells the "
    "others of the loss; context parallel: log probabilities, and gaps in the buffer of gradients; experts: how "
    "many tokens go to each, and their probabilities.",
    "Experts: dense and expert weights have an optimizer each, and each of the two has Megatron gather all weights of "
    "a chunk, so that those of the dense part travel three times, not twice.",
    "Without a GPU, the portable layer computes: under sequence parallelism it keeps what it gathered, where "
    "Transformer Engine gathers again in the backward pass (10 per layer in the place of 8), and under context "
    "parallelism it gathers keys and values, where Transformer Engine sends them around a ring.",
)
