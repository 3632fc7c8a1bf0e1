"""Whether Python code that comes with a model may run: the flag of this very command or a caller's argument decides.

Manifests, configurations of runs and the model's own files may have been written by anybody. What they say about trust
is shown to the user, with the flag to type, and never followed.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from swift.errors import ModelError
from swift.models.config_file import CONFIG
from swift.untrusted import is_file

if TYPE_CHECKING:
    from swift.config.sections import ModelSection

TRUST_FLAG = "--trust_remote_code true"


def section_from_file(section: ModelSection, file: Path, *, trust_remote_code: bool) -> ModelSection:
    """Return the `model` section that a file holds, with the trust of this command instead of the file's.

    A relative path is looked up in the current folder, then in those around the file, in one of which the run was
    started.

    Raises `ModelError` where the file asks for trust that this command was not given: without its own code the model
    might load as something else.
    """
    if section.trust_remote_code and not trust_remote_code:
        raise ModelError(
            f"{file} requests to run the Python code that comes with the model {section.path} "
            "(model.trust_remote_code: true), and only the command line can allow that.",
            hint=f"If you trust the authors of the model and of this folder, add {TRUST_FLAG}",
        )
    path = section.path and _path_near(section.path, file)
    return section.model_copy(update={"trust_remote_code": trust_remote_code, "path": path})


def _path_near(path: str, file: Path) -> str:
    for folder in (Path(), *file.resolve().parents):
        if is_file(folder / path / CONFIG):
            return str(folder / path)
    return path
