"""Routes that start and stop commands and runs. Commands are checked like on the command line."""

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
from swift_ui.acting.argv import argv_of, shown
from swift_ui.acting.form_client import FormClient
from swift_ui.acting.jobs import JobStore, RunningJob
from swift_ui.acting.permissions import TRAINING, check_allowed, check_command, within
from swift_ui.acting.runs import RunActions, stop_run
from swift_ui.guard import read_object
from swift_ui.looking.api import reader, run_of
from swift_ui.looking.index import key_of
from swift_ui.options import UiSettings

PRESETS = [
    {"name": name, "description": description, "command": command, "values": values}
    for name, description, command, values in (
        ("LoRA", "Train adapters on frozen weights", "sft", {}),
        ("Full", "Train all weights", "sft", {"tuner.kind": "full"}),
        ("QLoRA", "Train adapters on 4-bit weights: lowest memory", "sft", {"tuner.quantize": "bnb-nf4"}),
        ("DPO", "Learn from preferred and rejected responses", "rlhf", {"objective.name": "dpo"}),
        ("GRPO", "Learn from rewards of generated completions", "rlhf", {"objective.name": "grpo"}),
    )
]
"""Presets of the form for new runs."""
OFFERED = {
    **dict.fromkeys(("model.path", "model", "checkpoint"), "models"),
    **dict.fromkeys(("objective.teacher_model", "objective.critic_model", "objective.reward_model"), "models"),
    **dict.fromkeys(("data.train", "data.validation", "dataset", "calibration_dataset"), "datasets"),
}
"""Keys of options → the choices that the page offers for them."""


class ActingApi:
    """Request handlers with their shared form client and job store."""

    def __init__(self, settings: UiSettings) -> None:
        self._settings = settings
        self.forms = FormClient()
        self.jobs = JobStore(settings.roots[0])

    def routes(self) -> list[Route]:
        """Return the routes of these handlers."""
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
            Route("/api/sessions", self._sessions),
            Route("/api/sessions", self._open_session, methods=["POST"]),
            Route("/api/sessions/{id}/chat", self._chat, methods=["POST"]),
        ]

    async def _form(self, request: Request) -> Response:
        content = await read_object(request)
        command = check_command(content.get("command"))
        sections = await run_in_threadpool(self.forms.form, command, _strings(content.get("selected")))
        presets = PRESETS if command in TRAINING else ()
        return JSONResponse(
            {
                "command": command,
                "sections": [asdict(each) for each in sections],
                "presets": presets,
                "offered": OFFERED,
                "output": self._output(),
            }
        )

    def _output(self) -> str | None:
        """Return the output folder to fill in; None if the default is below a root."""
        roots = self._settings.roots
        return None if any(within(Path("output").absolute(), root.resolve()) for root in roots) else str(roots[0])

    async def _check(self, request: Request) -> Response:
        """Return the command line, with its error if it has one."""
        argv = await self._argv(await read_object(request))
        response: dict[str, Any] = {"command_line": shown(argv), "refused": None, "notes": [], "expected": None}
        try:
            checked = await self._checked(argv, expect=argv[0] in TRAINING)
        except SwiftError as error:
            response["refused"] = {"message": error.message, "hint": error.hint}
        else:
            response["notes"] = checked.notes
            response["expected"] = _expected(checked)
        return JSONResponse(response)

    async def _start(self, request: Request) -> Response:
        argv = await self._argv(await read_object(request))
        checked = await self._checked(argv)
        job = await run_in_threadpool(self.jobs.start, argv, run_folder=checked.run_folder)
        return JSONResponse({"job": _view(job)})

    async def _argv(self, content: dict[str, Any]) -> list[str]:
        command = check_command(content.get("command"))
        sections = await run_in_threadpool(self.forms.form, command, _strings(content.get("selected")))
        fields = [field for section in sections for field in section.fields]
        values = content.get("values") or {}
        if not isinstance(values, dict):
            raise UsageError("`values` must be a JSON object.")
        return argv_of(command, fields, values, str(content.get("further") or ""))

    async def _checked(self, argv: list[str], *, expect: bool = False) -> CheckedCommand:
        checked = await run_in_threadpool(self.forms.check, argv, expect=expect)
        check_allowed(checked, self._settings)
        return checked

    async def _jobs(self, request: Request) -> Response:
        return JSONResponse({"jobs": [_view(job) for job in await run_in_threadpool(self.jobs.all)]})

    async def _job(self, request: Request) -> Response:
        job = self.jobs.find(request.path_params["id"])
        return JSONResponse({**_view(job), "log": job.log()})

    async def _stop_job(self, request: Request) -> Response:
        now = bool((await read_object(request)).get("now"))
        job = self.jobs.find(request.path_params["id"])
        await run_in_threadpool(self.jobs.stop, job, now=now)
        return JSONResponse({"stopping": True})

    async def _actions(self, request: Request) -> Response:
        folder = await run_in_threadpool(run_of, request)
        state = await run_in_threadpool(reader(request).states.state, folder)
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
        now = bool((await read_object(request)).get("now"))
        folder = await run_in_threadpool(run_of, request)
        await run_in_threadpool(stop_run, folder, self.jobs, now=now)
        return JSONResponse({"stopping": True})

    async def _resume(self, request: Request) -> Response:
        folder = await run_in_threadpool(run_of, request)
        found = await run_in_threadpool(RunActions.of, folder, self.jobs)
        if not found.resume:
            raise UsageError("This run cannot be resumed: it is still training, or has no complete checkpoint.")
        argv = list(found.resume)
        checked = await self._checked(argv)
        job = await run_in_threadpool(self.jobs.start, argv, run_folder=folder)
        return JSONResponse({"job": _view(job), "notes": checked.notes})

    async def _sessions(self, request: Request) -> Response:
        jobs = await run_in_threadpool(self.jobs.all)
        return JSONResponse({"sessions": [sessions.view_of(job) for job in jobs if job.kind == sessions.KIND]})

    async def _open_session(self, request: Request) -> Response:
        model = (await read_object(request)).get("model") or ""
        trust = self._settings.trust_remote_code
        job = await run_in_threadpool(sessions.open_session, self.jobs, model, trust=trust)
        return JSONResponse(sessions.view_of(job))

    async def _chat(self, request: Request) -> Response:
        content = await read_object(request)
        job = self.jobs.find(request.path_params["id"])
        return StreamingResponse(sessions.chat(self.jobs, job, content), media_type="application/x-ndjson")


def _strings(value: Any) -> dict[str, str]:
    return {str(key): str(text) for key, text in value.items()} if isinstance(value, dict) else {}


def _view(job: RunningJob) -> dict[str, Any]:
    """Return a job for the page."""
    return {
        "id": job.id,
        "kind": job.kind,
        "command": job.argv[0],
        "command_line": shown(job.argv),
        "state": job.state,
        "stopping": job.stopping and job.alive,
        "alive": job.alive,
        "code": job.code,
        "cause": job.cause,
        "requested": job.requested,
        "ended": job.ended,
        "run": None if job.run_folder is None else key_of(job.run_folder),
        "run_there": job.run_folder is not None and (job.run_folder / "args.json").is_file(),
    }


def _expected(checked: CheckedCommand) -> dict[str, Any] | None:
    expected = checked.expected
    return None if expected is None else {**asdict(expected), "fits": expected.fits}
