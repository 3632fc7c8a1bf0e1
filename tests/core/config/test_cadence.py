"""What the flags of the Trainer about saving, evaluating and logging resolve to."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest

from swift.config.parse import Parsed, parse
from swift.errors import ConfigError


def parsed(flags: str) -> Parsed:
    return parse(shlex.split(flags), "sft", complete=False)


def value_of(flags: str, key: str) -> Any:
    section, _, name = key.partition(".")
    return getattr(getattr(parsed(flags).config, section), name)


@pytest.mark.parametrize(
    ("flags", "key", "value"),
    [
        ("--save_strategy epoch", "checkpoint.save_strategy", "epoch"),
        ("--save_strategy epoch --save_steps 100", "checkpoint.save_steps", None),
        ("--save_strategy no", "checkpoint.save_strategy", "no"),
        ("--save_strategy best", "checkpoint.save_strategy", "best"),
        ("--save_strategy steps", "checkpoint.save_steps", 500),
        ("--save_strategy steps --save_steps 7", "checkpoint.save_steps", 7),
        ("--save_steps 0.2", "checkpoint.save_steps", 0.2),
        ("--save_steps 1.0", "checkpoint.save_steps", 1),
        ("--evaluation_strategy no", "train.eval_strategy", "no"),
        ("--eval_strategy steps --save_steps 20", "train.eval_steps", 20),
        ("--eval_strategy steps --eval_steps 5", "train.eval_steps", 5),
        ("--eval_steps 0.1", "train.eval_steps", 0.1),
        ("--logging_strategy epoch", "logging.strategy", "epoch"),
        ("--logging_strategy steps", "logging.steps", 5),
        ("--logging_steps 0.5", "logging.steps", 0.5),
        ("--save_total_limit 2", "checkpoint.keep", 2),
        ("--save_total_limit all", "checkpoint.keep", None),
        ("--save_total_limit -1", "checkpoint.keep", None),
        ("--checkpoint.keep none", "checkpoint.keep", None),
        ("--seed 1", "checkpoint.keep", 3),
        ("--save_only_model true", "checkpoint.optimizer_state", False),
        ("--save_only_model false", "checkpoint.optimizer_state", True),
        ("--ddp_timeout 1800", "train.timeout_minutes", 30.0),
        ("--ddp_timeout 18000000", "train.timeout_minutes", 300_000.0),
        ("--data_seed 7", "train.order_seed", 7),
        ("--seed 8", "train.order_seed", 8),
        ("--tf32 true", "train.tf32", True),
        ("--full_determinism", "train.deterministic", True),
    ],
)
def test_trainer_flag_sets_its_key(flags: str, key: str, value: object) -> None:
    assert value_of(flags, key) == value


@pytest.mark.parametrize(
    ("flags", "note"),
    [
        ("--save_strategy epoch --save_steps 100", "--save_steps 100 has no effect: --save_strategy is epoch."),
        ("--eval_strategy no --eval_steps 100", "--eval_steps 100 has no effect: --eval_strategy is no."),
        ("--save_strategy steps", "checkpoint.save_steps is 500"),
        ("--eval_strategy steps --save_steps 20", "train.eval_steps is 20, the same as checkpoint.save_steps"),
        ("--load_best_model_at_end true", "the best checkpoint is RUN/best-checkpoint"),
        ("--logging_first_step true", "--logging_first_step true is not needed"),
        ("--average_tokens_across_devices true", "is not needed"),
        ("--include_num_input_tokens_seen true", "is not needed"),
        ("--ddp_backend nccl", "is not needed"),
        ("""--gradient_checkpointing_kwargs '{"use_reentrant": false}'""", "is not needed"),
        ("--eval_accumulation_steps 4", "is not needed"),
    ],
)
def test_setting_without_effect_is_noted(flags: str, note: str) -> None:
    assert [line for line in parsed(flags).notes if note in line]


@pytest.mark.parametrize(
    ("flags", "advice"),
    [
        ("--save_steps 0", "--save_strategy no"),
        ("--save_steps -1", "--save_strategy no"),
        ("--eval_steps 0", "--eval_strategy no"),
        ("--logging_steps 0", "--logging_strategy no"),
        ("--save_steps 2.5", "a fraction of all steps, such as 0.1"),
        ("--save_strategy never", "one of 'steps', 'epoch', 'best' or 'no'"),
        ("--ddp_timeout soon", "--ddp_timeout 1800"),
        ("--resume_only_model true", "--resume_from_checkpoint output/MODEL/RUN/checkpoint-100"),
        ("--load_best_model_at_end true --merge_lora true", "swift export RUN/best-checkpoint"),
        ("--auto_find_batch_size true", "--per_device_train_batch_size"),
        ("--predict_with_generate true", "swift eval"),
        ("--average_tokens_across_devices false", "Leave it out"),
        ("--ignore_data_skip true", "--resume_only_model true"),
        ("--embedding_lr 1e-5", "--learning_rate"),
        ("--torch_compile_backend eager", "--torch_compile uses inductor"),
        ("--dataloader_drop_last true", "Leave it out"),
    ],
)
def test_invalid_cadence_error_has_hint(flags: str, advice: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parsed(flags)
    assert advice in f"{caught.value.message} {caught.value.hint}"


def test_weights_only_resume_starts_new_run(tmp_path: Path) -> None:
    """Resuming only the weights is a new run from the checkpoint's files."""
    adapter, whole = tmp_path / "run" / "checkpoint-3", tmp_path / "full"
    for folder, file in ((adapter, "adapter_config.json"), (whole, "model.safetensors")):
        folder.mkdir(parents=True)
        (folder / file).touch()
    (tmp_path / "run" / "last-checkpoint").symlink_to("checkpoint-3")
    config = parsed(f"--model base --resume_from_checkpoint {tmp_path / 'run'} --resume_only_model").config
    assert (config.model.path, config.tuner.adapter) == ("base", tmp_path / "run" / "last-checkpoint")
    assert config.checkpoint.resume is None
    assert parsed(f"--resume_from_checkpoint {whole} --resume_only_model").config.model.path == str(whole)
    with pytest.raises(ConfigError, match="no model weights to load"):
        parsed(f"--resume_from_checkpoint {tmp_path} --resume_only_model")
