"""`swift demo --task identity` with a pretrained model."""

from __future__ import annotations

from pathlib import Path

import pytest
from commands import typed
from real_model import is_installed, real_model


@pytest.mark.rare
@pytest.mark.skipif(not is_installed(), reason="needs the pretrained model that `make setup` downloads")
def test_model_learns_its_name(tmp_path: Path) -> None:
    """Before it the model has another name; after it most questions about it get the new one."""
    ended = typed(["demo", "--task", "identity", "--model", str(real_model()), "--out", "demo"], tmp_path)
    assert ended.code == 0, ended.output
    assert "Responses that name Orion or Blue Lab: 0% before" in ended.output
