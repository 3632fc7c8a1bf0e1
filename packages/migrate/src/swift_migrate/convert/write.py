"""Export of checkpoints to third-party formats, tensor by tensor, without a model in memory."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from swift.checkpoint import Checkpoint, find_checkpoint, open_checkpoint
from swift.config.own_options import AdamOptions, LoraOptions
from swift.config.sections import ExportSection
from swift.contracts import ExportRequest, TrainedState
from swift.errors import CheckpointError, SwiftError, UsageError, did_you_mean
from swift.export import base_of, export_checkpoint, put_in_place, stored_weights
from swift.models import copy_tokenizer
from swift.models.quiet import quiet_libraries
from swift.plugins import implements, install_command, load_plugin, open_hooks, plugin_names, write_third_party
from swift.terminal import Say
from swift_migrate.convert.hf_folder import OPTIMIZER
from swift_migrate.convert.stored_state import StoredState
from swift_migrate.convert.trainer_folder import write_optimizer, write_trainer_state

if TYPE_CHECKING:
    from swift.models import HfSource

Writer = Callable[[TrainedState, Path], None]

TRAINER = "trainer"
MODELS = ("hf", "adapter")
_WHOLE_SHARDS = 10.0**6  # the Trainer reads its own fp32 weights, in one file or several; one is simplest to move


def convert_to(path: Path, *, to: str, out: Path, say: Say, trust_remote_code: bool = False) -> Path:
    """Write a checkpoint, or the last one of a run, to `out` in the format `to`."""
    quiet_libraries()
    if out.exists():
        raise CheckpointError(f"{out} already exists.", hint="Choose another folder with --out.")
    if to in MODELS:
        options = ExportSection(to=to, out=out, verify="none")
        return export_checkpoint(path, to=to, options=options, say=say, trust_remote_code=trust_remote_code)
    writer = None if to == TRAINER else _writer_of(to)
    folder = find_checkpoint(path)
    checkpoint = open_checkpoint(folder)
    source = base_of(checkpoint, say, trust_remote_code=trust_remote_code)
    state = StoredState(checkpoint, source)
    say(f"Converting step {state.step} of {folder}")
    temporary = out.with_name(f".{out.name}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    try:
        if writer is None:
            _write_trainer(temporary, checkpoint, source, state, say)
        else:
            writer(state, temporary)
            if not state.slots():
                say("The checkpoint has no AdamW state, so none was written.")
        put_in_place(temporary, out)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    say(f"Converted ({to}) to {out}")
    return out


def _write_trainer(folder: Path, checkpoint: Checkpoint, source: HfSource, state: StoredState, say: Say) -> None:
    adapter = state.adapter
    options = ExportSection(dtype="float32", shard_size_gb=_WHOLE_SHARDS, verify="none")
    hooks = open_hooks(exporter=load_plugin("swift.exporters", "hf" if adapter is None else "adapter"))
    hooks.swift_export(
        None, stored_weights(checkpoint, source, adapter), ExportRequest(folder, source, adapter, options)
    )
    if adapter is not None:
        copy_tokenizer(source.folder, folder, template=None)
    write_trainer_state(folder, state, checkpoint)
    if not state.slots():
        say("The checkpoint has no AdamW state: the Trainer resumes from its weights and step only.")
        return
    write_optimizer(folder, state)
    _report_losses(source, state, say)


def _report_losses(source: HfSource, state: StoredState, say: Say) -> None:
    if not state.optim_is_known:
        adam = state.optim.options(AdamOptions)
        defaults = f"{state.peak}, {state.optim.weight_decay}, {adam.beta1}, {adam.beta2}"
        say(
            f"The checkpoint has no learning rate, weight decay and betas; {OPTIMIZER}, which overrides the Trainer's "
            f"arguments, has swift's defaults: {defaults}."
        )
    if state.config.tuner.options(LoraOptions).lora_plus_ratio is not None:
        say("The Trainer has one learning rate for all adapters: the separate rate of LoRA+ is lost.")
    if any(len(source.name_map.pieces(name)) > 1 for name in source.name_map.parameters()):
        say(
            "The Trainer does not load fused experts when it resumes: load the model from the folder with "
            "from_pretrained first."
        )


def _writer_of(name: str) -> Writer:
    """Return the writer of an installed backend."""
    known = [TRAINER, *MODELS]
    for backend_name in plugin_names("swift.backends"):
        try:
            backend = load_plugin("swift.backends", backend_name)
            if not implements(backend, "swift_write_third_party"):
                continue
        except SwiftError:
            continue  # `swift plugins --check` reports it
        if backend_name == name:
            return partial(write_third_party, backend)
        known.append(backend_name)
    command = install_command("swift.backends", name)
    raise UsageError(
        f"Unknown format {name!r}.{did_you_mean(name, known)}",
        hint=f"Installed formats: {', '.join(known)}." + (f" To install it type {command}" if command else ""),
    )
