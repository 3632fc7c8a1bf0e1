"""The Python API of the articles gives the configuration that the same words give on the command line."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from swift import Swift, SwiftModel, Trainer, TrainerConfig
from swift.errors import ConfigError, UsageError
from swift.parsing import Parsed, parse


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Parsed, dict[str, Any]]]:
    """Calls of the training loop, which trains nothing here."""
    import swift.train.loop

    calls: list[tuple[Parsed, dict[str, Any]]] = []
    monkeypatch.setattr(swift.train.loop, "train", lambda parsed, **rest: calls.append((parsed, rest)))
    return calls


def test_import_swift_is_light_and_complete() -> None:
    script = (
        "import sys, swift; heavy = {'torch', 'pydantic', 'pluggy'} & set(sys.modules); assert not heavy, heavy; "
        "from swift import *; assert Capabilities and hookimpl and Trainer and Need and UnsupportedLayout; "
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
    with pytest.raises(ImportError, match="cannot import name 'Trainr'"):
        exec("from swift import Trainr")


def test_keywords_match_flags(trained: list[Any]) -> None:
    config = TrainerConfig(
        model_id="local-model",
        train_type="sft",
        dataset="alpaca-en",
        max_epochs=3,
        per_device_train_batch_size=4,
        learning_rate=1e-5,
    )
    Swift.from_config(config).train()
    ((parsed, rest),) = trained
    flags = "--model_id local-model --train_type sft --dataset alpaca-en --max_epochs 3 --learning_rate 1e-5"
    assert parsed.config == parse([*flags.split(), "--per_device_train_batch_size", "4"], "train").config
    assert rest == {"rows": None, "validation_rows": None}


def _with_megatron() -> TrainerConfig:
    from swift import MegatronArguments

    arguments = MegatronArguments(
        tensor_model_parallel_size=4,
        pipeline_model_parallel_size=2,
        sequence_parallel=True,
        use_distributed_optimizer=False,
    )
    return TrainerConfig(model_id="qwen/Qwen-7B", train_type="sft", dataset="alpaca-en", megatron_args=arguments)


def test_megatron_arguments_select_megatron(trained: list[Any]) -> None:
    Swift.from_config(_with_megatron()).train()
    ((parsed, _),) = trained
    assert parsed.config.backend.name == "megatron"
    plan = parsed.config.parallel
    assert (plan.tp, plan.pp, plan.sequence_parallel) == (4, 2, True)
    assert parsed.backend_options.model_dump()["use_distributed_optimizer"] is False


def test_trainer_accepts_rows_in_memory(trained: list[Any]) -> None:
    rows = [{"query": "2+2?", "response": "4"}]
    trainer = Trainer(
        model=SwiftModel.from_pretrained("local-model", torch_dtype="float32"),
        args={"per_device_train_batch_size": 4, "gradient_accumulation_steps": 4, "backend": {"device": "cpu"}},
        train_dataset=rows,
    )
    trainer.train()
    ((parsed, rest),) = trained
    assert rest["rows"] is rows
    config = parsed.config
    assert (config.model.path, config.model.dtype) == ("local-model", "float32")
    assert (config.train.micro_batch, config.train.accumulation) == (4, 4)
    assert parsed.backend_options.model_dump()["device"] == "cpu"


def test_trainer_names_missing_file() -> None:
    args = {
        "deepspeed": "ds_config_zero2.json",
        "per_device_train_batch_size": 4,
        "gradient_accumulation_steps": 4,
        "fp16": True,
    }
    with pytest.raises(ConfigError, match=r"ds_config_zero2\.json \(.*\) is neither a file nor a preset"):
        Trainer(model=SwiftModel.from_pretrained("qwen-7b"), args=args, train_dataset=[])


def test_trainer_accepts_data_set_name(trained: list[Any]) -> None:
    Trainer(model="m", train_dataset="a.jsonl", eval_dataset="b.jsonl").train()
    ((parsed, rest),) = trained
    assert parsed.config.data.train == ("a.jsonl",)
    assert parsed.config.data.validation == ("b.jsonl",)
    assert rest["rows"] is None


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"model": "m", "dataset": "d", "learning_rat": 1}, "unknown key 'learning_rat'. Did you mean"),
        ({"model": "m", "dataset": "d", "learning_rate": "fast"}, "must be a number, not 'fast'"),
        ({"model": "m", "dataset": "d", "bf16": True, "fp16": True}, "contradict each other"),
        ({"model": "m", "dataset": "d", "optim": {"lrr": 1}}, "Did you mean 'optim.lr'?"),
    ],
)
def test_invalid_keyword_is_named(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Swift.from_config(TrainerConfig(**options))
    assert sentence in str(caught.value)
    assert "TrainerConfig" in str(caught.value)


def test_required_arguments_are_named(trained: list[Any]) -> None:
    with pytest.raises(UsageError, match="No training data"):
        Swift.from_config(TrainerConfig(model="m")).train()
    with pytest.raises(UsageError, match="No model"):
        Swift.from_config(TrainerConfig(dataset="d")).train()
    with pytest.raises(UsageError, match="torchrun"):
        Swift.from_config(TrainerConfig(model="m", dataset="d", nproc=2)).train()
    assert not trained
