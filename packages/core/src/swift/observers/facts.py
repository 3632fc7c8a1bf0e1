"""Facts that observers show besides steps: how the run is set up, which samples were rejected, what to type next."""

from __future__ import annotations

import os
import shlex
from dataclasses import dataclass

from swift.contracts import Decision, Run, RunSummary
from swift.terminal import summary_of


@dataclass(frozen=True)
class UnusableSamples:
    """Samples that were left out for one reason."""

    reason: str
    count: int
    first: str = ""
    """Where the first of them stands, and what is wrong with it."""


def unusable_samples(run: Run) -> list[UnusableSamples]:
    """Return the samples that the run's data facts count as rejected, by reason."""
    data = run.facts.data
    return [UnusableSamples(reason, each.count, each.first) for reason, each in data.rejected.items()] if data else []


def setup_facts(run: Run) -> dict[str, str]:
    """Describe the run in a few words, for a header: model, backend and layout, then every fact."""
    facts, data, model = run.facts, run.facts.data, run.model_facts
    sentences = {
        "model": run.config.model.path or "",
        "backend": backend_and_layout(run),
        "data": f"{data.samples:,} samples, {data.tokens:,} tokens" if data is not None else "",
        "precision": _sentence(facts.precision),
        "attention": _sentence(facts.attention),
        "trainable": summary_of(model.trainable, model.parameters) if model is not None else "",
    }
    sentences |= {name: text for name, text in facts.extra.items() if isinstance(text, str)}
    return {name: text for name, text in sentences.items() if text}


def _sentence(decision: Decision | None) -> str:
    """'bfloat16 (this GPU computes in it)'."""
    if decision is None:
        return ""
    return f"{decision.chosen} ({decision.reason})" if decision.reason else decision.chosen


def backend_and_layout(run: Run) -> str:
    """`fsdp, 4 processes (dp_shard 2, tp 2)`."""
    size = run.world.size
    words = f"{run.config.backend.name}, {size} process{'es' if size > 1 else ''}"
    layout = run.topology.layout
    parts = [f"{name} {ways}" for name, ways in layout.items() if ways > 1]
    return f"{words} ({', '.join(parts)})" if parts else words


def next_commands(run: Run, summary: RunSummary) -> list[tuple[str, str]]:
    """Return (purpose, command) pairs that make sense now; none where no checkpoint was saved."""
    best = summary.best_checkpoint or summary.last_checkpoint
    if summary.last_checkpoint is None or best is None:
        return []
    if summary.status == "completed":
        out = run.folder / "export"
        return [
            ("Talk to it", _command("swift", "chat", best)),
            ("Export it", _command("swift", "export", best, "--to", "hf", "--out", out)),
        ]
    config = run.folder / "config.yaml"
    resume = ["swift", "train", "--config", config, "--resume_from_checkpoint", summary.last_checkpoint]
    on_one_machine = os.environ.get("LOCAL_WORLD_SIZE") == str(run.world.size)
    processes = ["--nproc", run.world.size] if run.world.size > 1 and on_one_machine else []
    return [("Resume", _command(*resume, *processes))]


def _command(*words: object) -> str:
    return shlex.join(str(word) for word in words)
