"""`swift pt | sft | rlhf | train`: from a command line to a run."""

from __future__ import annotations

import os
import sys
from typing import ClassVar

from swift.cli.help import asks_for_help, show_training_help


class TrainingCommand:
    """Base of commands that train. Implements `swift.contracts.Command`."""

    name: ClassVar[str]
    example: ClassVar[str]

    def run(self, args: list[str]) -> int:
        """Parse the arguments, print notes, and train, or print the help; return the exit code."""
        if asks_for_help(args):
            show_training_help(self.name, args)
            return 0
        from swift.cli.launch import launch
        from swift.cli.planner_choice import chosen
        from swift.cli.preflight import check_here, check_run
        from swift.parsing import parse
        from swift.plugins import planners
        from swift.processes.group import processes_in_all
        from swift.processes.reports import reported_errors
        from swift.processes.signals import STARTED_BY_SWIFT, is_worker
        from swift.terminal import print_note, say_nothing

        with reported_errors():
            args = chosen(args, self.name, say_nothing if is_worker() else print_note)
            parsed = parse(args, self.name)
            with parsed.naming_sources():
                if not is_worker():
                    check_here(parsed.config)
                if "RANK" not in os.environ:  # with RANK a launcher has started it, perhaps again
                    run = check_run(parsed, processes_in_all(parsed.environment, parsed.nproc))
                    if (warning := planners.foreseen(run, args, self.name)) is not None:
                        parsed.notes.append(warning)
        first_of_its_launcher = os.environ.get("RANK", os.environ.get("SLURM_PROCID", "0")) == "0"
        if first_of_its_launcher and STARTED_BY_SWIFT not in os.environ:
            for note in parsed.notes:
                sys.stderr.write(f"Note: {note}\n")
        return launch(parsed, [self.name, *args])


class PtCommand(TrainingCommand):
    """`swift pt`."""

    name = "pt"
    group = "Train"
    summary = "Continue pre-training on plain text"
    example = "swift pt --model qwen3-0.6b --dataset corpus.jsonl --packing"


class SftCommand(TrainingCommand):
    """`swift sft`."""

    name = "sft"
    group = "Train"
    summary = "Fine-tune on conversations or instructions"
    example = "swift sft --model qwen3-0.6b --dataset data.jsonl --num_train_epochs 3"


class TrainCommand(TrainingCommand):
    """`swift train`."""

    name = "train"
    group = "Train"
    summary = "Any objective, named by --train_type or --objective"
    example = "swift train --train_type sft --model qwen3-0.6b --dataset data.jsonl"
