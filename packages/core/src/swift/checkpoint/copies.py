"""Copies of a run behind a URL (`checkpoint.copy_to`): where they lie, and how a run comes back from them."""

from __future__ import annotations

from pathlib import Path

from swift.checkpoint.manifest import FOLDER_NAME, MANIFEST
from swift.config.sections import Config
from swift.errors import CheckpointError
from swift.files import user_cache
from swift.remote.fetch import LOCK, fetch, fetch_into, locked
from swift.remote.forked import forked
from swift.remote.urls import check_protocol, is_remote, open_url, unreachable
from swift.terminal import waiting


def copy_url(config: Config, run_folder: Path) -> str:
    """Return the URL of a run's copy: it lies below `copy_to` as the run does below `logging.output`."""
    output, folder = config.logging.output.resolve(), run_folder.resolve()
    below = folder.relative_to(output) if folder.is_relative_to(output) else Path(folder.parent.name, folder.name)
    return f"{(config.checkpoint.copy_to or '').rstrip('/')}/{below.as_posix()}"


def newest_copy(url: str) -> str | None:
    """Return the URL of the newest whole checkpoint of the run behind a URL, if it has one."""
    return forked(_newest, url, error=CheckpointError) or None


def on_this_machine(name: str) -> str:
    """Return the folder with the copy of what lies behind a URL, a run's newest checkpoint; other names as they are."""
    if not is_remote(name):
        return name
    check_protocol(name, error=CheckpointError, hint="Copy it to this machine, and name the folder.")
    hint = "Name another folder for caches: export XDG_CACHE_HOME=FOLDER"
    with waiting(f"Copying {name}"):
        url = newest_copy(name.rstrip("/")) or name.rstrip("/")
        return str(fetch(url, user_cache(), error=CheckpointError, last=MANIFEST, hint=hint))


def bring_back(config: Config, run_folder: Path) -> None:
    """Copy a run's newest checkpoint and its files to this machine, which has none of its checkpoints."""
    url = copy_url(config, run_folder)
    with waiting(f"Looking for the run in {url}"):
        newest = newest_copy(url)
        if newest is None:
            return
        forked(_files, url, run_folder, error=CheckpointError)  # before the checkpoint: whose folder has one, has all
        fetch_into(newest, run_folder / newest.rpartition("/")[2], error=CheckpointError, last=MANIFEST)


def _newest(url: str) -> str:
    system, base = open_url(url, error=CheckpointError)
    try:
        entries = [str(each).rstrip("/").rpartition("/")[2] for each in system.ls(base, detail=False)]
        steps = sorted((int(found[1]), name) for name in entries if (found := FOLDER_NAME.fullmatch(name)))
        whole = (name for _step, name in reversed(steps) if system.exists(f"{base.rstrip('/')}/{name}/{MANIFEST}"))
        newest = next(whole, None)
    except FileNotFoundError:
        return ""
    except Exception as problem:  # every file system raises what it likes
        raise unreachable(url, problem, error=CheckpointError) from None
    return "" if newest is None else f"{url}/{newest}"


def _files(url: str, folder: Path) -> str:
    system, base = open_url(url, error=CheckpointError)
    try:
        with locked(folder, LOCK):
            for each in system.ls(base, detail=True):
                name = str(each["name"]).rstrip("/").rpartition("/")[2]
                if each["type"] == "file" and not name.startswith(".") and name and not (folder / name).exists():
                    system.get_file(each["name"], str(folder / f".{name}"))
                    (folder / f".{name}").rename(folder / name)
    except Exception as problem:
        raise unreachable(url, problem, error=CheckpointError) from None
    return str(folder)
