"""From what a user types to a folder on this machine: a path, a short name, or a hub id."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from swift.errors import ModelError
from swift.model_names import nearest_alias, resolve_name
from swift.models.gguf import dequantized, described, gguf_file
from swift.remote.hub_cache import REACH_SECONDS
from swift.untrusted import typed_path

if TYPE_CHECKING:
    from swift.config.sections import ModelSection

WANTED = ["*.json", "*.safetensors", "*.model", "*.txt", "*.jinja", "*.tiktoken"]
UNWANTED = ["consolidated*", "original/*", "onnx/*"]
_NO_HUB = "Pass a local folder with --model path/to/folder, or download the model on a machine with network access."


def locate_model(section: ModelSection, *, say: Callable[[str], None]) -> tuple[str, Path]:
    """(name to remember, folder) of the model that the `model` section names; downloads it where that is allowed.

    What is in the hub cache is taken as it is, without asking the hub whether there is something newer: a run then
    starts the same with and without a network.
    """
    if not section.path:
        raise ModelError("No model was passed.", hint="Pass one: --model Qwen/Qwen3-0.6B, or --model path/to/folder")
    path = folder_of(section.path)
    if path is not None:
        file = gguf_file(Path(section.path).expanduser())
        if file is None:
            return str(path), path
        say(described(file, path))
        return str(file), path
    name, note = resolve_name(section.path)
    if note:
        say(note)
    patterns = [*WANTED, "*.py"] if section.trust_remote_code else WANTED
    folder = _cached(name, section.revision, patterns, need_weights=not section.random_weights)
    if folder is None:
        folder = _download(name, section.revision, patterns, say)
    return name, folder


def folder_of(typed: str) -> Path | None:
    """Return the folder that a user typed as a model, or None for a name; refuse a path to no folder."""
    path = typed_path(typed, "The model", ModelError)
    if (file := gguf_file(path)) is not None:
        return dequantized(file)
    if path.is_dir():
        return path
    if path.is_file():
        raise ModelError(f"{path} is a file, not a model folder.", hint=f"Type: --model {path.parent}")
    name, _ = resolve_name(typed)
    near = _folder_near(path)
    if name.startswith((".", "/", "~")) or name.count("/") > 1:
        meant = f" Did you mean {str(near)!r}?" if near else ""
        raise ModelError(f"Folder {typed} does not exist.{meant}", hint="Check the path passed with --model.")
    if near and "/" not in name:
        raise ModelError(
            f"There is no model folder {typed!r}. Did you mean {str(near)!r}?",
            hint="For a model of that name on the hub, type its whole id: --model OWNER/NAME",
        )
    return None


def _folder_near(path: Path) -> Path | None:
    """Return the folder next to a missing one whose name it misspells; another number is another model."""
    try:
        found = {each.name: each for each in path.parent.iterdir() if each.is_dir()}
    except OSError:
        return None
    numbers = re.findall(r"\d+", path.name)
    same = [name for name in found if re.findall(r"\d+", name) == numbers and abs(len(name) - len(path.name)) <= 1]
    alike = difflib.get_close_matches(path.name, same, n=1, cutoff=0.8)
    return found[alike[0]] if alike else None


def _cached(name: str, revision: str | None, patterns: list[str], *, need_weights: bool) -> Path | None:
    """Return the snapshot in the hub cache, if it holds what is needed."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    try:
        folder = Path(snapshot_download(name, revision=revision, local_files_only=True, allow_patterns=patterns))
    except LocalEntryNotFoundError:
        return None
    except HFValidationError as error:
        raise ModelError(
            f"{name!r} is neither a local folder nor a valid model id.{nearest_alias(name)}",
            hint="A model id looks like Qwen/Qwen3-0.6B.",
        ) from error
    whole = (folder / "config.json").is_file() and (not need_weights or any(folder.glob("*.safetensors")))
    return folder if whole else None


def _download(name: str, revision: str | None, patterns: list[str], say: Callable[[str], None]) -> Path:
    from huggingface_hub import HfApi, constants, snapshot_download
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError

    if constants.is_offline_mode():
        raise ModelError(
            f"{name} is not in the hub cache, and offline mode is on (HF_HUB_OFFLINE).{nearest_alias(name)}",
            hint=_NO_HUB,
        )
    try:
        # One short question first: a download against a silent network would retry for minutes.
        HfApi().model_info(name, revision=revision, timeout=REACH_SECONDS)
        say(f"downloading {name}")
        return Path(snapshot_download(name, revision=revision, allow_patterns=patterns, ignore_patterns=UNWANTED))
    except GatedRepoError as error:
        raise ModelError(
            f"The license of {name} must be accepted before the model can be downloaded.",
            hint=f"Accept it on https://huggingface.co/{name}, then type: hf auth login",
        ) from error
    except RevisionNotFoundError as error:
        raise ModelError(f"{name} has no revision {revision!r}.", hint="Check --model.revision.") from error
    except RepositoryNotFoundError as error:
        raise ModelError(
            f"{name} is neither a local folder nor a model on the hub.{nearest_alias(name)}",
            hint="Check --model; private models need: hf auth login",
        ) from error
    except Exception as error:  # of the HTTP library, and which one that is depends on huggingface_hub
        raise ModelError(
            f"{name} is not in the hub cache, and the hub cannot be reached ({type(error).__name__}).",
            hint=_NO_HUB,
        ) from error
