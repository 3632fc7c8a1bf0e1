"""Uploading an export to the Hugging Face Hub or to a URL, when the user asks for it and after it is verified."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from swift.errors import ExportError
from swift.remote.put import put
from swift.remote.urls import is_remote
from swift.terminal import waiting


def push(folder: Path, where: str, *, say: Callable[[str], None]) -> None:
    """Upload a folder to a repository, which is made (private) where it is new, or to a folder behind a URL."""
    if not is_remote(where):
        _to_hub(folder, where, say)
        return
    say(f"Uploading to {where}")
    try:
        with waiting(f"Uploading to {where}"):
            put(folder, where)
    except ExportError as error:
        message = f"Not uploaded: {error.args[0]}"
        raise ExportError(message, hint=f"The export is complete in {folder}. {error.hint or ''}".strip()) from None
    say(f"Uploaded to {where}")


def _to_hub(folder: Path, repository: str, say: Callable[[str], None]) -> None:
    from huggingface_hub import HfApi, constants, get_token
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    later = f"The export is complete in {folder}. Upload it later: hf upload {repository} {folder}"
    if constants.HF_HUB_OFFLINE:
        raise ExportError("Not uploaded: HF_HUB_OFFLINE is set.", hint=later)
    if get_token() is None:
        raise ExportError(
            "Not uploaded: there is no access token for the Hugging Face Hub.", hint=f"Type: hf auth login. {later}"
        )
    say(f"Uploading to {repository}")
    try:
        api = HfApi()
        api.create_repo(repository, private=True, exist_ok=True)
        api.upload_folder(repo_id=repository, folder_path=folder)
    except (HfHubHTTPError, HFValidationError, OSError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ExportError(f"Not uploaded to {repository}: {reason}", hint=later) from error
    say(f"Uploaded to https://huggingface.co/{repository}")
