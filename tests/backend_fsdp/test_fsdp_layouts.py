"""What FSDP refuses, and that a shard is all that a process holds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from processes import on_processes, succeeded
from tiny_runs import conversations, run_training

from swift.errors import ModelError, UnsupportedLayout
from swift.parsing import config_from_mapping
from swift_testing.subjects import write_model

ROWS = conversations(9)
LORA = {"tuner.kind": "lora", "tuner.dropout": 0.0}

REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "more shards than processes": ({"parallel.dp_shard": 4}, "needs 4 processes, but 2 were started"),
    "cp and ulysses": ({"parallel.cp": 2, "parallel.ulysses": 2, "parallel.dp_shard": 1}, "needs 4 processes"),
    "quantised and tp": ({**LORA, "tuner.quantize": "bnb-nf4", "parallel.tp": 2}, "tuner.quantize bnb-nf4 stores"),
    "quantised and ep": ({**LORA, "tuner.quantize": "bnb-nf4", "parallel.ep": 2}, "tuner.quantize bnb-nf4 stores"),
    "dora and tp": ({**LORA, "tuner.dora": True, "parallel.tp": 2}, "tuner.dora needs norms of whole matrices"),
    "adafactor": ({"optim.name": "adafactor"}, "the optimizer 'adafactor' (it needs whole rows of weights)"),
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("models") / "tiny")


def test_unsupported_layouts_are_refused_with_hint(model: Path, tmp_path: Path) -> None:
    odd = write_model(tmp_path / "odd", num_hidden_layers=1, num_attention_heads=3, num_key_value_heads=1)
    uneven = write_model(tmp_path / "uneven", num_hidden_layers=1, intermediate_size=255)
    empty = write_model(tmp_path / "empty", num_hidden_layers=0)
    capped = write_model(tmp_path / "capped", architecture="Gemma2", num_hidden_layers=1)
    square = {"hidden_size": 256, "intermediate_size": 256, "head_dim": 16, "num_key_value_heads": 4}
    packed = write_model(tmp_path / "packed", num_hidden_layers=1, **square)
    jobs = [(model, changes) for changes, _ in REFUSED.values()]
    said = [reason for _, reason in REFUSED.values()]
    jobs += [
        (odd, {"parallel.ulysses": 2}),
        (odd, {"parallel.tp": 2}),
        (uneven, {"parallel.tp": 2}),
        (capped, {"parallel.cp": 2}),
        (empty, {}),
        (packed, {**LORA, "tuner.quantize": "torchao-nf4"}),
    ]
    said += [
        "3 attention heads are not divisible by parallel.ulysses 2",
        "3 attention heads with 1 key-value heads are not divisible by parallel.tp 2",
        "intermediate_size 255 is not divisible by parallel.tp 2",
        "does not support sharded sequences",
        "num_hidden_layers is 0",
        "q_proj.base_layer.weight in 1 blocks, which 2 processes cannot share equally",
    ]

    def job(folder: Path, changes: dict[str, Any]) -> Any:
        return lambda: run_training(folder, tmp_path / "out", ROWS, {"backend.name": "fsdp", **changes})

    for answers, reason in zip(on_processes(2, *(job(*each) for each in jobs)), said, strict=True):
        for answer in answers:
            assert isinstance(answer, UnsupportedLayout | ModelError), answer
            assert reason in answer.message
            assert answer.hint
    assert not (tmp_path / "out").exists()


def test_rank_reads_one_tensor_shard_at_a_time(model: Path) -> None:
    """A process holds a part of every tensor and reads one at a time."""

    def shares() -> tuple[int, int]:
        from swift.train.prepare import open_job

        parsed = config_from_mapping({"model.path": str(model), "backend.name": "fsdp", "tuner.kind": "full"})
        with open_job(parsed, rows=ROWS) as job:
            parts: Any = job.state.parts
            held = sum(part.local.numel() for part in parts)
            whole = sum(part.parameter.numel() for part in parts)
            on_meta = [part.name for part in parts if part.local.is_meta]
            assert not on_meta
            return held, whole

    (answers,) = on_processes(2, shares)
    for held, whole in succeeded(answers):
        assert held <= 0.51 * whole
    assert sum(held for held, _ in answers) == answers[0][1]


def test_presets_say_what_they_stand_for() -> None:
    for flag, key in (("fsdp_offload", "offload"), ("hsdp", "hybrid")):
        for alias in ("fsdp", "parallel_method"):
            parsed = config_from_mapping({alias: flag})
            assert parsed.config.backend.name == "fsdp"
            assert getattr(parsed.backend_options, key) is True


def test_replicas_stay_within_machine_on_request(monkeypatch: pytest.MonkeyPatch) -> None:
    from swift.config.sections import Config
    from swift_backend_fsdp.layout import layout_of

    def sizes(processes: int, **parallel: int) -> dict[str, int]:
        config = Config.model_validate({"parallel": parallel, "backend": {"name": "fsdp", "hybrid": True}})
        return layout_of(config, processes).named("dp_replicate", "dp_shard")

    monkeypatch.setenv("LOCAL_WORLD_SIZE", "8")
    assert sizes(16) == {"dp_replicate": 2, "dp_shard": 8}
    assert sizes(16, tp=2) == {"dp_replicate": 2, "dp_shard": 4, "tp": 2}
    assert sizes(8) == {"dp_replicate": 1, "dp_shard": 8}
