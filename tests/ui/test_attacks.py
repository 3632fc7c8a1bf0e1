"""Malicious requests are refused and change nothing."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from run_folders import line_of, write_run
from starlette.testclient import TestClient

from swift_ui.app import STATIC, make_app
from swift_ui.guard import MOST_BYTES, session
from swift_ui.looking.index import key_of
from swift_ui.options import UiSettings

ORIGIN = "http://127.0.0.1:7860"
SECRET = "a secret that lies next to the runs"
HOSTILE = "</script><img src=x onerror=alert(1)>'\"; touch OWNED #"


@pytest.fixture
def run(settings: UiSettings, tmp_path: Path) -> Path:
    """A run with hostile content everywhere, next to a secret to which links lead."""
    (tmp_path / "secret.txt").write_text(SECRET)
    folder = write_run(
        settings.roots[0] / "m" / "--trust_remote_code $(touch OWNED)",
        [line_of(1, **{HOSTILE: 1.0}), {"status": "failed", "message": HOSTILE}],
        settings={"model.path": HOSTILE},
    )
    (folder / "log.txt").symlink_to(tmp_path / "secret.txt")
    (folder / "samples.json").symlink_to(tmp_path / "secret.txt")
    (folder / "rollouts").mkdir()
    (folder / "rollouts" / "round-000000.html").symlink_to(tmp_path / "secret.txt")
    (folder / "rollouts" / "round-000001.html").write_text(HOSTILE)
    (folder / "rollouts" / "round-000000.jsonl").symlink_to(tmp_path / "secret.txt")
    (folder / "images").symlink_to(tmp_path)
    os.mkfifo(folder / "plan.json")
    (settings.roots[0] / "link").symlink_to(tmp_path)
    return folder


@dataclass(frozen=True)
class Attack:
    """One request, and the statuses with which it may be refused."""

    path: str
    refused: tuple[int, ...] = (403,)
    method: str = "GET"
    headers: dict[str, str | None] = field(default_factory=dict)
    """In addition to those of the page; None removes one."""
    body: Any = None
    cookie: bool = True


RUN = "/api/runs/RUN"
CHANGE = {"method": "POST", "body": {"token": "TOKEN"}}
ATTACKS = {
    # Paths.
    "traversal": Attack("/static/../../../../../../../../etc/passwd", (404,)),
    "encoded traversal": Attack("/static/%2e%2e/%2e%2e/guard.py", (404,)),
    "twice encoded traversal": Attack("/static/%252e%252e/guard.py", (404,)),
    "encoded slashes": Attack("/static/..%2f..%2fguard.py", (404,)),
    "backslashes": Attack("/static/..\\..\\guard.py", (404,)),
    "traversal in a page's name": Attack(f"{RUN}/pages/../../../secret.txt", (404,)),
    "encoded traversal in a page's name": Attack(f"{RUN}/pages/%2e%2e%2f%2e%2e%2fsecret.txt", (404,)),
    "an absolute page": Attack(f"{RUN}/pages//etc/passwd", (404,)),
    "a page that is a link out": Attack(f"{RUN}/pages/rollouts/round-000000.html", (400, 404)),
    "a file of the run that is no page": Attack(f"{RUN}/pages/args.json", (404,)),
    "an image through a folder that is a link out": Attack(f"{RUN}/images/images/secret.txt", (404,)),
    "a log that is a link out": Attack(f"{RUN}/log", (400, 404)),
    "samples that are a link out": Attack(f"{RUN}/samples", (400, 404)),
    "a round that is a link out": Attack(f"{RUN}/rounds/0", (400, 404)),
    "a path for a run": Attack("/api/runs/..%2f..%2fsecret.txt/log", (404,)),
    "a NUL in a name": Attack(f"{RUN}/pages/a%00b", (404,)),
    "a number of a round that is none": Attack(f"{RUN}/rounds/-1", (404,)),
    # Who asks.
    "no token": Attack("/api/runs", (401,), cookie=False),
    "the token in the query": Attack("/api/runs?token=TOKEN", (401,), cookie=False),
    "the token as the cookie": Attack("/api/runs", (401,), headers={"cookie": "swift_ui_7860=TOKEN"}, cookie=False),
    "the cookie of another start": Attack(
        "/api/runs", (401,), headers={"cookie": f"swift_ui_7860={'0' * 64}"}, cookie=False
    ),
    "a bearer instead": Attack("/api/runs", (401,), headers={"authorization": "Bearer TOKEN"}, cookie=False),
    "a wrong token": Attack("/api/login", method="POST", body={"token": "x" * 32}, cookie=False),
    "a token that is no text": Attack("/api/login", method="POST", body={"token": ["TOKEN"]}, cookie=False),
    "logging in by a link": Attack("/api/login?token=TOKEN", (405,), cookie=False),
    # Other sites (CVE-2024-1727, CVE-2024-47084, CVE-2025-5320: boards that any page in the browser could use).
    "a form of another site": Attack("/api/login", headers={"origin": "http://evil.example"}, **CHANGE),
    "a form that does not say where it is from": Attack("/api/login", headers={"origin": None}, **CHANGE),
    "a sandboxed page": Attack("/api/runs", headers={"origin": "null"}),
    "another port of this machine": Attack("/api/runs", headers={"origin": "http://127.0.0.1:3000"}),
    "another site's stream": Attack(f"{RUN}/events", headers={"origin": "http://evil.example"}),
    "another site's image": Attack(f"{RUN}/log", headers={"origin": None, "sec-fetch-site": "cross-site"}),
    "a rebound name": Attack("/api/runs", headers={"host": "evil.example:7860", "origin": "http://evil.example:7860"}),
    "a name with this machine before it": Attack("/api/runs", headers={"host": "127.0.0.1.evil.example"}),
    "a user before the name": Attack("/api/runs", headers={"host": "127.0.0.1@evil.example"}),
    "two origins": Attack("/api/runs", headers={"origin": f"{ORIGIN}, http://evil.example"}),
    # Shapes of requests.
    "a body that is too large": Attack("/api/login", (413,), "POST", body={"token": "x" * MOST_BYTES}),
    "a form instead of JSON": Attack("/api/login", (415,), "POST", {"content-type": "text/plain"}, body={"token": "x"}),
    "JSON that never ends": Attack("/api/login", (400,), "POST", body="[" * 100_000),
    "unpaired surrogate as the token": Attack("/api/login", (400,), "POST", body='{"token": "\\ud800"}', cookie=False),
    "unpaired surrogate as a command": Attack("/api/form", (400,), "POST", body='{"command": "\\ud800"}'),
    "unpaired surrogate in a flag": Attack(
        "/api/check", (400,), "POST", body='{"command": "pt", "further": "\\ud800"}'
    ),
    "a model that is no text": Attack("/api/sessions", (400,), "POST", body={"model": {"a": 5}}),
    "a model with a NUL": Attack("/api/sessions", (400,), "POST", body={"model": "a\0b"}),
    "a method that is none": Attack(
        "/api/runs", (405,), "DELETE", {"content-length": "0", "content-type": "application/json"}
    ),
    "TRACE": Attack("/api/runs", (405, 411), "TRACE"),
    "a page instead of the server's": Attack("/static/app.js", (405,), "PUT", body={}),
    # CVE-2024-52803: a folder's name became a shell command. CVE-2026-58116: a page could make models' code run.
    "a folder that is a command": Attack("/api/runs/$(touch%20OWNED)", (404,)),
    "trust in a model's code, requested by the page": Attack(
        "/api/about", (405,), "POST", body={"trust_remote_code": True}
    ),
}


def test_at_least_thirty_attacks() -> None:
    assert len(ATTACKS) >= 30


@pytest.mark.parametrize("name", ATTACKS)
def test_no_attack_gets_through(name: str, settings: UiSettings, run: Path, tmp_path: Path) -> None:
    attack = ATTACKS[name]
    before = state_of(tmp_path)
    response = sent(attack, settings, run)
    assert response.status_code in attack.refused, response.text
    assert SECRET not in response.text
    assert "root:" not in response.text
    assert "set-cookie" not in response.headers
    assert "access-control-allow-origin" not in response.headers
    assert state_of(tmp_path) == before


def sent(attack: Attack, settings: UiSettings, run: Path) -> Any:
    """The response to an attack; RUN and TOKEN stand for those of this server."""

    def filled(text: str) -> str:
        return text.replace("RUN", key_of(run.resolve())).replace("TOKEN", settings.token)

    usual = {"origin": ORIGIN, "host": "127.0.0.1:7860", "content-type": "application/json"}
    usual |= {"cookie": f"{settings.cookie}={session(settings)}"} if attack.cookie else {}
    headers = {name: filled(value) for name, value in (usual | attack.headers).items() if value is not None}
    client = TestClient(make_app(settings), base_url=ORIGIN, raise_server_exceptions=True)
    body = attack.body if isinstance(attack.body, str) or attack.body is None else filled(json.dumps(attack.body))
    request = client.build_request(attack.method, "/", headers=headers, content=body)
    # As it stands: the client would tidy the path up before an attacker's would reach the server.
    request.url = request.url.copy_with(raw_path=filled(attack.path).encode())
    return client.send(request)


@pytest.mark.parametrize("path", ["/api/login", "/api/form"])
def test_incomplete_request_body_has_status_400(path: str, settings: UiSettings) -> None:
    """An exception would print a traceback in the terminal for each such request."""
    sent = {"host": "127.0.0.1:7860", "origin": ORIGIN, "content-type": "application/json", "content-length": "9"}
    sent["cookie"] = f"{settings.cookie}={session(settings)}"
    headers = [(name.encode(), value.encode()) for name, value in sent.items()]
    scope = {"type": "http", "method": "POST", "path": path, "raw_path": path.encode(), "query_string": b""}
    coming = iter([{"type": "http.request", "body": b"{", "more_body": True}, {"type": "http.disconnect"}])
    sent_back: list[Any] = []

    async def receive() -> Any:
        return next(coming)

    async def send(message: Any) -> None:
        sent_back.append(message)

    app = make_app(settings)
    asyncio.run(app({**scope, "headers": headers, "scheme": "http", "server": ("127.0.0.1", 7860)}, receive, send))
    assert sent_back[0]["status"] == 400


def state_of(folder: Path) -> dict[str, str]:
    """Every file below a folder, with its content."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not path.is_symlink():
            found[str(path.relative_to(folder))] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found


def test_attack_requests_succeed_when_harmless(settings: UiSettings, run: Path) -> None:
    """Else the attacks above might be refused for being malformed."""
    assert sent(Attack("/api/runs"), settings, run).status_code == 200
    assert sent(Attack(RUN), settings, run).status_code == 200
    assert sent(Attack(f"{RUN}/pages/rollouts/round-000001.html"), settings, run).text == HOSTILE
    assert (
        sent(Attack("/api/runs", headers={"host": "localhost:9999", "origin": None}), settings, run).status_code == 200
    )
    opened = sent(Attack("/api/login", method="POST", body={"token": "TOKEN"}, cookie=False), settings, run)
    assert opened.status_code == 200


def test_hostile_names_are_escaped_in_responses(settings: UiSettings, run: Path) -> None:
    for path in ("/api/runs", RUN, f"{RUN}/series", f"{RUN}/config", f"/api/compare?run={key_of(run)}"):
        response = sent(Attack(path), settings, run)
        assert response.status_code == 200, path
        assert response.headers["content-type"] == "application/json"
        assert response.headers["x-content-type-options"] == "nosniff"
    page = sent(Attack(f"{RUN}/pages/rollouts/round-000001.html"), settings, run)
    policy = page.headers["content-security-policy"]
    assert "sandbox" in policy
    assert "default-src 'none'" in policy
    assert "allow-same-origin" not in policy


READS_MARKUP = (
    "innerHTML",
    "outerHTML",
    "insertAdjacentHTML",
    "document.write",
    "DOMParser",
    "setHTML",
    "eval(",
    "srcdoc",
)


@pytest.mark.parametrize("folder", [STATIC], ids=["static"])
def test_scripts_parse_no_markup_and_request_no_host(folder: Path, stranger: TestClient, settings: UiSettings) -> None:
    scripts = {
        path.name: path.read_text(encoding="utf-8") for path in folder.rglob("*") if path.suffix in (".js", ".html")
    }
    scripts["charts.js"] = stranger.get("/static/charts.js").text
    assert len(scripts) > 10
    for name, text in scripts.items():
        assert not [word for word in READS_MARKUP if word in text], name
        addresses = text.replace("http://www.w3.org/2000/svg", "").replace("http://127.0.0.1", "")
        assert "http://" not in addresses, name
        assert "https://" not in addresses, name
    assert "<script>" not in scripts["index.html"]
    assert not [word for word in (" onclick=", " style=") if word in scripts["index.html"]]


def test_other_host_is_allowed_only_from_terminal(settings: UiSettings, tmp_path: Path) -> None:
    """Another host is allowed only where the command line named it."""

    def asks(host: str, header: str) -> int:
        named = UiSettings(settings.roots, host=host, token="t")
        return TestClient(make_app(named), base_url=ORIGIN).get("/", headers={"host": header}).status_code

    assert asks("127.0.0.1", "machine.lan:7860") == 403
    assert asks("machine.lan", "machine.lan:7860") == 200
    assert asks("machine.lan", "evil.example:7860") == 403
