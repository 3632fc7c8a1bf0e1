"""A server of the dashboard in this process, and a browser's part in talking to it."""

from __future__ import annotations

from pathlib import Path

import pytest
from starlette.testclient import TestClient

from swift_ui.app import make_app
from swift_ui.settings import UiSettings

ORIGIN = "http://127.0.0.1:7860"


@pytest.fixture
def settings(tmp_path: Path) -> UiSettings:
    (tmp_path / "output").mkdir()
    return UiSettings((tmp_path / "output",), token="a-token-of-this-test")


@pytest.fixture
def stranger(settings: UiSettings) -> TestClient:
    """Asks as a page of the server does, and has not shown the token yet."""
    return TestClient(make_app(settings), base_url=ORIGIN, headers={"origin": ORIGIN}, follow_redirects=False)


@pytest.fixture
def page(stranger: TestClient, settings: UiSettings) -> TestClient:
    """Asks as the page does after it was opened with the token."""
    assert stranger.post("/api/login", json={"token": settings.token}).status_code == 200
    return stranger
