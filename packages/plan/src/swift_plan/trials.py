"""Runs a plan for a few steps on this machine: its step time and peak memory are measured."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from swift.errors import UsageError
from swift_plan.watching import FILE_NAME, SEEN, TIMED, TRAINING, TRIAL, WARM

STEPS = WARM + TIMED + SEEN
"""Of a trial."""
SECONDS = 1800.0
"""How long a trial may take until it is ended."""
_KILLED = (-signal.SIGKILL, 128 + signal.SIGKILL)
_LACKED = re.compile(r"out of memory|OutOfMemory|cannot allocate memory|DefaultCPUAllocator", re.IGNORECASE)
_UNSAVED = ("--save_strategy", "no", "--checkpoint.save_last", "false")
_WEIGHTS = ("*.safetensors", "*.bin")


@dataclass(frozen=True)
class ShortRun:
    """A run of a few steps: its step and its peak, or why there is none."""

    seconds: float = 0.0
    """Of a step."""
    peak: float = 0.0
    """Bytes of the process with the most; in training alone, where its phases were watched."""
    failure: str = ""
    """Why there is nothing to measure: 'out of memory', or the first line of an error."""
    cpu_seconds: float = 0.0
    """Of a step, of all processes together."""
    peaks: Mapping[str, float] = field(default_factory=dict)
    """Bytes of the process with the most in each phase, of a run whose processes were watched."""


class ShortRuns:
    """Runs of one model on this machine, in a folder of their own that is removed at the end."""

    def __init__(self, command_name: str, model: str, args: Sequence[str], folder: Path) -> None:
        self._command_name, self._args, self._folder = command_name, list(args), folder
        self._count = 0
        self.model = Path(model)
        if not self.model.is_dir():
            raise UsageError(
                f"Model folder not found: {model}. Measuring needs the files of the model.",
                hint="Pass a model folder; config.json and tokenizer are enough.",
            )

    @classmethod
    @contextmanager
    def begun(cls, command_name: str, model: str, args: Sequence[str]) -> Iterator[ShortRuns]:
        """Return what runs trials, until the end of the `with` statement."""
        with tempfile.TemporaryDirectory(prefix="swift-plan-") as folder:
            yield cls(command_name, model, args, Path(folder))

    def run(self, flags: Sequence[str], *, rows: int, length: int, blocks: int | None = None) -> ShortRun:
        """Run a plan, given as flags, on so many rows a step; with `blocks` on a model of so many blocks.

        Of blocks each phase is measured; a whole run is one as users make them, and is added to the ledger.
        """
        argv, output = self.argv(flags, rows=rows, length=length, blocks=blocks)
        watched = {} if blocks is None else {TRIAL: "1"}
        code, output_text = ended([sys.executable, "-m", "swift", *argv], watched)
        if code == 0 and watched:
            return watched_run(output)
        plans = list(output.rglob("plan.json"))
        if code == 0 and plans:
            measured = json.loads(plans[0].read_text(encoding="utf-8"))["measured"]
            return ShortRun(float(measured["step_seconds"]), float(measured["peak_bytes"]))
        if code in _KILLED or _LACKED.search(output_text):
            return ShortRun(failure="out of memory")
        return ShortRun(failure=failure_of(output_text))

    def argv(
        self, flags: Sequence[str], *, rows: int, length: int, blocks: int | None = None
    ) -> tuple[list[str], Path]:
        """Return the arguments of `swift` for a run, and its output folder."""
        self._count += 1
        model = self.model if blocks is None else self.cut(blocks)
        output = self._folder / f"run-{self._count}"
        args = ["--model", str(model), *self._args, *flags, "--max_steps", str(STEPS), *_UNSAVED]
        args += ["--output_dir", str(output), "--report_to", "plan"]
        if not any(model.glob(pattern) for pattern in _WEIGHTS) or blocks is not None:
            args += ["--model.random_weights", "true"]
        named = {arg[2:].partition("=")[0].replace("-", "_") for arg in self._args if arg.startswith("--")}
        if not named & {"dataset", "data.train"}:
            args += ["--dataset", str(self._rows(rows, length)), "--truncation_strategy", "right"]
        return [self._command_name, *args], output

    def cut(self, blocks: int) -> Path:
        """Return the folder of the same model with so many of its last blocks, without weights."""
        folder = self._folder / f"blocks-{blocks}"
        if folder.exists():
            return folder
        folder.mkdir()
        for file in self.model.iterdir():
            if file.is_file() and not any(file.match(pattern) for pattern in (*_WEIGHTS, "*.index.json")):
                shutil.copy(file, folder / file.name)
        config = json.loads((self.model / "config.json").read_text(encoding="utf-8"))
        (folder / "config.json").write_text(json.dumps(cut(config, blocks)), encoding="utf-8")
        return folder

    def _rows(self, rows: int, length: int) -> Path:
        """Return a data set of rows that all have at least so many tokens, enough for all steps."""
        file = self._folder / f"rows-{rows}-{length}.jsonl"
        if not file.exists():
            text = " ".join(f"arg {index}" for index in range(length))
            chat = {"messages": [{"role": "user", "content": "?"}, {"role": "assistant", "content": text}]}
            line = json.dumps({"text": text} if self._command_name == "pt" else chat) + "\n"
            with file.open("w", encoding="utf-8") as out:
                out.writelines(line for _ in range(rows * STEPS))
        return file


def cut(config: Mapping[str, Any], blocks: int) -> dict[str, Any]:
    """Return config.json of a model that has so many of the blocks, the last ones."""
    made = dict(config)
    if isinstance(text := made.get("text_config"), Mapping):
        return made | {"text_config": cut(text, blocks)}
    for name in ("num_hidden_layers", "n_layer", "n_layers"):
        if name in made:
            made[name] = blocks
    if isinstance(kinds := made.get("layer_types"), list):
        made["layer_types"] = kinds[-blocks:]
    if made.get("first_k_dense_replace"):
        made["first_k_dense_replace"] = 0
    return made


def watched_run(output: Path) -> ShortRun:
    """Return what the processes of a watched run have written below its folder."""
    each = [json.loads(file.read_text(encoding="utf-8")) for file in sorted(output.rglob(FILE_NAME.format("*")))]
    if not each:
        return ShortRun(failure="no process wrote its measurements")
    peaks = {phase: max(seen["peaks"].get(phase, 0.0) for seen in each) for phase in each[0]["peaks"]}
    return ShortRun(
        seconds=max(median(seen["seconds"]) for seen in each),
        # What else a machine does can only add to it.
        cpu_seconds=sum(min(seen["cpu_seconds"]) for seen in each),
        peak=max(peaks.get(phase, 0.0) for phase in TRAINING),
        peaks=peaks,
    )


def failure_of(output_text: str) -> str:
    """Return the line of a command's output that best explains its failure."""
    lines = [line.strip() for line in output_text.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("Error") or "rror:" in line]
    return (errors or lines or ["no output"])[-1][:300]


def ended(
    command: Sequence[str], variables: Mapping[str, str], on_line: Callable[[str], None] = lambda _: None
) -> tuple[int, str]:
    """Run a command; return its exit code and output. `on_line` is called for each line."""
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        errors="replace", start_new_session=True, env={**os.environ, "TOKENIZERS_PARALLELISM": "false", **variables},
    )  # fmt: skip
    late: list[bool] = []

    def end() -> None:
        late.append(True)
        os.killpg(process.pid, signal.SIGKILL)

    timer = threading.Timer(SECONDS, end)
    timer.start()
    output_text = []
    try:
        for line in process.stdout or ():
            output_text.append(line)
            on_line(line)
        process.wait()
    finally:
        timer.cancel()
        if process.poll() is None:  # also where Ctrl-C ends this
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    if late:
        return 1, f"Error: timed out after {SECONDS:.0f} seconds"
    return process.returncode, "".join(output_text)
