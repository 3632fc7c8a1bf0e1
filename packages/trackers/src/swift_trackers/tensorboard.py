"""TensorBoard: the logged lines as scalars in the run's `runs/` folder."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

from swift.config.sections import DEFAULT_OBSERVERS
from swift.contracts import Run, RunSummary, StepRecord
from swift.hookspecs import hookimpl
from swift.installation import pip_install
from swift.observers import mfu_of
from swift.observers.lines import Line, Meter, scalars_of

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter


class TensorBoardObserver:
    """Writes `train/...` and `eval/...` scalars. Without the tensorboard package it does nothing.

    A run that names TensorBoard in `--report_to` then says so; one by default does not.
    """

    def __init__(self) -> None:
        self._installed = find_spec("tensorboard") is not None
        self._writer: SummaryWriter | None = None

    @hookimpl
    def swift_run_start(self, run: Run) -> None:
        self._meter = Meter(run.config.logging.steps, mfu=mfu_of(run))
        if not self._installed and tuple(run.config.logging.report_to) != DEFAULT_OBSERVERS:
            command = pip_install("swift-core[tensorboard]")
            run.say(f"TensorBoard is not installed ({command}). Curves are in report.html.")

    @hookimpl
    def swift_step_end(self, run: Run, record: StepRecord) -> None:
        if not self._installed or not run.folder.is_dir():
            return  # a thread of TensorBoard would raise, unnoticed, on writing into a folder that is gone
        if self._writer is None:
            from torch.utils.tensorboard import SummaryWriter

            # A resumed run repeats some steps: what an earlier session wrote of them must not be shown.
            self._writer = SummaryWriter(str(run.folder / "runs"), purge_step=record.step)
            self._writer.flush()
        line = self._meter.take(record)
        if line is not None:
            _write(self._writer, line)

    @hookimpl
    def swift_run_end(self, run: Run, summary: RunSummary) -> None:
        writer, self._writer = self._writer, None
        if writer is None or not run.folder.is_dir():
            return
        line = self._meter.rest()
        if line is not None:
            _write(writer, line)
        writer.close()


def _write(writer: SummaryWriter, line: Line) -> None:
    for tag, value in scalars_of(line).items():
        writer.add_scalar(tag, value, line["step"])
    writer.flush()  # before the folder may be gone: a thread writes
