"""A small model that was really trained: four bits mean something to it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Trained:
    """A run that has learned the demo's task, its data, and its model in full precision."""

    run: Path
    data: Path
    exported: Path


def train_demo(folder: Path) -> Trained:
    """Trained for as long as its answers take to become right."""
    from swift.config.sections import ExportSection
    from swift.export.run import export_checkpoint
    from swift.parsing import parse
    from swift.train.loop import train
    from swift_demo.model import write_model
    from swift_demo.task import write_data

    model = write_model(folder / "model", hidden=128)
    data, _ = write_data(folder)
    command = (
        f"--model {model} --dataset {data} --train_type full --packing true --max_length 512 "
        f"--per_device_train_batch_size 4 --max_steps 150 --learning_rate 4e-3 --logging_steps 50 "
        f"--backend.cpu_threads 1 --output_dir {folder / 'runs'}"
    )
    done = train(parse(command.split(), "sft"))
    assert done.last_checkpoint is not None
    exported = folder / "exported"
    export_checkpoint(done.last_checkpoint, to="hf", options=ExportSection(out=exported), say=lambda _: None)
    return Trained(done.last_checkpoint, data, exported)
