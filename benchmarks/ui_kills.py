"""A dashboard that is killed a hundred times while a run goes on that it has started: what the run saves is the same.

Each time the server is started, its page opened, the run's stream of events and its log read, and a form checked; then
it gets SIGKILL, within a third of a second. The run's checkpoints are compared, byte for byte, with those of the same
command in a terminal.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import random
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from benchmarks.commands import SWIFT, environment
from benchmarks.facts import Figure
from benchmarks.inputs import WORK
from swift.demo.model import write_model
from swift.demo.task import write_data

KILLS = 100
EVERY = 25
"""Steps from one checkpoint to the next."""
FOLDER = WORK / "ui-kills"
VALUES = {
    "model.path": "tiny",
    "data.train": ["train.jsonl"],
    "tuner.kind": "full",
    "train.max_steps": "100000",
    "checkpoint.save_steps": str(EVERY),
    "checkpoint.keep": "null",
    "logging.steps": "1",
    "logging.run_name": "watched",
    "backend.cpu_threads": "1",
}


def measure(quick: bool) -> tuple[list[Figure], dict[str, Any]]:
    """Figures, and what they were made of."""
    kills = 5 if quick else KILLS
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    write_model(FOLDER / "tiny", hidden=32, layers=1)
    write_data(FOLDER)
    (FOLDER / "output").mkdir()
    command = watched(kills)
    runs = FOLDER / "output" / "tiny"
    saved = checkpoints(runs / "watched")
    terminal(command, max(saved))
    alone = checkpoints(runs / "alone")
    common = sorted(saved.keys() & alone.keys())
    differing = sum(saved[step] != alone[step] for step in common)
    files = sum(len(saved[step]) for step in common)
    shutil.rmtree(FOLDER)
    figures = [
        Figure("times that the dashboard was killed during the run", kills, unit="", at_least=kills),
        Figure("checkpoints that differ from those of a terminal's run", differing, unit="", at_most=0),
        Figure("checkpoints compared", len(common), unit="", at_least=1),
    ]
    return figures, {"command": command, "steps": common, "files": files}


def watched(kills: int) -> str:
    """Start the run from the page, kill the server again and again, and stop the run; returns the run's command."""
    draw = random.Random(0)
    with opened() as ask:
        job = ask("jobs", {"verb": "sft", "selected": {"tuner.kind": "full"}, "values": VALUES})["job"]
    for number in range(kills):
        with opened() as ask:
            ask("runs")
            if ask(f"jobs/{job['id']}")["run_there"]:
                ask(f"runs/{job['run']}/series")
                ask(f"runs/{job['run']}/actions")
            if number % 10 == 0:
                ask("check", {"verb": "sft", "values": VALUES})
            time.sleep(draw.random() / 3)
    with opened() as ask:
        while not checkpoints(FOLDER / "output" / "tiny" / "watched"):
            time.sleep(0.2)
        assert ask(f"jobs/{job['id']}")["state"] == "running", "the run ended while the server was killed"
        ask(f"jobs/{job['id']}/stop", {})
        while ask(f"jobs/{job['id']}")["alive"]:
            time.sleep(0.2)
    return str(job["command"])


@contextlib.contextmanager
def opened() -> Any:
    """Start a server and log in; kill it with SIGKILL in the end. Yields what asks it."""
    command = [SWIFT, "ui", "output", "--port", "0"]
    with subprocess.Popen(command, cwd=FOLDER, env=environment(), stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            found = re.search(r"(http://127.0.0.1:\d+)/#token=(\S+)", server.stdout.readline())
            assert found is not None
            address, headers = found[1], {"Origin": found[1], "Content-Type": "application/json"}

            def ask(path: str, content: dict[str, Any] | None = None) -> Any:
                data = None if content is None else json.dumps(content).encode()
                request = urllib.request.Request(f"{address}/api/{path}", data, headers)
                with urllib.request.urlopen(request, timeout=120) as answered:
                    if cookie := answered.headers.get("set-cookie"):
                        headers["Cookie"] = cookie.partition(";")[0]
                    return json.loads(answered.read())

            ask("login", {"token": found[2]})
            yield ask
        finally:
            server.send_signal(signal.SIGKILL)


def terminal(command: str, step: int) -> None:
    """Run the same command without a dashboard until it has saved a step."""
    words = command.replace("watched", "alone").split()[1:]
    with subprocess.Popen([SWIFT, *words], cwd=FOLDER, env=environment(), stdout=subprocess.DEVNULL) as run:
        folder = FOLDER / "output" / "tiny" / "alone"
        while step not in checkpoints(folder, whole=False):
            assert run.poll() is None, "the run in the terminal has failed"
            time.sleep(0.2)
        run.send_signal(signal.SIGTERM)


def checkpoints(folder: Path, *, whole: bool = True) -> dict[int, dict[str, str]]:
    """Return the hashes of all tensors' files, by step; only of steps at which every run saves."""
    found = {}
    for each in folder.glob("checkpoint-*"):
        step = int(each.name.rpartition("-")[2]) if each.name.rpartition("-")[2].isdecimal() else 1
        if step % EVERY == 0 and (each / "manifest.json").is_file():
            files = sorted(each.rglob("*.safetensors")) if whole else []
            found[step] = {str(file.relative_to(each)): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}
    return found


if __name__ == "__main__":
    sys.exit("Type: python -m benchmarks ui_kills")
