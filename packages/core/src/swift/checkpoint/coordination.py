"""How the processes of a run reach the same verdict about a checkpoint."""

from __future__ import annotations

import errno
from pathlib import Path

import torch.distributed as dist

from swift.errors import SwiftError
from swift.plugins.blame import blamed, error_line
from swift.processes.comms import Comms

_opened: dict[str, tuple[object, Comms]] = {}


def comms_for(purpose: str) -> Comms:
    """Return a control group of its own for each purpose, made at first use by all processes together.

    A background save talks while the main thread may talk too; two threads must never share a group.
    """
    world = dist.group.WORLD if dist.is_initialized() else None
    held = _opened.get(purpose)
    if held is None or held[0] is not world:
        held = (world, Comms())
        _opened[purpose] = held
    return held[1]


def close_comms() -> None:
    """Leave the groups of all purposes, before the processes part: what is kept would keep their ports open."""
    while _opened:
        _, (world, comms) = _opened.popitem()
        if dist.is_initialized() and world is dist.group.WORLD:
            comms.close()


def agree(comms: Comms, error: SwiftError | None) -> None:
    """Raise on every process what went wrong on one: no process waits for one that has given up."""
    verdicts = comms.gather(None if error is None else (type(error), error.message, error.hint))
    if error is not None:
        raise error
    for rank, verdict in enumerate(verdicts):
        if verdict is not None:
            kind, message, hint = verdict
            raise kind(f"{message} (process {rank})", hint=hint)


_CAUSES = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the disk quota is used up",
    errno.EFBIG: "the file is larger than this system allows",
    errno.EROFS: "the file system is read-only",
    errno.EACCES: "permission is denied",
    errno.EPERM: "permission is denied",
    errno.ENOENT: "the folder is gone, or not shared by all machines",
}
_REMEDIES = {
    errno.ENOSPC: "Free some space, or choose another disk with --output_dir.",
    errno.EDQUOT: "Free some space, or choose another disk with --output_dir.",
    errno.EFBIG: "Raise the limit (ulimit -f), or choose another disk with --output_dir.",
    errno.ENOENT: "Every process must see the same folder: take a shared one with --output_dir.",
}


def write_failure(what: str, folder: Path, error: Exception) -> tuple[str, str | None]:
    """Message and hint for a write that failed."""
    blame = blamed(error)
    raised = f" It was raised by {blame}." if blame else ""
    if not isinstance(error, OSError) or (blame and not _is_about(error, folder)):
        return f"{what} could not be written to {folder}: {error_line(error)}{raised}", None
    code = error.errno or 0
    cause = _CAUSES.get(code, error.strerror or str(error))
    remedy = _REMEDIES.get(code, "Take a folder that can be written to with --output_dir.")
    return f"{what} could not be written to {folder}: {cause}.", remedy


def _is_about(error: OSError, folder: Path) -> bool:
    """Return whether a plugin's error is about the folder to write into, and not about a file of its own."""
    if error.filename is None:
        return error.errno in _CAUSES
    return isinstance(error.filename, str) and folder.absolute().parent in Path(error.filename).absolute().parents
