"""Facts that observers show besides steps: the run's setup, rejected samples and the commands to run next."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path

from swift.config.own_options import LoraOptions
from swift.contracts import DataFacts, Decision, RejectedSamples, Run, RunSummary
from swift.observers.text import figure, plural
from swift.optim.schedule import Schedule
from swift.parsing.tasks import CAUSAL_LM, returns
from swift.terminal import summary_of

_NOTABLE = 0.1
"""GB of a checkpoint from which its size is printed."""


def unusable_samples(run: Run) -> Mapping[str, RejectedSamples]:
    """Return the samples that were left out, by reason."""
    return run.facts.data.rejected if run.facts.data else {}


def setup_facts(run: Run) -> dict[str, str]:
    """Return the header of a run by name: model, data, batch, backend and so on, then plugins' facts."""
    facts, data, model = run.facts, run.facts.data, run.facts.model
    sentences = {
        "model": run.config.model.path or "",
        "objective": run.config.objective.name,
        "tuner": tuner(run),
        "trainable": summary_of(model.trainable, model.parameters) if model is not None else "",
        "data": samples(data) if data is not None else "",
        "batch": rows_per_step(run),
        "length": length(run),
        "learning_rate": learning_rate(run),
        "backend": backend_and_layout(run),
        "precision": _sentence(facts.precision),
        "attention": _sentence(facts.attention),
        "experts": _sentence(facts.experts),
    }
    sentences |= {name: text for name, text in facts.items() if isinstance(text, str)}
    return {name: text for name, text in sentences.items() if text}


def tuner(run: Run) -> str:
    """`lora, rank 8, alpha 32, on all-linear`; of a plugin's tuner its name alone."""
    section = run.config.tuner
    parts = [section.kind]
    if section.kind == "lora" and section.adapter is not None:
        parts.append(f"the adapter in {section.adapter}")
    elif section.kind == "lora":
        options = section.options(LoraOptions)
        targets = " ".join((*options.targets, *options.target_parameters))
        parts += [f"rank {options.rank}", f"alpha {options.alpha:g}", f"on {targets}"]
        parts += [name for name, on in (("DoRA", options.dora), ("rsLoRA", options.rslora)) if on]
    if section.quantize != "none":
        share = run.facts.model.quantized if run.facts.model is not None else None
        parts.append(f"frozen weights in {section.quantize}" if share is None else f"{section.quantize}: {share}")
    return ", ".join(parts)


def samples(data: DataFacts) -> str:
    """`26 samples, 5 held out, 1,300 tokens`, `21 samples, 1,050 tokens; 5 samples for evaluation`."""
    held_out = f", {data.held_out:,} held out" if data.held_out else ""
    text = f"{plural(data.samples, 'sample')}{held_out}, {plural(data.tokens, 'token')}"
    return f"{text}; {plural(data.validation, 'sample')} for evaluation" if data.validation else text


def rows_per_step(run: Run) -> str:
    """`16 rows per optimizer step (micro-batch 2 × accumulation 4 × 2 data-parallel)`."""
    train, ways = run.config.train, run.topology.data_size
    if train.global_batch is None:
        return ""
    factors = [f"micro-batch {train.micro_batch}", f"accumulation {train.accumulation}"]
    if ways > 1:
        factors.append(f"{ways} data-parallel")
    # A share that the micro-batch does not divide ends with a smaller one.
    is_product = train.micro_batch * train.accumulation * ways == train.global_batch
    return f"{plural(train.global_batch, 'row')} per optimizer step ({(' × ' if is_product else ', ').join(factors)})"


def length(run: Run) -> str:
    """`3 epochs, 90 steps`, or `90 steps` where `train.max_steps` is set."""
    train = run.config.train
    steps = plural(run.total_steps, "step")
    if train.max_steps is not None:
        return steps
    return f"{train.epochs:g} epoch{'' if train.epochs == 1 else 's'}, {steps}"


def learning_rate(run: Run) -> str:
    """`0.0001, cosine, after 5 steps of warm-up`."""
    optim = run.config.optim
    parts = [figure(run.config.learning_rate), str(optim.schedule)]
    warmup = Schedule.from_config(optim, run.config.learning_rate, run.total_steps).warmup_steps
    if warmup:
        parts.append(f"after {plural(warmup, 'step')} of warm-up")
    if optim.name != "adamw":
        parts.append(f"optimizer {optim.name}")
    return ", ".join(parts)


def _sentence(decision: Decision | None) -> str:
    """'bfloat16 (this GPU computes in it)'."""
    if decision is None:
        return ""
    return f"{decision.chosen} ({decision.reason})" if decision.reason else decision.chosen


def backend_and_layout(run: Run) -> str:
    """`fsdp, 4 processes (dp_shard 2, tp 2)`."""
    size = run.world.size
    text = f"{run.config.backend.name}, {size} process{'es' if size > 1 else ''}"
    layout = run.topology.layout
    parts = [f"{name} {ways}" for name, ways in layout.items() if ways > 1]
    return f"{text} ({', '.join(parts)})" if parts else text


def space_of_checkpoints(run: Run, folder: Path) -> str:
    """Return `a checkpoint takes 2.1 GB; up to 4 are kept (--save_total_limit 3): 8.6 GB`; nothing for small ones."""
    size = sum(each.stat().st_size for each in folder.rglob("*") if each.is_file()) / 1e9
    if size < _NOTABLE:
        return ""
    keep, kept = run.config.checkpoint.keep, "all are kept"
    if keep is not None:
        kept = f"up to {keep + 1} are kept (--save_total_limit {keep}): {(keep + 1) * size:.1f} GB"
    return f"a checkpoint takes {size:.1f} GB; {kept}"


def next_commands(run: Run, summary: RunSummary, shown: Callable[[Path], Path] = Path) -> list[tuple[str, str]]:
    """Return the commands to run next as (purpose, command), with paths as `shown`; none without a checkpoint."""
    best = summary.best_checkpoint or summary.last_checkpoint
    if summary.last_checkpoint is None or best is None:
        return []
    best = shown(best)
    if summary.status == "completed":
        out = shown(run.folder) / "export"
        task = run.config.model.task
        use = ("Chat", _command("swift", "chat", best))
        if task != CAUSAL_LM:
            use = (f"Predict {returns(task)}", _command("swift", "infer", best, "--dataset", "FILE"))
        return [
            use,
            ("Export", _command("swift", "export", best, "--to", "hf", "--out", out)),
        ]
    on_one_machine = os.environ.get("LOCAL_WORLD_SIZE") == str(run.world.size)
    argv = resume_argv(
        shown(run.folder),
        shown(summary.last_checkpoint),
        processes=run.world.size if on_one_machine else 1,
        optimizer_state=run.config.checkpoint.optimizer_state,
    )
    return [("Resume", _command("swift", *argv))]


def resume_argv(folder: Path, checkpoint: Path, *, processes: int = 1, optimizer_state: bool = True) -> list[str]:
    """Return the arguments of `swift` that resume a run from a checkpoint."""
    argv = ["train", "--config", str(folder / "config.yaml"), "--resume_from_checkpoint", str(checkpoint)]
    if not optimizer_state:
        argv += ["--resume_only_model", "true"]  # the checkpoint holds nothing but weights
    return [*argv, *(["--nproc", str(processes)] if processes > 1 else [])]


def _command(*argv: object) -> str:
    return shlex.join(str(argument) for argument in argv)
