"""Export of checkpoints to third-party formats, tensor by tensor, without a model in memory."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from swift.checkpoint import Checkpoint, find_checkpoint, open_checkpoint
from swift.config.own_options import AdamOptions, LoraOptions
from swift.config.sections import ExportSection
from swift.contracts import ExportRequest, TrainedState
from swift.errors import CheckpointError, SwiftError, UsageError, did_you_mean
from swift.export import base_of, export_checkpoint, put_in_place, stored_weights
from swift.models import HfSource, copy_tokenizer
from swift.models.quiet import quiet_libraries
from swift.plugins import (
    LoadedPlugin,
    implements,
    install_command,
    load_plugin,
    open_hooks,
    plugin_names,
    write_third_party,
)
from swift.terminal import Say
from swift_migrate.convert.hf_folder import OPTIMIZER
from swift_migrate.convert.stored_state import StoredState
from swift_migrate.convert.trainer_folder import write_optimizer, write_trainer_state

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
    with new_folder(out) as temporary:
        if writer is None:
            _write_trainer(temporary, checkpoint, source, state, say)
        else:
            writer(state, temporary)
            if not state.slots():
                say("The checkpoint has no AdamW state, so none was written.")
    say(f"Converted ({to}) to {out}")
    return out


@contextmanager
def new_folder(out: Path) -> Iterator[Path]:
    """Yield a folder to write into, which becomes `out` when all of it is written."""
    temporary = out.with_name(f".{out.name}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    try:
        yield temporary
        put_in_place(temporary, out)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


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


def backends_with(hook: str) -> Iterator[tuple[str, LoadedPlugin]]:
    """Yield the installed backends that implement a hook, by name."""
    for name in plugin_names("swift.backends"):
        with suppress(SwiftError):  # `swift plugins --check` reports it
            backend = load_plugin("swift.backends", name)
            if implements(backend, hook):
                yield name, backend


def _writer_of(name: str) -> Writer:
    """Return the writer of an installed backend."""
    known = [TRAINER, *MODELS]
    for backend_name, backend in backends_with("swift_write_third_party"):
        if backend_name == name:
            return partial(write_third_party, backend)
        known.append(backend_name)
    command = install_command("swift.backends", name)
    raise UsageError(
        f"Unknown format {name!r}.{did_you_mean(name, known)}",
        hint=f"Installed formats: {', '.join(known)}." + (f" To install it type {command}" if command else ""),
    )
