"""Saving: into a temporary folder, everything synced, the manifest last, then one rename.

Whatever fails (a full disk, a process that cannot write), all processes learn of it, the temporary folder goes, the
previous checkpoint stays as it was, and all raise the same `CheckpointError`. An asynchronous save copies this
process's share first and writes it in a thread that talks over a group of its own, so that it can finish, rename
included, while training goes on.
"""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from pydantic import JsonValue, TypeAdapter, ValidationError

from swift.checkpoint.checksums import FileRecord, hash_file, sync, write_json
from swift.checkpoint.coordination import agree, comms_for, write_failure
from swift.checkpoint.dcp_planners import assign_shards
from swift.checkpoint.folders import LAST, checkpoint_folder, link, whole_checkpoints
from swift.checkpoint.host_copies import work_until_now
from swift.checkpoint.manifest import Manifest, write_manifest
from swift.checkpoint.storage import INDEX, STATE, Index, RankFile, StoredTensors, StreamFiles, index_to_json
from swift.contracts import CheckpointWriter
from swift.errors import CheckpointError, SwiftError
from swift.plugins.blame import blamed, keep_traceback
from swift.processes.comms import Comms
from swift.processes.updates import update_begins

_FACTS = TypeAdapter(dict[str, JsonValue])


class PendingSave:
    """A save that may still be going on in the background."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.waited = 0.0
        """Seconds for which an update has waited for the copy of what it was about to change."""
        self._copied = threading.Event()
        self._thread: threading.Thread | None = None
        self._error: SwiftError | None = None

    def done(self) -> bool:
        """Return whether it has ended, well or not, on this process."""
        return self._thread is None or not self._thread.is_alive()

    def wait(self) -> Path:
        """Wait for the end; the folder, or the `CheckpointError` that all processes raise."""
        if self._thread is not None:
            self._thread.join()
        if self._error is not None:
            raise self._error
        return self.folder

    def wait_for_copy(self) -> None:
        """Until this process may change what is saved."""
        begin = time.monotonic()
        self._copied.wait()
        self.waited += time.monotonic() - begin

    def _start(self, work: Callable[[], None]) -> None:
        def run() -> None:
            try:
                work()
            except SwiftError as error:
                self._error = error
            except Exception as error:
                # Most often the loss of another process. Without this the save would pass for done.
                self._error = CheckpointError(f"{self.folder.name} was not completed: {error}")
                self._error.__cause__ = error
            finally:
                self._copied.set()

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
    extra: Callable[[StoredTensors], None] | None = None,
    asynchronous: bool = False,
    copy_later: bool = False,
) -> PendingSave:
    """Save `checkpoint-<step>` in the run's folder and point `last-checkpoint` at it. Called on every process.

    `fill` hands the tensors to the writer. `extra(stored)` may put further files into `stored.folder` (weights ready
    to load): it is called on the main process alone, when all tensors are on disk to be read from `stored`. With
    `asynchronous` this returns as soon as the tensors are copied, and `extra` too is called in the background; a
    later save waits for it first, and raises what went wrong with it. With `copy_later` even the copy is made in the
    background: what changes the tensors calls `before_update` first.
    """
    wait_for_saves(run_folder)
    save = _Save(run_folder, step, manifest, is_main, extra)
    save.collect(fill)
    pending = PendingSave(save.final)
    if not asynchronous:
        save.plan(save.comms)
        save.finish(save.comms)
        return pending
    written = work_until_now()
    if not copy_later:
        save.copy(save.comms, written, pending._copied)
    # Made here, not in the thread: all processes must make a group at the same point.
    comms = comms_for("background save")

    def work() -> None:
        if copy_later:
            save.copy(comms, written, pending._copied)
        save.finish(comms)

    _in_flight[run_folder.resolve()] = pending
    pending._start(work)
    return pending


def before_update() -> None:
    """Wait until background saves have copied the tensors that they save.

    Backends whose capabilities declare `calls_before_update` call it in every step, when gradients are ready and before
    any weight changes.
    """
    for pending in tuple(_in_flight.values()):
        pending.wait_for_copy()
    update_begins()


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
        """Tensors by canonical name: plain, DTensor or TensorSlices."""
        for name, tensor in tensors.items():
            if not isinstance(tensor, torch.Tensor):
                raise CheckpointError(f"{name} is a {type(tensor).__name__}, not a tensor. Pass it as a fact.")
            if name in self.collected:
                raise CheckpointError(f"{name} was passed twice.")
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
            del tensor  # before the next one is made
        if failure is not None:
            raise failure
        self.streamed.flush()

    def facts(self, facts: Mapping[str, Any]) -> None:
        """JSON values for the manifest."""
        try:
            self.collected_facts.update(_FACTS.validate_python(dict(facts)))
        except ValidationError as error:
            key = ".".join(map(str, error.errors()[0]["loc"][:1]))
            raise CheckpointError(f"The fact {key!r} is not a JSON value.") from None


class _Save:
    """One save: `collect` while training stands still; `plan`, or `copy`, which plans too; and `finish`."""

    def __init__(
        self,
        run_folder: Path,
        step: int,
        manifest: Manifest,
        is_main: bool,
        extra: Callable[[StoredTensors], None] | None,
    ) -> None:
        self.final = checkpoint_folder(run_folder, step)
        self.comms = comms_for("checkpoint")
        self._step = step
        self._temporary = self.final.with_name(f"{self.final.name}.tmp")
        self._manifest = manifest
        self._is_main = is_main
        self._extra = extra
        self._writer = _Writer(self._temporary, is_main)
        self._share = RankFile("", {})
        self._index: Index = {}

    def collect(self, fill: Callable[[CheckpointWriter], None]) -> None:
        """Take the tensors to save."""
        self._together(self.comms, self._make_folder)
        self._together(self.comms, lambda: fill(self._writer))

    def plan(self, comms: Comms) -> None:
        """Agree on which process writes what."""
        try:
            self._share, self._index = assign_shards(self._writer.collected, comms)
        except CheckpointError:
            self._discard()
            raise

    def copy(self, comms: Comms, written: torch.cuda.Event | None, copied: threading.Event) -> None:
        """Plan, and copy this process's share; then `copied` is set, and training may change the tensors."""
        self.plan(comms)

        def stage() -> None:
            try:
                self._share.stage(written)
            finally:
                copied.set()

        self._together(comms, stage)

    def finish(self, comms: Comms) -> None:
        """Write the share; on the main process what is extra, index, manifest and the name."""
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
            if blamed(error) is not None:
                failure.traceback_of = error
                keep_traceback(failure, self._temporary.parent, name=f"traceback-{self.comms.rank}")
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
        index = {**self._index, **self._writer.streamed.index}
        if self._extra is not None:
            self._extra(StoredTensors(self._temporary, index))
        for path in sorted(self._temporary.rglob("*")):
            name = path.relative_to(self._temporary).as_posix()
            if path.is_file() and name not in records and name not in self._writer.streamed.records:
                records[name] = hash_file(path)
                sync(path)
        records |= self._writer.streamed.records
        records[INDEX] = write_json(self._temporary / INDEX, index_to_json(index))
        facts = {**self._manifest.facts, **self._writer.collected_facts}
        write_manifest(
            self._temporary, self._manifest.model_copy(update={"step": self._step, "facts": facts, "files": records})
        )
        for folder in (*(path for path in self._temporary.rglob("*") if path.is_dir()), self._temporary):
            sync(folder)
        self._rename()
        link(self.final.parent, LAST, self._step)
        sync(self.final.parent)

    def _rename(self) -> None:
        replaced = self.final.with_name(f"{self.final.name}.replaced.tmp")
        if self.final.exists():
            # A step that is reached again. `last-checkpoint` must not point at nothing, not even for a moment.
            others = [step for step in whole_checkpoints(self.final.parent) if step != self._step]
            if others:
                link(self.final.parent, LAST, others[-1])
            shutil.rmtree(replaced, ignore_errors=True)
            self.final.rename(replaced)
        self._temporary.rename(self.final)
        shutil.rmtree(replaced, ignore_errors=True)
