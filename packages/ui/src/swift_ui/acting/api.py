"""Handlers of what the page asks to have done. A command is shown before it is started, and refused as when typed."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from swift.errors import SwiftError, UsageError
from swift.forms import CheckedCommand
from swift_ui.acting import sessions
from swift_ui.acting.allowed import BUILTIN_COMMANDS, TRAINING, check_allowed, check_command, within
from swift_ui.acting.argv import shown, words_of
from swift_ui.acting.desk import FrontDesk
from swift_ui.acting.jobs import JobBook, StartedCommand
from swift_ui.acting.presets import PRESETS
from swift_ui.acting.runs import RunActions, stop_run
from swift_ui.bodies import content_of
from swift_ui.looking.api import looker, run_of
from swift_ui.looking.index import key_of
from swift_ui.settings import UiSettings


class ActingApi:
    """The handlers of acting, with what they share: the desk for forms, and the book of commands."""

    def __init__(self, settings: UiSettings) -> None:
        self._settings = settings
        self.desk = FrontDesk()
        self.jobs = JobBook(settings.roots[0])

    def routes(self) -> list[Route]:
        """Return the routes of acting."""
        return [
            Route("/api/form", self._form, methods=["POST"]),
            Route("/api/check", self._check, methods=["POST"]),
            Route("/api/jobs", self._jobs),
            Route("/api/jobs", self._start, methods=["POST"]),
            Route("/api/jobs/{id}", self._job),
            Route("/api/jobs/{id}/stop", self._stop_job, methods=["POST"]),
            Route("/api/runs/{key}/actions", self._actions),
            Route("/api/runs/{key}/stop", self._stop_run, methods=["POST"]),
            Route("/api/runs/{key}/resume", self._resume, methods=["POST"]),
            Route("/api/talks", self._talks),
            Route("/api/talks", self._open_talk, methods=["POST"]),
            Route("/api/talks/{id}/ask", self._ask, methods=["POST"]),
        ]

    async def _form(self, request: Request) -> Response:
        asked = await content_of(request)
        command = check_command(asked.get("verb"))
        sections = await run_in_threadpool(self.desk.form, command, _texts(asked.get("selected")))
        presets = PRESETS if command in TRAINING else ()
        return JSONResponse(
            {
                "verb": command,
                "verbs": BUILTIN_COMMANDS,
                "sections": [asdict(each) for each in sections],
                "presets": [asdict(each) for each in presets],
                "output": self._output(),
            }
        )

    def _output(self) -> str | None:
        """Return the parent of runs that a form names; None where the usual one is below a root."""
        roots = self._settings.roots
        return None if any(within(Path("output").absolute(), root.resolve()) for root in roots) else str(roots[0])

    async def _check(self, request: Request) -> Response:
        """Answer with the command, and with what would refuse it: a refusal is no failure of this request."""
        asked = await content_of(request)
        words = await self._words(asked)
        answer: dict[str, Any] = {"command": shown(words), "refused": None, "notes": [], "expected": None}
        try:
            checked = await self._checked(words, expect=words[0] in TRAINING)
        except SwiftError as error:
            answer["refused"] = {"message": error.message, "hint": error.hint}
        else:
            answer["notes"] = checked.notes
            answer["expected"] = _expected(checked)
        return JSONResponse(answer)

    async def _start(self, request: Request) -> Response:
        words = await self._words(await content_of(request))
        checked = await self._checked(words)
        return JSONResponse({"job": _view(await self._launch(words, checked))})

    async def _launch(self, words: list[str], checked: CheckedCommand) -> StartedCommand:
        return await run_in_threadpool(self.jobs.start, words, run_folder=checked.run_folder)

    async def _words(self, asked: dict[str, Any]) -> list[str]:
        command = check_command(asked.get("verb"))
        sections = await run_in_threadpool(self.desk.form, command, _texts(asked.get("selected")))
        fields = [field for section in sections for field in section.fields]
        values = asked.get("values") or {}
        if not isinstance(values, dict):
            raise UsageError("The values of the form are no object.")
        return words_of(command, fields, values, str(asked.get("further") or ""))

    async def _checked(self, words: list[str], *, expect: bool = False) -> CheckedCommand:
        checked = await run_in_threadpool(self.desk.check, words, expect=expect)
        check_allowed(checked, self._settings)
        return checked

    async def _jobs(self, request: Request) -> Response:
        return JSONResponse({"jobs": [_view(job) for job in await run_in_threadpool(self.jobs.all)]})

    async def _job(self, request: Request) -> Response:
        job = self.jobs.find(request.path_params["id"])
        return JSONResponse({**_view(job), "log": job.log()})

    async def _stop_job(self, request: Request) -> Response:
        now = bool((await content_of(request)).get("now"))
        job = self.jobs.find(request.path_params["id"])
        await run_in_threadpool(self.jobs.stop, job, now=now)
        return JSONResponse({"stopping": True})

    async def _actions(self, request: Request) -> Response:
        folder = await run_in_threadpool(run_of, request)
        state = await run_in_threadpool(looker(request).states.state, folder)
        found = await run_in_threadpool(RunActions.of, folder, self.jobs, completed=state.name == "completed")
        return JSONResponse(
            {
                "alive": found.alive,
                "stopping": found.job is not None and found.job.alive and found.job.stopping,
                "job": None if found.job is None else _view(found.job),
                "checkpoints": [str(each) for each in found.checkpoints],
                "resume": shown(found.resume) if found.resume else None,
            }
        )

    async def _stop_run(self, request: Request) -> Response:
        now = bool((await content_of(request)).get("now"))
        folder = await run_in_threadpool(run_of, request)
        await run_in_threadpool(stop_run, folder, self.jobs, now=now)
        return JSONResponse({"stopping": True})

    async def _resume(self, request: Request) -> Response:
        folder = await run_in_threadpool(run_of, request)
        found = await run_in_threadpool(RunActions.of, folder, self.jobs)
        if not found.resume:
            raise UsageError("This run cannot be gone on with: it still trains, or has no whole checkpoint.")
        words = list(found.resume)
        checked = await self._checked(words)
        job = await run_in_threadpool(self.jobs.start, words, run_folder=folder)
        return JSONResponse({"job": _view(job), "notes": checked.notes})

    async def _talks(self, request: Request) -> Response:
        jobs = await run_in_threadpool(self.jobs.all)
        return JSONResponse({"talks": [sessions.view_of(job) for job in jobs if job.kind == sessions.KIND]})

    async def _open_talk(self, request: Request) -> Response:
        model = (await content_of(request)).get("model") or ""
        trust = self._settings.trust_remote_code
        job = await run_in_threadpool(sessions.open_talk, self.jobs, model, trust=trust)
        return JSONResponse(sessions.view_of(job))

    async def _ask(self, request: Request) -> Response:
        asked = await content_of(request)
        job = self.jobs.find(request.path_params["id"])
        return StreamingResponse(sessions.answer_of(self.jobs, job, asked), media_type="application/x-ndjson")


def routes(settings: UiSettings) -> list[Route]:
    """Return the routes of acting."""
    return ActingApi(settings).routes()


def _texts(value: Any) -> dict[str, str]:
    return {str(key): str(text) for key, text in value.items()} if isinstance(value, dict) else {}


def _view(job: StartedCommand) -> dict[str, Any]:
    """Return what the page shows of a command."""
    return {
        "id": job.id,
        "kind": job.kind,
        "verb": job.words[0],
        "command": shown(job.words),
        "state": job.state,
        "stopping": job.stopping and job.alive,
        "alive": job.alive,
        "code": job.code,
        "cause": job.cause,
        "asked": job.asked,
        "ended": job.ended,
        "run": None if job.run_folder is None else key_of(job.run_folder),
        "run_there": job.run_folder is not None and (job.run_folder / "args.json").is_file(),
    }


def _expected(checked: CheckedCommand) -> dict[str, Any] | None:
    expected = checked.expected
    return None if expected is None else {**asdict(expected), "fits": expected.fits}
