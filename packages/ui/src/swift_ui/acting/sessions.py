"""Models that answer the page: opened as commands of their own, asked over loopback with their own secret."""

from __future__ import annotations

import json
import secrets
import sys
from collections.abc import Iterator
from typing import Any

from swift.errors import SwiftError, UsageError
from swift.infer import OpenAiServer
from swift_ui.acting.argv import MOST
from swift_ui.acting.jobs import JobBook, StartedCommand
from swift_ui.looking.missing import NotThere

KIND = "chat"
_ASKED = ("messages", "max_tokens", "temperature", "top_p", "seed")
MOST_TOKENS = 8192
"""Tokens of an answer."""
_MODULE = "swift_ui.acting.chat"


def open_talk(jobs: JobBook, model: object, *, trust: bool, device: str | None = None) -> StartedCommand:
    """Load a model (a run, a checkpoint, an adapter, a folder) in a process of its own, or find it loaded."""
    model = model.strip() if isinstance(model, str) else ""
    if not model or model.startswith("-") or len(model) > MOST or "\0" in model:
        raise UsageError("Which model is to be asked?", hint="A run, a checkpoint, an adapter, or a model's folder.")
    for job in jobs.all():
        if job.kind == KIND and job.alive and job.words == ("chat", model):
            return job
    options: dict[str, Any] = {"model": model, "trust_remote_code": trust, "device": device}
    program = (sys.executable, "-m", _MODULE, json.dumps(options))
    return jobs.start(["chat", model], kind=KIND, program=program, secret=secrets.token_urlsafe(24))


def view_of(job: StartedCommand) -> dict[str, Any]:
    """Return what the page shows of a model that it talks with."""
    ready = job.state == "running" and job.facts is not None
    state = "ready" if ready else "loading" if job.alive else job.state
    problem = "" if job.alive else _last_words(job)
    told = {} if job.facts is None else job.facts.model_dump(exclude={"port"}, exclude_none=True)
    return {"id": job.id, "model": job.words[-1], "state": state, "problem": problem, **told}


def answer_of(jobs: JobBook, job: StartedCommand, asked: dict[str, Any]) -> Iterator[str]:
    """Yield the answer to a conversation as lines of JSON: pieces of text, or an error."""
    if job.kind != KIND or not job.alive or job.facts is None:
        raise NotThere("This model is not loaded (any more).")
    server = OpenAiServer(f"http://127.0.0.1:{job.facts.port}", jobs.secret(job))
    body: dict[str, Any] = {name: asked[name] for name in _ASKED if name in asked}
    return _pieces(server, body)


def _pieces(server: OpenAiServer, body: dict[str, Any]) -> Iterator[str]:
    try:
        for piece in server.pieces(body, tokens=MOST_TOKENS):
            yield json.dumps({"text": piece}) + "\n"
    except SwiftError as error:
        yield json.dumps({"error": error.message}) + "\n"


def _last_words(job: StartedCommand) -> str:
    lines = [line for line in job.log(4000).splitlines() if line.strip()]
    errors = [number for number, line in enumerate(lines) if line.startswith("Error: ")]
    return "\n".join(lines[errors[-1] :] if errors else lines[-1:]) or job.cause
