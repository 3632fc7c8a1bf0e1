"""A run's folder: how it is named, what core writes into it at the start, and how other commands read it.

    output/<model>/vN-YYYYMMDD-HHMMSS/
      args.json  config.yaml  samples.json  logging.jsonl  report.html  runs/  images/  checkpoint-<step>/ ...

This module does not import torch.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import re
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import yaml

from swift.config.sections import Config
from swift.errors import CheckpointError, ConfigError
from swift.files import replace_file
from swift.untrusted import check_regular
from swift.version import __version__

ARGS_FILE = "args.json"
CONFIG_FILE = "config.yaml"
LOCK_FILE = ".lock"
REPORT_FILE = "report.html"
"""The curves, which the observer `report` of swift-trackers writes."""

_NO_LOCKS_HERE = {errno.ENOSYS, errno.ENOLCK, errno.ENOTSUP}
"""What file systems mounted without locks answer (Lustre's `noflock`)."""


def create_run_folder(config: Config, model_name: str) -> Path:
    """Make the folder of a new run and return its absolute path.

    Without `logging.run_name` two runs that start at once get two folders. A `run_name` that exists is taken up again
    where the run resumes, and refused otherwise.
    """
    parent = _parent(config, model_name)
    try:
        parent.mkdir(parents=True, exist_ok=True)
        if config.logging.run_name is None:
            return _make_numbered(parent)
        return _make_named(parent / config.logging.run_name, resuming=config.checkpoint.resume is not None)
    except OSError as error:
        raise ConfigError(
            f"Cannot make a run's folder in {parent}: {error.strerror}.",
            hint="Give another parent with --output_dir FOLDER.",
        ) from error


def named_run_folder(config: Config, model_name: str) -> Path | None:
    """Return where the run lies that has the name in `logging.run_name`, if it was begun."""
    if config.logging.run_name is None:
        raise ConfigError(
            "'auto' resumes the run of a name, and this run has none.",
            hint="Name it, the same each time: --logging.run_name NAME. Or resume the newest run: "
            "--resume_from_checkpoint last",
        )
    folder = folder_of_name(config, model_name)
    return folder if (folder / ARGS_FILE).is_file() else None


def folder_of_name(config: Config, model_name: str) -> Path:
    """Return where the run lies, or will lie, that has the name in `logging.run_name`."""
    return _parent(config, model_name) / (config.logging.run_name or "")


class RunLock:
    """Keeps a run's folder to one run. Released by `release`, at the end of `with`, or when the process ends."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor: int | None = descriptor

    def release(self) -> None:
        """Let others have the folder."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def __enter__(self) -> RunLock:
        return self

    def __exit__(self, *exception: object) -> None:
        self.release()


@dataclass(frozen=True)
class RunClaim:
    """A run's folder with its lock, on the main process."""

    folder: Path
    lock: RunLock
    before: Path | None = None
    """The innermost folder around it that was there before; None for a folder that is not new."""

    def discard(self) -> None:
        """Release the folder and, where it is new and holds nothing yet, remove it: the run did not begin."""
        if self.before is not None:
            with contextlib.suppress(OSError):
                (self.folder / LOCK_FILE).unlink(missing_ok=True)
                for made in (self.folder, *self.folder.parents):
                    if made == self.before:
                        break
                    made.rmdir()
        self.lock.release()


def claim_new_folder(config: Config, model_name: str) -> RunClaim:
    """Make the folder of a new run, and lock it."""
    parent = _parent(config, model_name)
    requested = parent / (config.logging.run_name or "")
    before = next((path for path in (requested, *requested.parents) if path.exists()), None)
    folder = create_run_folder(config, model_name)
    return RunClaim(folder, lock_run_folder(folder), before)


def lock_run_folder(folder: Path, *, patience: float = 0.0) -> RunLock:
    """Claim the folder for this process (the main one of a run), or refuse if another run is writing into it.

    `patience` is for how many seconds the other may still be about to end.
    """
    until = time.monotonic() + patience
    while True:
        try:
            return _lock(folder)
        except ConfigError:
            if time.monotonic() >= until:
                raise
            time.sleep(0.5)


def run_of_launcher(output: Path, launchers: Collection[str]) -> Path | None:
    """Return the newest run under `output` that one of these launchers started, before it started these processes."""
    found = []
    for path in output.glob(f"*/*/{ARGS_FILE}"):
        with contextlib.suppress(OSError, CheckpointError):
            earlier = _parse_args(path, path.read_text(encoding="utf-8")).get("environment", {})
            if set(earlier.get("launchers") or ()) & set(launchers):
                found.append((path.stat().st_mtime, path.parent))
    return max(found)[1] if found else None


def _lock(folder: Path) -> RunLock:
    try:
        descriptor = os.open(folder / LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise ConfigError(
            f"Cannot write into {folder}: {error.strerror}.", hint="Give another parent with --output_dir FOLDER."
        ) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in _NO_LOCKS_HERE:
            holder = os.read(descriptor, 100).decode(errors="replace").strip()
            os.close(descriptor)
            raise ConfigError(
                f"Another run ({holder or 'unknown'}) is writing into {folder}.",
                hint="Wait for it, or give this one a folder of its own with --logging.run_name NAME.",
            ) from error
    os.ftruncate(descriptor, 0)
    os.write(descriptor, f"process {os.getpid()} on {os.uname().nodename}\n".encode())
    return RunLock(descriptor)


def check_run_files(folder: Path) -> None:
    """Refuse a folder in which something else than a file has the name of one that a run writes or goes on with."""
    for name in (CONFIG_FILE, ARGS_FILE, "logging.jsonl", REPORT_FILE, "samples.json", "val_dataset.jsonl"):
        if (folder / name).exists() or (folder / name).is_symlink():
            check_regular(folder / name, ConfigError)


def write_run_files(folder: Path, config: Config, plugins: Mapping[str, str], environment: Mapping[str, Any]) -> None:
    """Write `config.yaml`, which `--config` reads back, and `args.json`, which tells other commands what was trained.

    `args.json` is flat: `model.path`, `tuner.kind`, `backend.name`, ... as in the flags' names, and next to them
    `swift_version`, `plugins` and `environment`.
    """
    sections = config.model_dump(mode="json")
    heading = f"# Written by swift {__version__}. The same run again: swift train --config {CONFIG_FILE}\n"
    body = yaml.safe_dump(sections, sort_keys=False, allow_unicode=True)
    replace_file(folder / CONFIG_FILE, heading + body)
    args = {
        "swift_version": __version__,
        **{f"{section}.{field}": value for section, fields in sections.items() for field, value in fields.items()},
        "plugins": dict(plugins),
        "environment": dict(environment),
    }
    text = json.dumps(args, indent=2, ensure_ascii=False, default=str)
    replace_file(folder / ARGS_FILE, text + "\n")


def _parse_args(path: Path, text: str) -> dict[str, Any]:
    try:
        args = json.loads(text)
    except json.JSONDecodeError as error:
        raise CheckpointError(f"{path} is damaged: {error.msg} in line {error.lineno}.") from error
    if not isinstance(args, dict):
        raise CheckpointError(f"{path} is damaged: it does not hold a JSON object.")
    return args


def _parent(config: Config, model_name: str) -> Path:
    return config.logging.output.absolute() / _folder_name(model_name)


def _folder_name(model_name: str) -> str:
    """Return the last part of a path or hub id, without what file systems and shells take for something else."""
    last = model_name.rstrip("/").rsplit("/", 1)[-1]
    return re.sub(r"[^\w.-]+", "-", last).strip(".-") or "model"


def _make_numbered(parent: Path) -> Path:
    versions = [int(found[1]) for child in parent.glob("v*") if (found := re.match(r"v(\d+)-", child.name))]
    version = max(versions, default=-1) + 1
    while True:
        folder = parent / f"v{version}-{datetime.now():%Y%m%d-%H%M%S}"
        try:
            folder.mkdir(parents=True)  # another run that did not begin may have removed the parent again
            return folder
        except FileExistsError:
            version += 1


def _make_named(folder: Path, *, resuming: bool) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    if not resuming and any(child.name != LOCK_FILE for child in folder.iterdir()):
        raise ConfigError(
            f"{folder} holds something already.",
            hint=f"Resume that run with --resume_from_checkpoint {folder}, or choose another --logging.run_name.",
        )
    return folder
