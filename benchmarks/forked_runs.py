"""Runs of swift whose processes are forked from one that has imported what they need: each saves the time to start.

`python -m benchmarks.forked_runs ORDER.json`, in an environment in which the plugins of the benchmarks are found.
"""

from __future__ import annotations

import importlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from benchmarks.commands import environment, plugin_folder
from benchmarks.inputs import ROOT

USUAL = (
    "torch.distributed.fsdp", "torch.distributed.tensor", "torch.testing", "transformers.models.qwen3.modeling_qwen3",
    "peft", "swift.cli.train", "swift.engine",
)  # fmt: skip
"""What every run imports, so far as it is there; of an order also functions to call, as `module:function`."""
_PATIENCE = 900.0
"""Seconds after which a run is given up."""


def forked_runs(
    runs: Sequence[tuple[Sequence[str], int]], imports: Sequence[str], variables: Mapping[str, str]
) -> Iterator[str]:
    """Run commands of swift, each in so many processes, one after the other; yields why each failed, or nothing."""
    order = {"runs": [[list(words), count] for words, count in runs], "imports": [*USUAL, *imports]}
    path = os.pathsep.join([str(plugin_folder()), str(ROOT)])
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "order.json")
        file.write_text(json.dumps(order))
        command = [sys.executable, "-m", "benchmarks.forked_runs", str(file)]
        told = environment(PYTHONPATH=path, OMP_NUM_THREADS="1", **variables)
        with subprocess.Popen(command, cwd=ROOT, env=told, stdout=subprocess.PIPE, text=True) as parent:
            for line in parent.stdout or ():
                yield json.loads(line)


def main(file: str) -> None:
    """Import, and run what is ordered."""
    order: dict[str, Any] = json.loads(Path(file).read_text())
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # engines print while they are imported
    for name in order["imports"]:
        module, _, function = name.partition(":")
        try:
            found = importlib.import_module(module)
        except ImportError:
            continue
        if function:
            getattr(found, function)()
    for number, (words, count) in enumerate(order["runs"]):
        log = Path(file).with_name(f"{number}.log")
        failed = _run(words, count, log)
        why = "\n".join(log.read_text().splitlines()[-15:]) if failed else ""
        print(json.dumps(why), file=answers, flush=True)


def _run(words: Sequence[str], count: int, log: Path) -> bool:
    """Fork the processes of a run, and wait for all; the first that fails ends the others."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with log.open("wb") as said:
        running = set()
        for rank in range(count):
            child = os.fork()
            if child == 0:
                _be(rank, count, port, words, said.fileno())
            running.add(child)
        failed, until = False, time.monotonic() + _PATIENCE
        while running:
            child, status = os.waitpid(-1, os.WNOHANG)
            running.discard(child)
            if (child and status) or (time.monotonic() > until and not failed):
                failed = True
                for other in running:
                    os.kill(other, 9)
            time.sleep(0.05)
    return failed


def _be(rank: int, count: int, port: int, words: Sequence[str], said: int) -> NoReturn:
    """Be one process of a run, as a launcher would have started it."""
    code = 1
    try:
        os.dup2(said, 1)
        os.dup2(said, 2)
        os.environ.update(
            RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(count), LOCAL_WORLD_SIZE=str(count),
            MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port),
        )  # fmt: skip
        sys.argv = ["swift", *words]
        from swift.cli.main import main as swift

        swift()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    main(sys.argv[1])
