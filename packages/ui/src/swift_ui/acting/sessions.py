"""Chat sessions: each model runs as a job of its own and serves this machine, protected by a secret."""

from __future__ import annotations

import json
import secrets
import sys
from collections.abc import Iterator
from typing import Any

from swift.errors import SwiftError, UsageError
from swift_infer import OpenAiServer
from swift_ui.acting.argv import MOST
from swift_ui.acting.jobs import JobStore, RunningJob
from swift_ui.looking.index import NotFound

KIND = "chat"
_PASSED = ("messages", "max_tokens", "temperature", "top_p", "seed")
MOST_TOKENS = 8192
"""Maximum length of a response in tokens."""
_MODULE = "swift_ui.acting.chat_server"


def open_session(jobs: JobStore, model: object, *, trust: bool, device: str | None = None) -> RunningJob:
    """Return the job of a model (a run, a checkpoint, an adapter, a folder), started if it is not loaded."""
    model = model.strip() if isinstance(model, str) else ""
    if not model or model.startswith("-") or len(model) > MOST or "\0" in model:
        raise UsageError("No valid model was named.", hint="Enter a run, a checkpoint, an adapter or a model folder.")
    for job in jobs.all():
        if job.kind == KIND and job.alive and job.argv == ("chat", model):
            return job
    options: dict[str, Any] = {"model": model, "trust_remote_code": trust, "device": device}
    program = (sys.executable, "-m", _MODULE, json.dumps(options))
    return jobs.start(["chat", model], kind=KIND, program=program, secret=secrets.token_urlsafe(24))


def view_of(job: RunningJob) -> dict[str, Any]:
    """Return the state of a session for the page."""
    ready = job.state == "running" and job.facts is not None
    state = "ready" if ready else "loading" if job.alive else job.state
    problem = "" if job.alive else _last_error(job)
    facts = {} if job.facts is None else job.facts.model_dump(exclude={"port"}, exclude_none=True)
    return {"id": job.id, "model": job.argv[-1], "state": state, "problem": problem, **facts}


def chat(jobs: JobStore, job: RunningJob, request: dict[str, Any]) -> Iterator[str]:
    """Yield the response to a conversation as lines of JSON: pieces of text, or an error."""
    if job.kind != KIND or not job.alive or job.facts is None:
        raise NotFound("This model is not loaded.")
    server = OpenAiServer(f"http://127.0.0.1:{job.facts.port}", jobs.secret(job))
    body: dict[str, Any] = {name: request[name] for name in _PASSED if name in request}
    return _pieces(server, body)


def _pieces(server: OpenAiServer, body: dict[str, Any]) -> Iterator[str]:
    try:
        for piece in server.pieces(body, tokens=MOST_TOKENS):
            yield json.dumps({"text": piece}) + "\n"
    except SwiftError as error:
        yield json.dumps({"error": error.message}) + "\n"


def _last_error(job: RunningJob) -> str:
    lines = [line for line in job.log(4000).splitlines() if line.strip()]
    errors = [number for number, line in enumerate(lines) if line.startswith("Error: ")]
    return "\n".join(lines[errors[-1] :] if errors else lines[-1:]) or job.cause
