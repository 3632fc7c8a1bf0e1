"""Checkpoint folders of a run: which are whole, which is the last, and which go."""

from __future__ import annotations

import shutil
from pathlib import Path

from swift.checkpoint.copies import on_this_machine
from swift.checkpoint.manifest import FOLDER_NAME, MANIFEST
from swift.errors import CheckpointError, did_you_mean
from swift.remote.urls import is_remote
from swift.untrusted import typed_path

LAST = "last-checkpoint"
BEST = "best-checkpoint"


def checkpoint_folder(run_folder: Path, step: int) -> Path:
    """Return where the checkpoint of a step lies."""
    return run_folder / f"checkpoint-{step}"


def whole_checkpoints(run_folder: Path) -> dict[int, Path]:
    """Checkpoints of a run by step, in order. A folder gets its name only when it is whole."""
    found = {}
    for path in run_folder.glob("checkpoint-*"):
        match = FOLDER_NAME.fullmatch(path.name)
        if match and (path / MANIFEST).is_file():
            found[int(match[1])] = path
    return dict(sorted(found.items()))


def is_checkpoint(path: Path) -> bool:
    """Return whether this is a checkpoint of swift, or the folder of a run that has one."""
    return (path / MANIFEST).is_file() or bool(whole_checkpoints(path))


def link(run_folder: Path, name: str, step: int) -> None:
    """Point `last-checkpoint` or `best-checkpoint` at a step; a reader sees the old target or the new one."""
    fresh = run_folder / f".{name}.tmp"
    fresh.unlink(missing_ok=True)
    fresh.symlink_to(checkpoint_folder(run_folder, step).name)
    fresh.replace(run_folder / name)


def set_aside(folder: Path) -> Path:
    """Rename a checkpoint, so that a half-removed one never looks complete; returns the folder to be removed."""
    doomed = folder.with_name(f"{folder.name}.removed.tmp")
    shutil.rmtree(doomed, ignore_errors=True)
    return folder.rename(doomed)


def outdated(run_folder: Path, keep: int, best_step: int | None = None) -> list[Path]:
    """Checkpoints beyond the `keep` newest ones, the best one and the last one."""
    checkpoints = whole_checkpoints(run_folder)
    kept = set(list(checkpoints)[-keep:]) | {best_step}
    last = (run_folder / LAST).resolve()
    return [folder for step, folder in checkpoints.items() if step not in kept and folder.resolve() != last]


def prune(run_folder: Path, keep: int, best_step: int | None = None) -> list[Path]:
    """Keep the `keep` newest checkpoints and the best one; returns the removed ones. Main process only."""
    gone = outdated(run_folder, keep, best_step)
    for folder in gone:
        shutil.rmtree(set_aside(folder))
    return gone


def clean_stale(run_folder: Path) -> list[Path]:
    """Remove what interrupted saves left behind; main process only, when it has claimed the run's folder."""
    for replaced in run_folder.glob("checkpoint-*.replaced.tmp"):
        whole = replaced.with_name(replaced.name.removesuffix(".replaced.tmp"))
        if not whole.exists():
            replaced.rename(whole)  # the one that was to take its place never came
    stale = [*run_folder.glob("checkpoint-*.tmp"), *run_folder.glob(".*-checkpoint.tmp")]
    for path in stale:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
    return stale


def earlier_checkpoint(folder: Path) -> Path | None:
    """Return the newest checkpoint of the same run before this one."""
    match = FOLDER_NAME.fullmatch(folder.name)
    steps = [step for step in whole_checkpoints(folder.parent) if match and step < int(match[1])]
    return checkpoint_folder(folder.parent, steps[-1]) if steps else None


def find_checkpoint(where: str | Path, *, output: Path = Path("output")) -> Path:
    """Return the checkpoint folder that the user means.

    `where` is a checkpoint folder, a run folder (its last checkpoint), a URL of one of these, or 'last': the last
    checkpoint of the newest run under `output`.
    """
    if isinstance(where, str) and is_remote(where):
        return find_checkpoint(Path(on_this_machine(where)))
    path = typed_path(str(where), "The checkpoint", CheckpointError)
    if str(where) == "last" and not path.exists():
        return _newest_run(output)
    if (path / MANIFEST).is_file():
        return path.resolve()
    if path.is_dir():
        found = last_checkpoint(path)
        if found is not None:
            return found
    unfinished = _unfinished(path)
    if unfinished is not None:
        raise CheckpointError(
            f"{unfinished.name} is still being written, or its writing was interrupted.",
            hint=f"Wait until it has lost its ending .tmp, or name an earlier one. {_others(path)}".rstrip(),
        )
    raise CheckpointError(f"There is no checkpoint at {where}.{_suggestion(path)}", hint=_hint(path))


def last_checkpoint(run_folder: Path) -> Path | None:
    """Return the last whole checkpoint of a run, if it has one."""
    linked = run_folder / LAST
    if (linked / MANIFEST).is_file():
        return linked.resolve()
    checkpoints = list(whole_checkpoints(run_folder).values())
    return checkpoints[-1].resolve() if checkpoints else None


def _newest_run(output: Path) -> Path:
    manifests = [path for depth in ("*", "*/*") for path in output.glob(f"{depth}/checkpoint-*/{MANIFEST}")]
    manifests = [path for path in manifests if FOLDER_NAME.fullmatch(path.parent.name)]
    if not manifests:
        raise CheckpointError(
            f"No run under {output} has a checkpoint to resume from.",
            hint="Name one with --resume_from_checkpoint <folder>, or start afresh without that flag.",
        )
    newest = max(manifests, key=lambda path: path.stat().st_mtime)
    found = last_checkpoint(newest.parent.parent)
    assert found is not None
    return found


def _unfinished(path: Path) -> Path | None:
    """Return an unfinished checkpoint where the user looked: the folder itself, under its later name, or in the run."""
    candidates = [path, path.with_name(f"{path.name}.tmp"), *sorted(path.glob("checkpoint-*.tmp"))]
    return next((each for each in candidates if each.name.endswith(".tmp") and each.is_dir()), None)


def _others(path: Path) -> str:
    there = [folder.name for folder in whole_checkpoints(path.parent).values()] if path.parent.is_dir() else []
    return f"Checkpoints there: {', '.join(there[-8:])}." if there else ""


def _suggestion(path: Path) -> str:
    parent = path.parent
    if path.exists() or not parent.is_dir():
        return ""
    return did_you_mean(path.name, [entry.name for entry in parent.iterdir() if entry.is_dir()])


def _hint(path: Path) -> str:
    if others := _others(path):
        return others
    if (path / "adapter_config.json").is_file() or (path / "config.json").is_file():
        return "This folder holds weights alone: start from them with --model, or with --tuner.adapter."
    return "Name a folder checkpoint-<step>, or a run folder that has one."
