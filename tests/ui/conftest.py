"""A dashboard server in this process, and its clients."""

from __future__ import annotations

from pathlib import Path

import pytest
from starlette.testclient import TestClient

from swift_ui.app import make_app
from swift_ui.options import UiSettings

ORIGIN = "http://127.0.0.1:7860"


@pytest.fixture
def settings(tmp_path: Path) -> UiSettings:
    (tmp_path / "output").mkdir()
    return UiSettings((tmp_path / "output",), token="a-token-of-this-test")


@pytest.fixture
def stranger(settings: UiSettings) -> TestClient:
    """A client with the page's origin, not logged in."""
    return TestClient(make_app(settings), base_url=ORIGIN, headers={"origin": ORIGIN}, follow_redirects=False)


@pytest.fixture
def page(stranger: TestClient, settings: UiSettings) -> TestClient:
    """A client with the page's origin, logged in."""
    assert stranger.post("/api/login", json={"token": settings.token}).status_code == 200
    return stranger
