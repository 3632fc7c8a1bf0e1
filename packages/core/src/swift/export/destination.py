"""Where an export is written: whether it may be, told without loading anything, and how it takes its name."""

from __future__ import annotations

import shutil
from pathlib import Path

from swift.checkpoint.checksums import sync
from swift.config.sections import ExportSection
from swift.errors import UsageError

VERIFICATION = "verification.json"
"""What a verified export says about itself."""


def default_destination(folder: Path, *, to: str, quant: str | None, is_checkpoint: bool) -> Path:
    """Return where an export of a checkpoint or a model goes that was given no place."""
    name = f"export-{to if quant is None else quant}"
    return folder.parent / (name if is_checkpoint else f"{folder.name}-{name}")


def check_destination(
    destination: Path, options: ExportSection, *, out: str = "--out", exist_ok: str = "--exist_ok true"
) -> None:
    """Refuse to write over what is there; `out` and `exist_ok` are the flags that choose otherwise."""
    if not destination.exists() and not destination.is_symlink():  # a link to nowhere is something that is there
        return
    if not options.exist_ok:
        raise UsageError(
            f"{destination} already exists.",
            hint=f"Choose another folder with {out}, or add {exist_ok} to replace it.",
        )
    known = (VERIFICATION, "config.json", "adapter_config.json")
    is_export = any((destination / name).is_file() for name in known)
    if not destination.is_dir() or (any(destination.iterdir()) and not is_export):
        raise UsageError(
            f"{destination} is not an export, so it is not replaced.", hint=f"Choose another folder with {out}."
        )


def put_in_place(temporary: Path, destination: Path) -> None:
    """Make what was written last, and give it its name at once."""
    for path in temporary.rglob("*"):
        sync(path)
    sync(temporary)
    if destination.exists():
        replaced = destination.with_name(f".{destination.name}.replaced")
        shutil.rmtree(replaced, ignore_errors=True)
        destination.rename(replaced)
        temporary.rename(destination)
        shutil.rmtree(replaced)
    else:
        temporary.rename(destination)
    sync(destination.parent)
