"""The page is opened with the token of the terminal, once."""

from __future__ import annotations

from starlette.testclient import TestClient

from swift_ui.settings import UiSettings


def test_the_page_itself_holds_nothing_and_is_there_without_a_token(stranger: TestClient) -> None:
    answer = stranger.get("/")
    assert answer.status_code == 200
    assert "default-src 'self'" in answer.headers["content-security-policy"]
    assert stranger.get("/static/app.js").headers["content-type"].startswith("text/javascript")
    assert stranger.get("/api/runs").status_code == 401


def test_the_token_opens_the_page_by_a_cookie_that_is_not_the_token(stranger: TestClient, settings: UiSettings) -> None:
    answer = stranger.post("/api/login", json={"token": settings.token})
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "samesite=strict" in cookie.lower()
    assert settings.token not in cookie
    assert stranger.get("/api/runs").json()["runs"] == []


def test_the_address_keeps_the_token_where_no_server_is_told_of_it(settings: UiSettings) -> None:
    assert settings.address == f"http://127.0.0.1:7860/#token={settings.token}"
    assert len(UiSettings(settings.roots).token) >= 32
