"""Uploading an export to the Hugging Face Hub, when the user asks for it and after it is verified."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from swift.errors import ExportError


def push(folder: Path, repository: str, *, say: Callable[[str], None]) -> None:
    """Make the repository (private, where it is new) and upload the folder to it."""
    from huggingface_hub import HfApi, constants, get_token
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    later = f"The export itself is whole, in {folder}. Upload it later: hf upload {repository} {folder}"
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
