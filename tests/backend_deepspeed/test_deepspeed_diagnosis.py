"""What a run says of its own slowness: that it is found, on real processes, and that there is nothing to say else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from processes import on_processes, succeeded
from tiny_runs import run_training

from swift_backend_deepspeed.diagnosis import Spent, findings
from swift_testing.subjects import write_model


def test_a_costly_update_and_uneven_tokens_are_named() -> None:
    even = [Spent(10.0, 6.0, 1000), Spent(10.0, 5.0, 1000)]
    (line,) = findings(even, "cpu")
    assert "60% of a step is the update of what offload_optimizer keeps on cpu" in line
    assert list(findings(even, "none")) == []
    (line,) = findings([Spent(10.0, 1.0, 1000), Spent(10.0, 1.0, 3000)], "cpu")
    assert "Process 1 has 1.5 times the mean number of tokens" in line
    assert "--packing true" in line


def test_uneven_rows_are_reported(tmp_path: Path) -> None:
    model = write_model(tmp_path / "tiny", num_hidden_layers=1)
    # Rows are dealt in turn: one process gets all the long ones.
    rows = [{"query": "Write", "response": "ab" * (40 if index % 2 else 2)} for index in range(48)]

    def job() -> Any:
        settings = {"backend.name": "deepspeed", "train.micro_batch": 1, "train.max_steps": 23, "data.shuffle": False}
        said: list[str] = []
        import swift_backend_deepspeed.shard as shard

        plain = shard.Watch
        shard.Watch = lambda device, say: plain(device, said.append)  # type: ignore[assignment, misc]
        run_training(model, tmp_path / "out", rows, settings)
        return said

    (answers,) = on_processes(2, job, fresh=True)
    for said in succeeded(answers):
        assert len(said) == 1
        assert "Process 1 has 1." in said[0]
