"""A process that dies in the middle of a step ends the others, and is named, on every engine."""

from __future__ import annotations

from pathlib import Path

import pytest
from commands import noise, sabotage, sft, started

from swift_testing.subjects import conversations, write_jsonl, write_model

ENGINES = {
    "fsdp": ("--backend", "fsdp", "--train_type", "full"),
    "deepspeed": ("--deepspeed", "zero2"),
    "megatron": ("--backend", "megatron", "--pp", "2"),
}
"""Name → how it is asked for; `tests/core/processes` tries the torch backend."""


@pytest.mark.full
@pytest.mark.parametrize("engine", ENGINES)
def test_process_dying_mid_step_ends_others_and_is_named(engine: str, tmp_path: Path) -> None:
    """A process that dies in mid step ends the others and is named."""
    write_model(tmp_path / "tiny")
    write_jsonl(tmp_path / "data.jsonl", conversations(64))
    environment = sabotage(tmp_path, 1, "os.kill(os.getpid(), 9)")
    command = sft(*ENGINES[engine], "--nproc", "2", "--max_steps", "500", "--save_steps", "1")
    with started(command, tmp_path, environment) as run:
        run.until("step 1/500")
        assert run.code() == 1, run.output
        assert run.leaves_nothing()
    assert run.output.count("Error:") == 1
    assert "Process 1 was killed by SIGKILL" in run.output
    assert "checkpoint-1" in run.output
    assert noise(run.output) == []
