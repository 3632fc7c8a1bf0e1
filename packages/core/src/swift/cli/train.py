"""`swift pt | sft | rlhf | train`: from a command line to a run."""

from __future__ import annotations

import os
import sys
from typing import ClassVar

from swift.cli.help import asks_for_help, show_training_help


class _Training:
    """Implements `swift.contracts.Command`."""

    name: ClassVar[str]

    def run(self, args: list[str]) -> int:
        return train(self.name, args)


class PtCommand(_Training):
    """`swift pt`."""

    name = "pt"
    group = "Train"
    summary = "Continue pre-training on plain text"


class SftCommand(_Training):
    """`swift sft`."""

    name = "sft"
    group = "Train"
    summary = "Fine-tune on conversations or instructions"


class RlhfCommand(_Training):
    """`swift rlhf`."""

    name = "rlhf"
    group = "Train"
    summary = "Learn from preferences (dpo, kto, orpo, simpo, cpo, rm, prm), rewards (grpo, ppo) or a teacher (gkd)"


class TrainCommand(_Training):
    """`swift train`."""

    name = "train"
    group = "Train"
    summary = "Any objective, named by --train_type or --objective"


def train(command: str, args: list[str]) -> int:
    """Parse the arguments, print notes, and train; return the exit code."""
    if asks_for_help(args):
        show_training_help(command, args)
        return 0
    from swift.cli.launch import launch
    from swift.cli.planner_choice import chosen
    from swift.cli.preflight import check_here, check_run
    from swift.parsing import parse
    from swift.plugins import planners
    from swift.plugins.vocabularies import check_is_own
    from swift.processes.group import processes_in_all
    from swift.processes.reports import reported_errors
    from swift.processes.signals import STARTED_BY_SWIFT, is_worker
    from swift.terminal import print_note, say_nothing

    with reported_errors():
        check_is_own(args)
        args = chosen(args, command, say_nothing if is_worker() else print_note)
        parsed = parse(args, command)
        if not is_worker():
            with parsed.naming_sources():
                check_here(parsed.config)
        if "RANK" not in os.environ:  # with RANK a launcher has started it, perhaps again
            processes = processes_in_all({**os.environ, **parsed.machines}, parsed.nproc)
            with parsed.naming_sources():
                run = check_run(parsed, processes)
            if (warning := planners.foreseen(run, args, command)) is not None:
                parsed.notes.append(warning)
    first_of_its_launcher = os.environ.get("RANK", os.environ.get("SLURM_PROCID", "0")) == "0"
    if first_of_its_launcher and STARTED_BY_SWIFT not in os.environ:
        for note in parsed.notes:
            sys.stderr.write(f"Note: {note}\n")
    return launch(parsed, [command, *args])
