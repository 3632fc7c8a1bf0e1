"""The page is opened with the token of the terminal, once."""

from __future__ import annotations

from starlette.testclient import TestClient

from swift_ui.options import UiSettings


def test_page_is_empty_and_needs_no_token(stranger: TestClient) -> None:
    """The page itself holds no data and is served without a token."""
    response = stranger.get("/")
    assert response.status_code == 200
    assert "default-src 'self'" in response.headers["content-security-policy"]
    assert stranger.get("/static/app.js").headers["content-type"].startswith("text/javascript")
    assert stranger.get("/api/runs").status_code == 401


def test_token_sets_http_only_cookie(stranger: TestClient, settings: UiSettings) -> None:
    """Login sets an HttpOnly cookie that is not the token."""
    response = stranger.post("/api/login", json={"token": settings.token})
    cookie = response.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "samesite=strict" in cookie.lower()
    assert settings.token not in cookie
    assert stranger.get("/api/runs").json()["runs"] == []


def test_settings_address_includes_token(settings: UiSettings) -> None:
    """The address of the settings includes the token without a server."""
    assert settings.address == f"http://127.0.0.1:7860/#token={settings.token}"
    assert len(UiSettings(settings.roots).token) >= 32
