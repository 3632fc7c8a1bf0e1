"""Steps that the demos share: titles, training, export and evaluation."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from swift.terminal import print_line, relative

if TYPE_CHECKING:
    from swift_infer import ChatEngine


def print_title(text: str) -> None:
    """Print the title of a step."""
    bold, plain = ("\x1b[1m", "\x1b[0m") if sys.stdout.isatty() else ("", "")
    print_line(f"\n{bold}{text}{plain}")


def train_with(command: str, *, pause_at: int | None = None) -> Path:
    """Run a training command, and return the last checkpoint."""
    from swift.parsing import parse
    from swift.train import train

    command_name, *args = command.split()
    done = train(parse(args, command_name), pause_at=pause_at)
    assert done.last_checkpoint is not None
    return relative(done.last_checkpoint)


def logged(run: Path, name: str) -> list[float]:
    """Return the values of this name in a run's log."""
    lines = map(json.loads, (run / "logging.jsonl").read_text(encoding="utf-8").splitlines())
    return [float(line[name]) for line in lines if name in line]


def export(checkpoint: Path, exported: Path) -> None:
    """Export a checkpoint, and verify the export."""
    from swift.config.sections import ExportSection
    from swift.export import export_checkpoint

    export_checkpoint(checkpoint, to="hf", options=ExportSection(to="hf", out=exported), say=_print_indented)


def open_chat(model: str) -> ChatEngine:
    """Load a checkpoint, an export, a folder or a model of the hub for inference."""
    from swift_infer import ModelOptions, open_chat_engine

    return open_chat_engine(ModelOptions(model=model), batch_size=50, say=_print_indented)


def accuracy(chat_engine: ChatEngine, file: Path, labels: Sequence[str] = ()) -> float:
    """Return the accuracy on the questions of a file, and print the first responses behind these labels."""
    from swift.contracts import Sampling
    from swift_infer import read_questions, response_strings

    questions = read_questions([str(file)], {})
    responses = response_strings(chat_engine, questions, Sampling(max_new_tokens=48))
    for label, response in zip(labels, responses, strict=False):
        print_line(f"  {label}  →  {response}")
    right = sum(response == question.expected for question, response in zip(questions, responses, strict=True))
    print_line(f"  {right} of {len(questions)} are right")
    return right / len(questions)


def _print_indented(line: str) -> None:
    print_line(f"  {line}")
