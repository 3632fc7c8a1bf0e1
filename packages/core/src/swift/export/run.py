"""Export of a checkpoint or a model folder, in full precision or quantised."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from swift.checkpoint.folders import find_checkpoint, is_checkpoint
from swift.checkpoint.load import Checkpoint, open_checkpoint
from swift.checkpoint.manifest import Manifest
from swift.checkpoint.weights_location import check_finished, check_weights_of
from swift.config.sections import ExportOptions, ExportSection, ModelSection
from swift.contracts import WeightStream
from swift.errors import CheckpointError, ExportError, UsageError
from swift.export.calibration import calibration_rows
from swift.export.destination import check_destination, default_destination
from swift.export.job import ExportJob, installed_exporter
from swift.export.push import push
from swift.export.quantised import requested_scheme, write_quantised
from swift.export.state import complete, export_state
from swift.export.stored import base_of, stored_weights
from swift.hookspecs import ExporterHooks
from swift.models.config_file import read_config
from swift.models.stored_task import settings_of_folder
from swift.parsing.tasks import CAUSAL_LM, task_of
from swift.terminal import Say, relative, waiting
from swift.untrusted import typed_path

if TYPE_CHECKING:
    from swift.models.source import HfSource
    from swift.plugins.schemes import OfferedScheme


def export_checkpoint(
    path: str | Path,
    *,
    to: str,
    options: ExportSection,
    say: Say,
    exporter: ExporterHooks | None = None,
    trust_remote_code: bool = False,
    model: str | None = None,
) -> Path:
    """Export a checkpoint, the last one of a run, or a model folder, without the engine that trained it. One process.

    `to` is the name of an exporter; `exporter` replaces the installed one of that name. With `ExportOptions` the model
    may be quantised, and uploaded. `trust_remote_code` lets Python code run that comes with the model. `model`
    is where the model is now that a checkpoint was trained on.
    """
    requested = options if isinstance(options, ExportOptions) else ExportOptions(**options.model_dump())
    scheme = requested_scheme(to, requested)
    typed = typed_path(str(path), "The checkpoint", CheckpointError)
    with waiting(f"Opening {typed}"):
        origin = _origin(typed, trust_remote_code, say, model=model)
    destination = options.out or default_destination(
        origin.folder, to=to, quant=requested.quant, is_checkpoint=origin.checkpoint is not None
    )
    check_destination(destination, options)
    exporter = exporter or installed_exporter(to)
    facts = origin.facts
    adapter = None if facts is None else facts.adapter
    config: Any = {} if facts is None else facts.config
    job = ExportJob(
        exporter, to, origin.source, adapter, options, destination, say,
        objective=config.get("objective", {}), system=config.get("data", {}).get("system"),
    )  # fmt: skip
    if scheme is not None:
        _quantise(origin, job, scheme, requested)
    else:
        export_state(job, origin.weights(), is_main=True)
    if requested.push is not None:
        push(destination, requested.push, say=say)
    return destination


@dataclass(frozen=True)
class _Origin:
    """Source of an export: a checkpoint with the model that its training started from, or a model alone."""

    folder: Path
    source: HfSource
    checkpoint: Checkpoint | None = None

    @property
    def facts(self) -> Manifest | None:
        return None if self.checkpoint is None else self.checkpoint.facts

    def weights(self) -> WeightStream:
        if self.checkpoint is not None:
            return stored_weights(self.checkpoint, self.source, self.checkpoint.facts.adapter)
        return ((name, self.source.read(name)) for name in self.source.names())


def _origin(path: Path, trust_remote_code: bool, say: Say, *, model: str | None = None) -> _Origin:
    from swift.models.source import open_source

    if (path / "config.json").exists() and not is_checkpoint(path):
        check_finished(path)
        folder = path.resolve()
        settings = read_config(folder)
        if settings.get("quantization_config"):
            scheme = settings["quantization_config"]
            method = scheme.get("quant_method") if isinstance(scheme, dict) else "something"
            raise UsageError(
                f"{path} is already quantised ({method}).", hint="Export the model in full precision instead."
            )
        say(f"Exporting the model in {folder}")
        section = ModelSection(path=str(folder), trust_remote_code=trust_remote_code)
        section = section.model_copy(update=settings_of_folder(folder))
        source = open_source(section, say=say)
        source.check_has_head()
        return _Origin(folder, source)
    folder = find_checkpoint(path)
    checkpoint = open_checkpoint(folder)
    say(f"Exporting step {checkpoint.facts.step} of {relative(folder)}")
    base = base_of(checkpoint, say, trust_remote_code=trust_remote_code, model=model)
    if checkpoint.facts.adapter is not None:
        check_weights_of(base.folder)
    return _Origin(folder, base, checkpoint)


def _quantise(origin: _Origin, job: ExportJob, scheme: OfferedScheme, options: ExportOptions) -> None:
    """Quantise a model, after writing it in full precision where it is not stored so.

    Calibration data is looked at first: what is wrong with it should be said before anything takes long.
    """
    if task_of(origin.source) != CAUSAL_LM:
        raise ExportError(
            f"--quant supports language models only, not models of task {task_of(origin.source)}.",
            hint="Remove --quant; --dtype bfloat16 halves the size.",
        )
    calibration = calibration_rows(options, scheme, origin.source, origin.facts, say=job.say)
    folder, whole = origin.folder, job.destination.with_name(f".{job.destination.name}.whole")
    try:
        with complete(job):
            if origin.checkpoint is not None or options.dtype != "auto":
                # On the disk that the export goes to.
                shutil.rmtree(whole, ignore_errors=True)
                folder, verify = whole, "none" if options.verify == "none" else "transformers"
                plain = options.model_copy(update={"quant": None, "verify": verify})
                job.say("First exporting the model in full precision, to compare it with the training state")
                first = replace(job, options=plain, destination=whole, intermediate=True)
                export_state(first, origin.weights(), is_main=True)
            write_quantised(folder, job, calibration=calibration, scheme=scheme, options=options)
    finally:
        shutil.rmtree(whole, ignore_errors=True)
    job.say(f"Exported ({job.to}, {scheme.name}) to {job.destination}")
