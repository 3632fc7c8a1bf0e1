"""Start commands as a user would, each in a separate process, and observe their progress."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from benchmarks.inputs import CHATS, MODEL, ROOT, WORK

SWIFT = str(Path(sys.executable).with_name("swift"))
RUNS = WORK / "runs"
TRAINING = (
    "--train_type", "full", "--learning_rate", "1e-4", "--lr_scheduler_type", "constant",
    "--warmup_ratio", "0", "--weight_decay", "0",
)  # fmt: skip
"""A learning rate that stays, and no weight decay: what is easiest to write by hand."""
ROWS = 8
PACK_TOKENS = 426
"""As many tokens as 8 of the chats have on average: packed or padded, a step learns from as much."""
LEARNING_RATE = float(TRAINING[TRAINING.index("--learning_rate") + 1])
PADDED = ("--per_device_train_batch_size", str(ROWS))
PACKED = ("--per_device_train_batch_size", "1", "--packing", "true", "--max_length", str(PACK_TOKENS))

OBSERVERS = {
    "loop-in-turn": "observers:LoopInTurn",
    "peer-in-turn": "observers:PeerInTurn",
    "memory-of-each": "observers:MemoryOfEach",
    "stopwatch": "observers:Stopwatch",
    "pipeline-watch": "megatron:PipelineWatch",
    "traffic-of-each": "traffic_watch:TrafficOfEach",
    "checkpoint-watch": "checkpoints:CheckpointWatch",
}
"""Names for `--report_to`, and what they load."""

_GLANCE = 0.02
"""Seconds between two looks at a run: looking takes time from what is looked at."""
UNSAVED = ("--checkpoint.save_last", "false")
_UNUSUAL = ("PYTHONDONTWRITEBYTECODE", "PYTHONPATH")


def environment(**more: str) -> dict[str, str]:
    """Return this process's environment with a plain user's settings.

    Compiled modules are kept, and no hub is asked.
    """
    kept = {name: value for name, value in os.environ.items() if name not in _UNUSUAL}
    return {**kept, "HF_HUB_OFFLINE": "1", **more}


def swift_run(
    name: str,
    *arguments: str,
    observers: Sequence[str] = (),
    model: Path = MODEL,
    data: Path = CHATS,
    variables: Mapping[str, str] | None = None,
    command: str = "sft",
    reports: Sequence[str] = ("console", "jsonl", "tensorboard", "report"),
) -> Path:
    """Train with `swift sft` or another command, its usual observers and `observers`; returns the run's folder."""
    shutil.rmtree(RUNS / model.name / name, ignore_errors=True)
    output = ["--output_dir", str(RUNS), "--logging.run_name", name, "--report_to", *reports, *observers]
    python_path = os.pathsep.join([str(plugin_folder()), str(ROOT)])
    call(
        [SWIFT, command, *training_argv(model, data, *arguments), *output],
        environment(PYTHONPATH=python_path, **(variables or {})),
    )
    return RUNS / model.name / name


def training_argv(model: Path, data: Path, *arguments: str) -> list[str]:
    """Return the arguments of a training command."""
    return ["--model", str(model), "--dataset", str(data), *TRAINING, *arguments]


def plugin_folder() -> Path:
    """Return a folder with the metadata that an installation of the benchmarks' observers as a plugin would leave."""
    folder = WORK / "plugin"
    metadata = folder / "swift_benchmarks-1.dist-info"
    metadata.mkdir(parents=True, exist_ok=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: swift-benchmarks\nVersion: 1\n")
    points = (f"{name} = benchmarks.{target}\n" for name, target in OBSERVERS.items())
    (metadata / "entry_points.txt").write_text("[swift.observers]\n" + "".join(points))
    return folder


def call(command: Sequence[str], variables: dict[str, str], folder: Path = ROOT, fine: Sequence[int] = (0,)) -> str:
    """Run a command to its end and return its output; a failure ends the benchmark with the last lines of it."""
    done = subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, check=False)
    if done.returncode not in fine:
        _give_up(command, done.returncode, done.stdout + done.stderr)
    return done.stdout


def call_module(module: str, order: Mapping[str, Any], *launcher: str, **variables: str) -> str:
    """Run a module of the benchmarks, which reads its order from a JSON file, and return its output."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "order.json")
        path.write_text(json.dumps(order))
        return call([sys.executable, *launcher, "-m", module, str(path)], environment(**variables))


def kept(file: Path, make: Callable[[], Any]) -> Any:
    """Return what a file of JSON holds; it is made unless it is there from a measurement that was stopped."""
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        made = json.dumps(make())
        file.write_text(made)
    return json.loads(file.read_text())


def seconds_of(command: Sequence[str], variables: dict[str, str]) -> float:
    begin = time.perf_counter()
    call(command, variables)
    return time.perf_counter() - begin


@dataclass(frozen=True)
class Course:
    """A training command seen from outside: seconds from its start to the line of each step in `logging.jsonl`."""

    steps: list[float]

    def first_step(self) -> float:
        return self.steps[0]

    def rate(self, amount: float) -> float:
        """Per second, of an `amount` that all steps share alike; the start-up and the first step don't count."""
        count = len(self.steps)
        return amount * (count - 1) / count / (self.steps[-1] - self.steps[0])


def watch(command: Sequence[str], variables: dict[str, str], output: Path) -> Course:
    """Run a training command that logs every step, and note when each appears under `output`."""
    shutil.rmtree(output, ignore_errors=True)
    output.mkdir(parents=True)
    seen: list[float] = []
    with (output / "terminal.txt").open("w") as terminal:
        begin = time.perf_counter()
        process = subprocess.Popen(command, cwd=ROOT, env=variables, stdout=terminal, stderr=subprocess.STDOUT)
        with _ended(process):
            log: Path | None = None
            size = 0
            while process.poll() is None:
                now = time.perf_counter() - begin
                log = log or next(output.rglob("logging.jsonl"), None)
                if log and log.stat().st_size != size:
                    size = log.stat().st_size
                    seen += [now] * (_steps_logged(log) - len(seen))
                time.sleep(_GLANCE)
    if process.returncode or not seen:
        _give_up(command, process.returncode, (output / "terminal.txt").read_text())
    return Course(seen)


@contextmanager
def _ended(process: subprocess.Popen[bytes]) -> Iterator[None]:
    try:
        yield
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait()


def _steps_logged(log: Path) -> int:
    complete = log.read_text(encoding="utf-8").split("\n")[:-1]
    return sum("loss" in line and "global_step/max_steps" in line for line in map(json.loads, complete))


def _give_up(command: Sequence[str], code: int, printed: str) -> NoReturn:
    last_lines = "\n".join(printed.splitlines()[-15:])
    sys.exit(f"{' '.join(command)}\nended with {code}:\n{last_lines}")
