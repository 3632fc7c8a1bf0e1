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
from dataclasses import asdict
from pathlib import Path
from typing import Any

from swift.config.tasks import CAUSAL_LM
from swift.errors import ModelError, SwiftError
from swift.export.verify.compare import Outputs
from swift.files import replace_file
from swift.terminal import waiting

_LAUNCHERS = ("RANK", "WORLD_SIZE", "LOCAL_", "GROUP_", "ROLE_", "MASTER_", "TORCHELASTIC_", "OMPI_", "PMI_", "SLURM_")
"""Beginnings of variables by which a process would take itself for one of several."""
_TAIL = 3
_SECONDS = 3600.0


def ask_engine(engine: str, request: Mapping[str, Any], prompts: Sequence[Sequence[int]], *, most: int) -> Outputs:
    """Start the engine, ask it about the prompts and for up to `most` more tokens, and stop it.

    `request` has the fields of an `EngineRequest` as JSON. `ModelError` has the engine's own reason where it cannot
    load the model.
    """
    with tempfile.TemporaryDirectory(prefix="swift-ask-") as folder:
        outputs, log = Path(folder, "outputs.json"), Path(folder, "log")
        question = {"outputs": str(outputs), "engine": engine, "request": request, "prompts": prompts, "most": most}
        with log.open("wb") as output, waiting(f"Asking {engine}"):
            process = subprocess.Popen(
                [sys.executable, "-m", "swift.export.verify.ask"],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=_clean(os.environ),
                start_new_session=True,
            )
            try:
                process.communicate(json.dumps(question).encode(), timeout=_SECONDS)
            except subprocess.TimeoutExpired:
                pass
            finally:
                with suppress(ProcessLookupError):  # with everything that it has started
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        if not outputs.is_file():
            tail = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-_TAIL:]
            raise ModelError(
                f"{engine} failed (exit code {process.returncode}). Its last lines:\n"
                + "\n".join(f"  {line}" for line in tail)
            )
        returned = json.loads(outputs.read_text(encoding="utf-8"))
    if "error" in returned:
        raise ModelError(returned["error"], hint=returned["hint"])
    return Outputs(**returned)


def _clean(variables: Mapping[str, str]) -> dict[str, str]:
    kept = {name: value for name, value in variables.items() if not name.startswith(_LAUNCHERS)}
    # The engine must be the same one, wherever it is started from.
    kept["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path and Path(path).is_dir())
    return kept


def main() -> int:
    """In the child."""
    question = json.load(sys.stdin)
    target = Path(question.pop("outputs"))
    try:
        returned: dict[str, Any] = asdict(_outputs(**question))
    except SwiftError as error:
        returned = {"error": error.message, "hint": error.hint}
    replace_file(target, json.dumps(returned))
    return 0


def _outputs(engine: str, request: dict[str, Any], prompts: list[list[int]], most: int) -> Outputs:
    from swift.contracts import EngineRequest, Sampling
    from swift.plugins.inference import open_inference, outputs_of
    from swift.plugins.load import load_engine

    adapter = request.pop("adapter")
    whole = EngineRequest(Path(request.pop("model")), None if adapter is None else Path(adapter), **request)
    opened = open_inference(load_engine(engine), whole)
    try:
        if whole.task != CAUSAL_LM:
            vectors = dict(outputs_of(opened, prompts))
            return Outputs(vectors=[vectors[index] for index in range(len(prompts))])
        scores = dict(opened.score(prompts))
        generated = dict(opened.generate(prompts, Sampling(max_new_tokens=most)))
    finally:
        opened.close()
    ordered = [generated[index] for index in range(len(prompts))]
    logps = [scores[index].logprobs for index in range(len(prompts))]
    return Outputs(logps, [each.token_ids for each in ordered], [each.logprobs for each in ordered])


if __name__ == "__main__":
    sys.exit(main())
