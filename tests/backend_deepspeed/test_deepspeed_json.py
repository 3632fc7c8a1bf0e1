"""DeepSpeed's JSON: the articles' files, presets, and what is said of a wrong one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from swift.cli.main import run
from swift.errors import ConfigError, UnsupportedLayout
from swift.parsing import Parsed, config_from_mapping, parse
from swift_backend_deepspeed.ds_json import PRESETS, read_config, remarks, resolved

ARTICLES: dict[str, str] = {
    "zero 3, offloaded optimizer": """{ "train_batch_size": 64, "gradient_accumulation_steps": 4,
        "optimizer": { "type": "AdamW", "params": { "lr": 2e-5, "weight_decay": 0.01 } }, "fp16": { "enabled": true },
        "zero_optimization": { "stage": 3, "offload_optimizer": { "device": "cpu" }, "overlap_comm": true,
        "reduce_bucket_size": 5e8, "stage3_prefetch_bucket_size": 5e8, "stage3_param_persistence_threshold": 1e6 },
        "activation_checkpointing": { "cpu_checkpointing": true } }""",
    "zero 2": """{ "train_batch_size": 256, "gradient_accumulation_steps": 4, "optimizer": { "type": "AdamW",
        "params": { "lr": 2e-5, "weight_decay": 0.01, "betas": [0.9, 0.999] } },
        "fp16": { "enabled": true, "loss_scale": 0 }, "zero_optimization": { "stage": 2, "reduce_scatter": true,
        "contiguous_gradients": true, "overlap_comm": true, "allgather_bucket_size": 5e8,
        "reduce_bucket_size": 5e8 }, "gradient_clipping": 1.0, "steps_per_print": 100 }""",
    "zero 3, both offloaded": """{ "zero_optimization": { "stage": 3, "offload_optimizer": { "device": "cpu" },
        "offload_param": { "device": "cpu" }, "contiguous_gradients": true, "reduce_bucket_size": 5e8,
        "stage3_prefetch_bucket_size": 5e8, "stage3_param_persistence_threshold": 1e6 },
        "fp16": { "enabled": true }, "activation_checkpointing": { "partition_activations": false } }""",
    "zero 3, small": """{ "train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 8,
        "optimizer": { "type": "AdamW", "params": { "lr": 1e-5 } }, "fp16": { "enabled": true },
        "zero_optimization": { "stage": 3, "offload_optimizer": { "device": "cpu" } } }""",
}


def parsed(content: dict[str, Any], **more: Any) -> Parsed:
    return config_from_mapping({"backend.name": "deepspeed", "backend.config": content, **more})


def given_to_deepspeed(run: Parsed, world: int = 2) -> dict[str, Any]:
    content: Any = run.backend_options
    precision = "float32" if run.config.model.dtype == "auto" else run.config.model.dtype
    return resolved(content.content, run.config, precision=precision, world=world)


@pytest.mark.parametrize("name", ARTICLES)
def test_the_files_of_the_articles_are_taken_as_they_stand(name: str, tmp_path: Path) -> None:
    path = tmp_path / "ds.json"
    path.write_text(ARTICLES[name])
    config = parse(["--deepspeed", str(path)], "sft", complete=False).config
    assert config.backend.name == "deepspeed"
    assert config.model.dtype == "float16"
    said = json.loads(ARTICLES[name])
    params = said.get("optimizer", {}).get("params", {})
    if "lr" in params:
        assert config.optim.lr == params["lr"]
    if "betas" in params:
        assert (config.optim.beta1, config.optim.beta2) == (0.9, 0.999)
    if "train_batch_size" in said:
        assert config.train.global_batch == said["train_batch_size"]


def test_buckets_in_scientific_notation_are_whole_numbers() -> None:
    content = read_config({"zero_optimization": {"stage": 2, "reduce_bucket_size": 5e8}, "optimizer": {"params": {}}})
    assert content["zero_optimization"]["reduce_bucket_size"] == 500_000_000
    assert isinstance(content["zero_optimization"]["reduce_bucket_size"], int)


def test_auto_is_what_the_flags_say() -> None:
    content = {
        "train_micro_batch_size_per_gpu": "auto",
        "gradient_accumulation_steps": "auto",
        "train_batch_size": "auto",
        "gradient_clipping": "auto",
        "bf16": {"enabled": "auto"},
        "fp16": {"enabled": "auto"},
        "zero_optimization": {"stage": 3, "reduce_bucket_size": "auto", "stage3_prefetch_bucket_size": "auto"},
        "optimizer": {"type": "AdamW", "params": {"lr": "auto", "betas": "auto", "eps": "auto"}},
        "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": "auto", "warmup_max_lr": "auto"}},
    }
    run = parsed(
        content,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        max_grad_norm=0.5,
        torch_dtype="bfloat16",
        learning_rate=3e-4,
    )
    given = given_to_deepspeed(run)
    assert given["train_micro_batch_size_per_gpu"] == 4
    assert given["gradient_accumulation_steps"] == 2
    assert given["train_batch_size"] == 16
    assert given["gradient_clipping"] == 0.5
    assert given["bf16"]["enabled"] is True
    assert "fp16" not in given
    assert given["zero_optimization"] == {"stage": 3}
    assert run.config.optim.schedule == "constant"
    assert run.config.optim.lr == 3e-4


@pytest.mark.parametrize("preset", PRESETS)
def test_presets_are_files_to_begin_from(preset: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert run(["config", "deepspeed", preset]) == 0
    printed = capsys.readouterr().out
    path = tmp_path / "ds.json"
    path.write_text(printed)
    from_file, by_name = (parse(["--deepspeed", said], "sft", complete=False) for said in (str(path), preset))
    assert from_file.config.backend == by_name.config.backend
    assert given_to_deepspeed(by_name)["zero_optimization"]["stage"] == int(preset[4])


WRONG: dict[str, tuple[str, str]] = {
    "not json": ('{"zero_optimization": {"stage": 3,}}', "ds.json:1:35 is not JSON"),
    "twice": ('{"gradient_clipping": 1, "gradient_clipping": 2}', "the key 'gradient_clipping' occurs twice"),
    "stage 7": ('{"zero_optimization": {"stage": 7}}', "stage must be 0, 1, 2 or 3, not 7"),
    "both precisions": ('{"fp16": {"enabled": true}, "bf16": {"enabled": true}}', "fp16 and bf16 are both enabled"),
    "misspelt": ('{"zero_optimisation": {"stage": 2}}', "Did you mean 'zero_optimization'?"),
    "misspelt within": (
        '{"zero_optimization": {"stage": 2, "overlap_com": true}}',
        "unknown key 'zero_optimization.overlap_com'. Did you mean 'overlap_comm'?",
    ),
    "of an article": (
        '{"zero_optimization": {"stage": 3, "stage3_gather_16bit_weights_every_iter": true}}',
        "Did you mean 'stage3_gather_16bit_weights_on_model_save'?",
    ),
    "of another article": (
        '{"zero_optimization": {"stage": 3, "gather_16bit_weights": true}}',
        "Did you mean 'stage3_gather_16bit_weights_on_model_save'?",
    ),
    "no such device": (
        '{"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "tape"}}}',
        "offload_optimizer.device must be none, cpu or nvme, not 'tape'",
    ),
    "no such optimizer": ('{"optimizer": {"type": "Lamb"}}', "optimizer.type is 'Lamb'"),
    "no object": ("[1, 2]", "must contain a JSON object, not a list"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_files_are_refused_in_one_sentence(name: str, tmp_path: Path) -> None:
    text, reason = WRONG[name]
    path = tmp_path / "ds.json"
    path.write_text(text)
    with pytest.raises((ConfigError, UnsupportedLayout)) as caught:
        parse(["--deepspeed", str(path)], "sft", complete=False)
    assert reason in str(caught.value)
    assert "ds.json" in str(caught.value)


def test_a_file_that_is_not_there_names_the_presets() -> None:
    with pytest.raises(ConfigError, match=r"Did you mean 'zero3'.*\n.*zero2_offload"):
        parse(["--deepspeed", "zero33"], "sft", complete=False)


def test_flags_contradicting_json_are_shown_next_to_it() -> None:
    with pytest.raises(ConfigError, match=r"learning_rate.*optimizer\.params\.lr contradict"):
        parsed({"optimizer": {"params": {"lr": 1e-5}}}, learning_rate=2e-5)
    same = parsed({"optimizer": {"params": {"lr": 1e-5}}}, learning_rate=1e-5)
    assert same.config.optim.lr == 1e-5


def test_settings_deepspeed_ignores_are_reported() -> None:
    run = parsed(
        {
            "activation_checkpointing": {"cpu_checkpointing": True},
            "zero_optimization": {"stage": 2, "stage3_prefetch_bucket_size": 5e8},
            "curriculum_learning": {"enabled": True},
        }
    )
    options: Any = run.backend_options
    said = "\n".join(remarks(options.content, run.config, precision="float32"))
    for expected in (
        "--gradient_checkpointing true",
        "stage3_prefetch_bucket_size has no effect",
        "curriculum_learning",
    ):
        assert expected in said


def test_the_tables_of_keys_are_those_of_deepspeed() -> None:
    from deepspeed.runtime.precision_config import DeepSpeedBF16Config, DeepSpeedFP16Config
    from deepspeed.runtime.zero.config import DeepSpeedZeroConfig
    from deepspeed.runtime.zero.offload_config import (
        DeepSpeedZeroOffloadOptimizerConfig,
        DeepSpeedZeroOffloadParamConfig,
    )

    from swift_backend_deepspeed.known_keys import KNOWN

    for section, model in (
        ("zero_optimization", DeepSpeedZeroConfig),
        ("zero_optimization.offload_optimizer", DeepSpeedZeroOffloadOptimizerConfig),
        ("zero_optimization.offload_param", DeepSpeedZeroOffloadParamConfig),
        ("fp16", DeepSpeedFP16Config),
        ("bf16", DeepSpeedBF16Config),
    ):
        names = set(model.model_fields) | {field.alias for field in model.model_fields.values() if field.alias}
        assert KNOWN[section] == names
