"""Measure the dashboard: start, memory, a run of 100,000 lines, 1,000 runs, and the delay of a step on the screen."""

from __future__ import annotations

import http.client
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from benchmarks.commands import SWIFT, environment
from benchmarks.facts import Figure
from benchmarks.inputs import ROOT, WORK

LINES, RUNS, STEPS = 100_000, 1_000, 40


def measure(quick: bool) -> tuple[list[Figure], dict[str, Any]]:
    folder = WORK / "ui"
    shutil.rmtree(folder, ignore_errors=True)
    lines, runs, steps = (LINES // 20, RUNS // 20, 5) if quick else (LINES, RUNS, STEPS)
    _write_run(folder / "long" / "m" / "long", lines)
    for number in range(runs):
        _write_run(folder / "many" / "m" / f"v{number}", 60)
    rounds = 1 if quick else 5
    starts = [_start(folder / "many") for _ in range(rounds)]
    opened = [_requests(folder / "long", ["", "/series"]) for _ in range(rounds)]
    listed = [_listing(folder / "many") for _ in range(rounds)]
    waits, rendered = _on_screen(folder / "long", folder / "live", steps)
    figures = [
        Figure("from the command to a response, CPU", min(each["cpu"] for each in starts), "s", at_most=1.0),
        Figure("memory of the server that has begun", max(each["memory"] for each in starts), "MB", at_most=80.0),
        Figure("memory with a thousand runs in the list", max(each["memory"] for each in listed), "MB", at_most=80.0),
        Figure(
            "a run of 100,000 lines: the first responses, CPU", min(each["cpu"] for each in opened), "s", at_most=0.5
        ),
        Figure("a run of 100,000 lines: its curves in a browser", min(rendered), "s", at_most=0.5),
        Figure("a thousand runs, the first time, CPU", min(each["cpu"] for each in listed), "s", at_most=1.0),
        Figure("a thousand runs, looked at again, CPU", min(each["again"] for each in listed), "s", at_most=1.0),
        Figure("a step, from the file to the screen: 95 of 100 within", _percentile(waits, 0.95), "s", at_most=1.0),
    ]
    ways = {"start": starts, "open": opened, "list": listed}
    by_clock = {name: min(each["clock"] for each in found) for name, found in ways.items()}
    return figures, {"seconds by the clock": by_clock, "lines": lines, "runs": runs, "steps": steps}


def _write_run(folder: Path, lines: int) -> None:
    folder.mkdir(parents=True)
    settings = {"model.path": "org/tiny", "objective.name": "sft", "tuner.kind": "lora", "backend.name": "torch"}
    filler = {f"section.key_{number}": number for number in range(120)}  # as many keys as a run's file has
    (folder / "args.json").write_text(json.dumps({**settings, **filler, "environment": {"processes": 1}}))
    with (folder / "logging.jsonl").open("w") as file:
        file.writelines(_line(step, lines) for step in range(1, lines + 1))
        file.write(json.dumps({"status": "completed", "global_step": lines, "train_runtime": 9.0, "tokens": 9}) + "\n")


def _line(step: int, total: int) -> str:
    """Return a line as a run writes it, of numbers that change from step to step."""
    varied = (step * 2654435761 % 2**32) / 2**32
    numbers = {
        "step": step, "global_step/max_steps": f"{step}/{total}", "epoch": step / total * 3,
        "loss": 1.0 + 3.0 / (1.0 + step / 500) + varied / 10, "grad_norm": 0.3 + varied,
        "learning_rate": 1e-4 * (1 - step / total), "token_acc": 0.5 + varied / 10,
        "elapsed_time": step * 0.7, "remaining_time": (total - step) * 0.7, "train_speed(s/it)": 0.7 + varied / 100,
        "tokens_per_second": 61_000 + 100 * varied, "padding_fraction": 0.01, "data_wait_fraction": varied / 100,
        "memory(GiB)": 61.2, "mfu": 0.4 + varied / 100,
    }  # fmt: skip
    return json.dumps(numbers) + "\n"


class _Server:
    """A server of its own process, and the page's part in asking it."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        self.address = process.stdout.readline().split()[-1]
        where, _, self._token = self.address.partition("/#token=")
        self._host = where.removeprefix("http://")
        self._cookie = ""
        self.process = psutil.Process(process.pid)
        self._log_in()

    def _log_in(self) -> None:
        response = self._ask("POST", "/api/login", json.dumps({"token": self._token}))
        self._cookie = str(response.getheader("set-cookie")).partition(";")[0]

    def get(self, path: str) -> Any:
        return json.loads(self._ask("GET", path).read())

    def _ask(self, method: str, path: str, body: str | None = None) -> http.client.HTTPResponse:
        connection = http.client.HTTPConnection(self._host)
        headers = {"origin": f"http://{self._host}", "content-type": "application/json", "cookie": self._cookie}
        connection.request(method, path, body, headers)
        response = connection.getresponse()
        assert response.status == 200, response.read()
        return response

    @property
    def cpu(self) -> float:
        times = self.process.cpu_times()
        return float(times.user + times.system)

    @property
    def memory(self) -> float:
        return float(self.process.memory_info().rss) / 1e6


@contextmanager
def _served(root: Path) -> Iterator[_Server]:
    command = [SWIFT, "ui", str(root), "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=WORK, env=environment())
    try:
        yield _Server(process)
    finally:
        process.terminate()
        process.wait()


def _start(root: Path) -> dict[str, float]:
    began = time.perf_counter()
    with _served(root) as server:
        server.get("/api/about")
        return {"clock": time.perf_counter() - began, "cpu": server.cpu, "memory": server.memory}


def _requests(root: Path, paths: list[str]) -> dict[str, float]:
    with _served(root) as server:
        (run,) = server.get("/api/runs")["runs"]
        before, began = server.cpu, time.perf_counter()
        for path in paths:
            server.get(f"/api/runs/{run['key']}{path}")
        return {"clock": time.perf_counter() - began, "cpu": server.cpu - before}


def _listing(root: Path) -> dict[str, float]:
    with _served(root) as server:
        found = {}
        for name in ("cpu", "again"):
            before, began = server.cpu, time.perf_counter()
            server.get("/api/runs")
            found[name] = server.cpu - before
            found.setdefault("clock", time.perf_counter() - began)
        return {**found, "memory": server.memory}


def _on_screen(long: Path, live: Path, steps: int) -> tuple[list[float], list[float]]:
    """Return how long steps take from the file to a browser's screen, and a long run until its curves stand."""
    sys.path[:0] = [str(ROOT / "tools"), str(ROOT / "tests" / "helpers")]
    from browsing import opened_browser

    shutil.rmtree(live, ignore_errors=True)
    _write_run(live / "m" / "v0", 20)
    with opened_browser() as browser:
        rendered = []
        for _ in range(3):
            with _served(long) as server:
                page, seconds = _rendered(browser, server)
                rendered.append(seconds)
                page.close()
        with _served(live) as server:
            page, _ = _rendered(browser, server)
            waits = [_wait(page, live / "m" / "v0" / "logging.jsonl", step) for step in range(1001, 1001 + steps)]
    return waits, rendered


def _rendered(browser: Any, server: _Server) -> tuple[Any, float]:
    """Return a page that shows the run of a server, and the seconds from choosing it to its last curve."""
    (run,) = server.get("/api/runs")["runs"]
    page = browser.new_page()
    page.goto(server.address)
    page.wait_for_selector(".runs tbody tr")
    began = time.perf_counter()
    page.evaluate("key => { location.hash = `#/run/${key}`; }", run["key"])
    page.wait_for_selector(".chart[data-metric=mfu] .curve")
    return page, time.perf_counter() - began


def _wait(page: Any, path: Path, step: int) -> float:
    time.sleep(0.05 + (step * 37 % 100) / 250)  # at another place between two looks of the server each time
    with path.open("a") as file:
        file.write(_line(step, 5000))
    began = time.perf_counter()
    page.wait_for_function(
        "text => document.querySelector('.figure .value')?.textContent === text", arg=f"{step:,}", polling=10
    )
    return time.perf_counter() - began


def _percentile(values: list[float], part: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * part))]
