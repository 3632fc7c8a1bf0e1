"""A run that is out of memory ends with what it had, beside the plan's terms, and with what would take less."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from commands import typed
from tiny_runs import conversations, write_jsonl, write_model

from swift.train.failures import LESS_MEMORY, lacks_memory


def test_out_of_memory_is_recognized() -> None:
    with pytest.raises(RuntimeError) as of_machine:
        torch.empty(1 << 60)
    assert lacks_memory(of_machine.value)
    assert lacks_memory(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."))
    assert lacks_memory(MemoryError())
    assert not lacks_memory(RuntimeError("shapes differ"))


@pytest.mark.full
@pytest.mark.parametrize("planned", [True, False])
def test_plan_is_shown_with_measurement(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, planned: bool) -> None:
    def lacks(*_: object, **__: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    monkeypatch.setattr("swift.backends.torch.step.update", lacks)
    if not planned:
        monkeypatch.setattr("swift.plugins.discover.list_plugins", lambda *_: [])
    write_model(tmp_path / "model")
    write_jsonl(tmp_path / "rows.jsonl", conversations(16))
    words = ["sft", "--model", "model", "--dataset", "rows.jsonl", "--train_type", "full", "--max_length", "512"]
    ended = typed(
        [*words, "--output_dir", "out", "--per_device_train_batch_size", "8", "--report_to", "jsonl"], tmp_path
    )
    assert ended.code != 0
    assert "Process 0 ran out of memory in" in ended.output
    assert "Tried to allocate 2.00 GiB. It had" in ended.output
    if not planned:
        assert LESS_MEMORY in ended.output
        return
    assert re.search(
        r"The planner estimates .* GiB for samples of --max_length 512: .*weights .*activations", ended.output
    )
    assert "With --per_device_train_batch_size 4: " in ended.output
    assert "With --gradient_checkpointing true: " in ended.output
