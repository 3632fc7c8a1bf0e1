"""`python -m benchmarks [PART ...] [--quick] [--out FOLDER]`: measure, show ratios and their targets, write JSON."""

from __future__ import annotations

import argparse
import importlib
from pathlib import Path
from typing import Any

from benchmarks.facts import Figure, show, write, write_page
from benchmarks.inputs import ROOT

PARTS = {
    "throughput": "speed and peak memory of training against a bare torch loop",
    "hybrids": "speed of packed linear attention, sample by sample, against a bare loop over padded batches",
    "chunked_loss": "memory of the loss at a vocabulary of 152k",
    "start_up": "time to the first step, phase by phase",
    "plan_memory": "memory that swift plan counts, against the processes of every backend",
    "plan_blocks": "memory and time that swift plan extrapolates from few blocks, against runs of all blocks",
    "plan_traffic": "bytes that processes exchange in swift plan, against counted bytes, by layout",
    "ui": "start and memory of the dashboard, long runs, many runs, and the delay of a step",
    "tokenising": "rows per second from chats to tokens and masks, against row by row and datasets.map, and memory",
    "images": "rows per second with images to tokens, by headers against decoding",
    "image_training": "training on images against a hand-written loop: speed, memory, packing",
    "scale": "ten million rows, tokenized by independent jobs: memory, and data read at the start",
    "fsdp": "speed and memory of FSDP against a hand-written FSDP2 loop and the Trainer, and long sequences",
    "deepspeed": "speed and memory of DeepSpeed against a hand-written loop and the Trainer",
    "megatron": "speed of Megatron against a hand-written Megatron-Core loop, and pipeline bubbles",
    "checkpoints": "saving against each engine's own saving, stalls of background saves, memory, and reading",
    "serving": "time to the first token and requests per second of swift serve against vLLM's own server",
    "export": "merging adapters into a model folder, against cp of the same bytes and against PEFT",
    "ms_swift": "speed and start-up against ms-swift, in a separate environment",
    "reward_models": "speed and losses of reward models against TRL's RewardTrainer",
    "embeddings": "speed and losses of embeddings against sentence-transformers' trainer",
    "encoders": "the same of all-MiniLM-L6-v2, a pretrained encoder",
    "grpo": "sampling and training with GRPO against TRL's GRPOTrainer",
    "ppo": "advantages, returns and losses of PPO against those of a round of TRL's PPOTrainer",
    "distillation": "distillation against TRL's GKDTrainer",
    "estimators": "--like against the functions of verl, OpenRLHF and NeMo-RL",
    "optimizers": "memory, time and loss of every tuner with every optimizer",
    "imports": "losses and learning rates of imported recipes against ms-swift, LLaMA-Factory and TRL",
    "plan_published": "memory and time of published runs on up to 12,288 GPUs against what swift plan counts",
    "time_breakdown": "the communication part of a step against torch.profiler's, on every backend, and its cost",
    "plan_bars": "coverage of error bars of memory and of vTrain's times (their folder: VTRAIN), and what fits",
    "plan_times": "predicted iteration times against vTrain's measured ones (their folder: VTRAIN), and error bars",
}
"""What can be measured, in the order in which it runs."""
MODULES = {
    **dict.fromkeys(("fsdp", "deepspeed"), "engines"),
    **dict.fromkeys(("reward_models", "embeddings", "encoders", "distillation"), "trainers"),
    **{"plan_memory": "plan_runs:memory", "plan_blocks": "plan_runs:blocks", "plan_traffic": "plan_runs:traffic"},
    **{"plan_times": "plan_times:times", "plan_bars": "plan_times:bars"},
}
"""Where a part is not `measure` of the module of its name: the module with a function of that name, or both names."""


def measured(part: str, quick: bool) -> tuple[list[Figure], dict[str, Any]]:
    """Return the figures of a part, and what they were made of."""
    module, _, function = MODULES.get(part, f"{part}:measure").partition(":")
    found: tuple[list[Figure], dict[str, Any]]
    found = getattr(importlib.import_module(f"benchmarks.{module}"), function or part)(quick)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Ratios of things measured in one run, on this machine.",
        epilog="parts (all, if none is named): " + "; ".join(f"{name}: {text}" for name, text in PARTS.items()),
    )
    parser.add_argument("parts", nargs="*", metavar="PART", choices=[*PARTS, []], help="what to measure")
    parser.add_argument("--quick", action="store_true", help="a few steps and rounds: shows that it runs, not how fast")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results", help="folder of the results")
    arguments = parser.parse_args()
    for part in arguments.parts or PARTS:
        figures, details = measured(part, arguments.quick)
        show(f"{part}: {PARTS[part]}", figures)
        command = f"python -m benchmarks {part}" + (" --quick" if arguments.quick else "")
        path = write(arguments.out, part, command, [each.shown for each in figures], details)
        write_page(arguments.out)
        print(f"  written to {path}", flush=True)


if __name__ == "__main__":
    main()
