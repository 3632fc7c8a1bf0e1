"""Ask an inference engine in a separate process, and leave nothing of it behind.

An engine takes the device, starts processes and threads, and reads the variables that launchers set: none of that
belongs in a process that trains or exports. One start serves all questions.

`python -m swift.export.verify.ask` reads a question as JSON on standard input and writes the outputs into the file that
it names; `ask_engine` starts it.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from swift.config.tasks import CAUSAL_LM
from swift.errors import ModelError, SwiftError
from swift.files import replace_file
from swift.terminal import waiting

_LAUNCHERS = ("RANK", "WORLD_SIZE", "LOCAL_", "GROUP_", "ROLE_", "MASTER_", "TORCHELASTIC_", "OMPI_", "PMI_", "SLURM_")
"""Beginnings of variables by which a process would take itself for one of several."""
_TAIL = 3


@dataclass(frozen=True)
class EngineQuestion:
    """A model to load, and the prompts to ask it."""

    engine: str
    model: str
    prompts: Sequence[Sequence[int]]
    max_new_tokens: int
    adapter: str | None = None
    dtype: str = "auto"
    max_length: int | None = None
    trust_remote_code: bool = False
    task: str = CAUSAL_LM
    """A model of another one is asked for its scores or vectors instead."""
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class EngineOutputs:
    """One of each per prompt."""

    logps: list[list[float]]
    greedy: list[list[int]]
    greedy_logps: list[list[float]]
    vectors: list[list[float]] = field(default_factory=list)


def ask_engine(question: EngineQuestion, *, timeout: float = 3600.0) -> EngineOutputs:
    """Start the engine, ask, and stop it. `ModelError` where it cannot load the model, with its own reason."""
    with tempfile.TemporaryDirectory(prefix="swift-ask-") as folder:
        outputs, log = Path(folder, "outputs.json"), Path(folder, "log")
        with log.open("wb") as output, waiting(f"Asking {question.engine}"):
            process = subprocess.Popen(
                [sys.executable, "-m", "swift.export.verify.ask"],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=_clean(os.environ),
                start_new_session=True,
            )
            try:
                process.communicate(json.dumps({"outputs": str(outputs), **asdict(question)}).encode(), timeout=timeout)
            except subprocess.TimeoutExpired:
                pass
            finally:
                _stop(process)
        if not outputs.is_file():
            tail = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-_TAIL:]
            raise ModelError(
                f"{question.engine} failed (exit code {process.returncode}). Its last lines:\n"
                + "\n".join(f"  {line}" for line in tail)
            )
        returned = json.loads(outputs.read_text(encoding="utf-8"))
    if "error" in returned:
        raise ModelError(returned["error"], hint=returned["hint"])
    return EngineOutputs(**returned)


def _clean(variables: Mapping[str, str]) -> dict[str, str]:
    kept = {name: value for name, value in variables.items() if not name.startswith(_LAUNCHERS)}
    # The engine must be the same one, wherever it is started from.
    kept["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path and Path(path).is_dir())
    return kept


def _stop(process: subprocess.Popen[bytes]) -> None:
    """End everything that it has started."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def main() -> int:
    """In the child."""
    request = json.load(sys.stdin)
    target = Path(request.pop("outputs"))
    try:
        returned: dict[str, Any] = asdict(_outputs(EngineQuestion(**request)))
    except SwiftError as error:
        returned = {"error": error.message, "hint": error.hint}
    replace_file(target, json.dumps(returned))
    return 0


def _outputs(question: EngineQuestion) -> EngineOutputs:
    from swift.contracts import EngineRequest, Sampling
    from swift.plugins.inference import open_inference, outputs_of
    from swift.plugins.load import load_engine

    request = EngineRequest(
        model=Path(question.model),
        adapter=None if question.adapter is None else Path(question.adapter),
        dtype=question.dtype,
        max_length=question.max_length,
        trust_remote_code=question.trust_remote_code,
        task=question.task,
        options=question.options,
    )
    engine = open_inference(load_engine(question.engine), request)
    try:
        if question.task != CAUSAL_LM:
            outputs = dict(outputs_of(engine, question.prompts))
            return EngineOutputs([], [], [], [outputs[index] for index in range(len(question.prompts))])
        scores = dict(engine.score(question.prompts))
        generated = dict(engine.generate(question.prompts, Sampling(max_new_tokens=question.max_new_tokens)))
    finally:
        engine.close()
    ordered = [generated[index] for index in range(len(question.prompts))]
    logps = [scores[index].logprobs for index in range(len(question.prompts))]
    return EngineOutputs(logps, [each.token_ids for each in ordered], [each.logprobs for each in ordered])


if __name__ == "__main__":
    sys.exit(main())
