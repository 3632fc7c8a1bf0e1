"""Checkpoint folders of a run: which are whole, which is the last, and which go."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from swift.checkpoint.manifest import MANIFEST
from swift.errors import CheckpointError, did_you_mean

LAST = "last-checkpoint"
BEST = "best-checkpoint"

_NAME = re.compile(r"checkpoint-(\d+)")


def checkpoint_folder(run_folder: Path, step: int) -> Path:
    """Where the checkpoint of a step lies."""
    return run_folder / f"checkpoint-{step}"


def whole_checkpoints(run_folder: Path) -> dict[int, Path]:
    """Checkpoints of a run by step, in order. A folder gets its name only when it is whole."""
    found = {}
    for path in run_folder.glob("checkpoint-*"):
        match = _NAME.fullmatch(path.name)
        if match and (path / MANIFEST).is_file():
            found[int(match[1])] = path
    return dict(sorted(found.items()))


def link(run_folder: Path, name: str, step: int) -> None:
    """Point `last-checkpoint` or `best-checkpoint` at a step; a reader sees the old target or the new one."""
    fresh = run_folder / f".{name}.tmp"
    fresh.unlink(missing_ok=True)
    fresh.symlink_to(checkpoint_folder(run_folder, step).name)
    fresh.replace(run_folder / name)


def remove(folder: Path) -> None:
    """Remove a checkpoint in such a way that a half-removed one never looks whole."""
    doomed = folder.with_name(f"{folder.name}.tmp")
    shutil.rmtree(doomed, ignore_errors=True)
    folder.rename(doomed)
    shutil.rmtree(doomed)


def prune(run_folder: Path, keep: int, best_step: int | None = None) -> list[int]:
    """Keep the `keep` newest checkpoints and the best one; return the steps of those that went. Main process only."""
    checkpoints = whole_checkpoints(run_folder)
    kept = set(list(checkpoints)[-keep:]) | {best_step}
    last = (run_folder / LAST).resolve()
    gone = [step for step, folder in checkpoints.items() if step not in kept and folder.resolve() != last]
    for step in gone:
        remove(checkpoints[step])
    return gone


def clean_stale(run_folder: Path) -> list[Path]:
    """Remove what interrupted saves left behind; main process only, before the run's first save."""
    stale = [*run_folder.glob("checkpoint-*.tmp"), *run_folder.glob(".*-checkpoint.tmp")]
    for path in stale:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
    return stale


def find_checkpoint(where: str | Path, *, output: Path = Path("output")) -> Path:
    """The checkpoint folder that the user means.

    `where` is a checkpoint folder, a run folder (its last checkpoint), or 'last': the last checkpoint of the newest
    run under `output`.
    """
    if str(where) == "last" and not Path(where).exists():
        return _newest_run(output)
    path = Path(where).expanduser()
    if (path / MANIFEST).is_file():
        return path.resolve()
    if path.is_dir():
        found = _last_of(path)
        if found is not None:
            return found
    raise CheckpointError(f"There is no checkpoint at {where}.{_suggestion(path)}", hint=_hint(path))


def _last_of(run_folder: Path) -> Path | None:
    linked = run_folder / LAST
    if (linked / MANIFEST).is_file():
        return linked.resolve()
    checkpoints = list(whole_checkpoints(run_folder).values())
    return checkpoints[-1].resolve() if checkpoints else None


def _newest_run(output: Path) -> Path:
    manifests = [path for depth in ("*", "*/*") for path in output.glob(f"{depth}/checkpoint-*/{MANIFEST}")]
    manifests = [path for path in manifests if _NAME.fullmatch(path.parent.name)]
    if not manifests:
        raise CheckpointError(
            f"No run under {output} has a checkpoint to resume from.",
            hint="Name one with --resume_from_checkpoint <folder>, or start afresh without that flag.",
        )
    newest = max(manifests, key=lambda path: path.stat().st_mtime)
    found = _last_of(newest.parent.parent)
    assert found is not None
    return found


def _suggestion(path: Path) -> str:
    parent = path.parent
    if path.exists() or not parent.is_dir():
        return ""
    return did_you_mean(path.name, [entry.name for entry in parent.iterdir() if entry.is_dir()])


def _hint(path: Path) -> str:
    siblings = [folder.name for folder in whole_checkpoints(path.parent).values()] if path.parent.is_dir() else []
    if siblings:
        return f"There are: {', '.join(siblings[-8:])}."
    if (path / "adapter_config.json").is_file() or (path / "config.json").is_file():
        return "This folder holds weights alone: start from them with --model, or with --tuner.adapter."
    return "Name a folder checkpoint-<step>, or a run folder that has one."
