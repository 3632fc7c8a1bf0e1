"""Saving: into a temporary folder, everything synced, the manifest last, then one rename.

Whatever fails (a full disk, a process that cannot write), all processes learn of it, the temporary folder goes, the
previous checkpoint stays as it was, and all raise the same `CheckpointError`. An asynchronous save copies this
process's share first and writes it in a thread that talks over a group of its own, so that it can finish, rename
included, while training goes on.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from pydantic import JsonValue, TypeAdapter, ValidationError

from swift.checkpoint.container import FileRecord, hash_file, sync, write_json
from swift.checkpoint.coordination import agree, comms_for, write_failure
from swift.checkpoint.folders import LAST, checkpoint_folder, link
from swift.checkpoint.manifest import Manifest, write_manifest
from swift.checkpoint.storage import INDEX, STATE, Index, Share, StreamFiles, index_to_json, plan_shares
from swift.contracts import CheckpointWriter
from swift.errors import CheckpointError, SwiftError
from swift.train.comms import Comms

_FACTS = TypeAdapter(dict[str, JsonValue])


class PendingSave:
    """A save that may still be going on in the background."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._thread: threading.Thread | None = None
        self._error: SwiftError | None = None

    def done(self) -> bool:
        """Whether it has ended, well or not, on this process."""
        return self._thread is None or not self._thread.is_alive()

    def wait(self) -> Path:
        """Wait for the end; the folder, or the `CheckpointError` that all processes raise."""
        if self._thread is not None:
            self._thread.join()
        if self._error is not None:
            raise self._error
        return self.folder

    def _start(self, work: Callable[[], None]) -> None:
        def run() -> None:
            try:
                work()
            except SwiftError as error:
                self._error = error

        # Not a daemon: an interpreter that ends waits for the checkpoint.
        self._thread = threading.Thread(target=run, name="checkpoint")
        self._thread.start()


_in_flight: dict[Path, PendingSave] = {}


def save_checkpoint(
    run_folder: Path,
    step: int,
    *,
    fill: Callable[[CheckpointWriter], None],
    manifest: Manifest,
    is_main: bool,
    extra: Callable[[Path], None] | None = None,
    asynchronous: bool = False,
) -> PendingSave:
    """Save `checkpoint-<step>` in the run's folder and point `last-checkpoint` at it. Called on every process.

    `fill` hands the tensors to the writer. `extra(folder)` may put further files into the folder (weights ready to
    load); it is called on every process, since it may need collectives. With `asynchronous` this returns as soon as
    the tensors are copied; a later save waits for it first, and raises what went wrong with it.
    """
    wait_for_saves(run_folder)
    save = _Save(run_folder, step, manifest, is_main)
    save.prepare(fill, extra, stage=asynchronous)
    pending = PendingSave(save.final)
    if asynchronous:
        # Made here, not in the thread: all processes must make a group at the same point.
        comms = comms_for("background save")
        _in_flight[run_folder.resolve()] = pending
        pending._start(lambda: save.finish(comms))
    else:
        save.finish(save.comms)
    return pending


def wait_for_saves(run_folder: Path) -> None:
    """Wait for a save of this run that is going on in the background, and raise what went wrong with it."""
    previous = _in_flight.pop(run_folder.resolve(), None)
    if previous is not None:
        previous.wait()


class _Writer:
    """The `CheckpointWriter` that a backend sees. It only collects: planning needs all processes."""

    def __init__(self, folder: Path, is_main: bool) -> None:
        self.collected: dict[str, Any] = {}
        self.collected_facts: dict[str, JsonValue] = {}
        self.streamed = StreamFiles(folder)
        self._is_main = is_main

    def tensors(self, tensors: Mapping[str, Any]) -> None:
        """Tensors by canonical name: plain, DTensor or Boxes."""
        for name, tensor in tensors.items():
            if not isinstance(tensor, torch.Tensor):
                raise CheckpointError(f"{name} is a {type(tensor).__name__}, not a tensor; hand it over as a fact.")
            if name in self.collected:
                raise CheckpointError(f"{name} was handed over twice.")
            self.collected[name] = tensor

    def stream(self, tensors: Iterator[tuple[str, torch.Tensor]]) -> None:
        """Whole tensors one at a time; written at once, even when the save is asynchronous."""
        failure: Exception | None = None
        for name, tensor in tensors:
            # Always read to the end: the other processes may be inside the collectives of this stream.
            if self._is_main and failure is None:
                try:
                    self.streamed.add(name, tensor)
                except (OSError, CheckpointError) as error:
                    failure = error
        if failure is not None:
            raise failure
        self.streamed.flush()

    def facts(self, facts: Mapping[str, Any]) -> None:
        """JSON values for the manifest."""
        try:
            self.collected_facts.update(_FACTS.validate_python(dict(facts)))
        except ValidationError as error:
            place = ".".join(map(str, error.errors()[0]["loc"][:1]))
            raise CheckpointError(f"The fact {place!r} is not a JSON value.") from None


class _Save:
    """One save, in two halves: `prepare` while training stands still, `finish` here or in a thread."""

    def __init__(self, run_folder: Path, step: int, manifest: Manifest, is_main: bool) -> None:
        self.final = checkpoint_folder(run_folder, step)
        self.comms = comms_for("checkpoint")
        self._step = step
        self._temporary = self.final.with_name(f"{self.final.name}.tmp")
        self._manifest = manifest
        self._is_main = is_main
        self._writer = _Writer(self._temporary, is_main)
        self._share = Share("", {})
        self._index: Index = {}

    def prepare(
        self, fill: Callable[[CheckpointWriter], None], extra: Callable[[Path], None] | None, *, stage: bool
    ) -> None:
        """Everything that needs the training state."""
        self._together(self.comms, self._make_folder)
        self._together(self.comms, lambda: fill(self._writer))
        try:
            self._share, self._index = plan_shares(self._writer.collected, self.comms, stage=stage)
        except CheckpointError:
            self._discard()
            raise
        if extra is not None:
            self._together(self.comms, lambda: extra(self._temporary))

    def finish(self, comms: Comms) -> None:
        """Write the share; on the main process index, manifest and the name."""
        records: dict[str, FileRecord] = {}
        self._together(comms, lambda: records.update(self._share.write(self._temporary)))
        for written in comms.gather(records):
            records.update(written)
        self._together(comms, lambda: self._publish(records))

    def _together(self, comms: Comms, action: Callable[[], None]) -> None:
        """Do this on every process; when it fails on one, it has failed on all."""
        failure: SwiftError | None = None
        try:
            action()
        except SwiftError as error:
            failure = error
        except Exception as error:
            message, hint = write_failure(f"Checkpoint {self._step}", self._temporary.parent, error)
            failure = CheckpointError(message, hint=hint)
            failure.__cause__ = error
        try:
            agree(comms, failure)
        except SwiftError:
            self._discard()
            raise

    def _make_folder(self) -> None:
        if self._is_main:
            shutil.rmtree(self._temporary, ignore_errors=True)
            (self._temporary / STATE).mkdir(parents=True)

    def _discard(self) -> None:
        if self._is_main:
            shutil.rmtree(self._temporary, ignore_errors=True)

    def _publish(self, records: dict[str, FileRecord]) -> None:
        if not self._is_main:
            return
        for path in sorted(self._temporary.rglob("*")):
            name = path.relative_to(self._temporary).as_posix()
            if path.is_file() and name not in records and name not in self._writer.streamed.records:
                records[name] = hash_file(path)
                sync(path)
        records |= self._writer.streamed.records
        index = {**self._index, **self._writer.streamed.index}
        records[INDEX] = write_json(self._temporary / INDEX, index_to_json(index))
        facts = {**self._manifest.facts, **self._writer.collected_facts}
        write_manifest(
            self._temporary,
            self._manifest.model_copy(update={"step": self._step, "facts": facts, "files": records}),
        )
        for folder in (*(path for path in self._temporary.rglob("*") if path.is_dir()), self._temporary):
            sync(folder)
        self._rename()
        link(self.final.parent, LAST, self._step)
        sync(self.final.parent)

    def _rename(self) -> None:
        replaced = self.final.with_name(f"{self.final.name}.replaced.tmp")
        if self.final.exists():
            # A run that went back to an earlier checkpoint reaches this step again.
            shutil.rmtree(replaced, ignore_errors=True)
            self.final.rename(replaced)
        self._temporary.rename(self.final)
        shutil.rmtree(replaced, ignore_errors=True)
