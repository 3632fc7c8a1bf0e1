"""Weights in training on their way to inference engines, where every process has one of its own."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
from processes import on_processes, succeeded
from tiny_runs import BASE, conversations, write_model

from swift.parsing import config_from_mapping
from swift.train.loop import Loop
from swift.train.prepare import open_job

ROWS = conversations(8)
SHARDED: dict[str, Any] = {
    **{key: value for key, value in BASE.items() if key != "backend.device"},
    "backend.name": "fsdp",
    "parallel.dp_shard": 2,
    "train.global_batch": 4,
    "train.micro_batch": 2,
    "train.max_steps": 2,
    "logging.report_to": [],
}


class Recorder:
    """Takes weights as an inference engine does, and stops early where it is told to."""

    def __init__(self, at_most: int | None = None) -> None:
        self.sums: dict[str, float] = {}
        self.at_most = at_most

    def update_weights(self, weights: Any) -> None:
        for name, tensor in weights:
            if len(self.sums) == self.at_most:
                raise RuntimeError("out of memory")
            assert name not in self.sums
            self.sums[name] = float(tensor.double().abs().sum())


def sent(model: Path, output: Path, changes: dict[str, Any]) -> list[dict[str, float] | None]:
    """What engines on this process have got: on both, on the second alone, and after one that failed on the first."""
    settings = {**SHARDED, "model.path": str(model), "logging.output": str(output), **changes}
    got: list[dict[str, float] | None] = []
    with open_job(config_from_mapping(settings), rows=ROWS) as job:
        Loop(job).run()
        send: Any = job.run.send_weights
        for engine in (Recorder(), None if job.is_main else Recorder(), Recorder(at_most=3 if job.is_main else None)):
            try:
                send(engine)
            except RuntimeError:
                assert job.is_main
            got.append(engine and engine.sums)
        job.comms.barrier()
    return got


@pytest.mark.full
def test_each_rank_may_pass_engine_and_gets_all_weights(tmp_path: Path) -> None:
    """Each process may hand over an engine of its own and each gets every weight."""
    model = write_model(tmp_path / "tiny")
    lora = {"tuner.kind": "lora", "optim.lr": 1e-2, "logging.run_name": "lora"}
    whole, merged = (
        succeeded(each)
        for each in on_processes(2, *(partial(sent, model, tmp_path, changes) for changes in ({}, lora)), fresh=True)
    )
    for first, second in (whole, merged):
        assert first[0] == pytest.approx(second[0])
        assert first[1] is None
        assert second[1] == pytest.approx(second[0])
        assert len(first[2] or ()) == 3
        assert second[2] == pytest.approx(second[0])
    # An adapter is merged into weights of the model, under their names.
    assert whole[0][0] is not None
    assert merged[0][0] is not None
    assert whole[0][0].keys() == merged[0][0].keys()
