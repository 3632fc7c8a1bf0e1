"""What the flags of the Trainer about saving, evaluating and logging resolve to."""

from __future__ import annotations

import shlex
from operator import attrgetter
from pathlib import Path

import pytest

from swift.errors import ConfigError
from swift.parsing import Parsed, parse


def parsed(flags: str) -> Parsed:
    return parse(shlex.split(flags), "sft", complete=False)


@pytest.mark.parametrize(
    ("flags", "meaning"),
    [
        ("--save_strategy epoch", {"checkpoint.save_strategy": "epoch", "checkpoint.keep": 3}),
        ("--save_strategy epoch --save_steps 100", {"checkpoint.save_steps": None}),
        ("--save_strategy no --save_total_limit 2", {"checkpoint.save_strategy": "no", "checkpoint.keep": 2}),
        ("--save_strategy best --save_total_limit all", {"checkpoint.save_strategy": "best", "checkpoint.keep": None}),
        ("--save_strategy steps --save_total_limit -1", {"checkpoint.save_steps": 500, "checkpoint.keep": None}),
        ("--save_strategy steps --save_steps 7", {"checkpoint.save_steps": 7}),
        ("--save_steps 0.2 --checkpoint.keep none", {"checkpoint.save_steps": 0.2, "checkpoint.keep": None}),
        ("--save_steps 1.0 --evaluation_strategy no", {"checkpoint.save_steps": 1, "train.eval_strategy": "no"}),
        ("--eval_strategy steps --save_steps 20 --tf32 true", {"train.eval_steps": 20, "train.tf32": True}),
        ("--eval_strategy steps --eval_steps 5 --seed 8", {"train.eval_steps": 5, "train.order_seed": 8}),
        ("--eval_steps 0.1 --data_seed 7", {"train.eval_steps": 0.1, "train.order_seed": 7}),
        ("--logging_strategy epoch --full_determinism", {"logging.strategy": "epoch", "train.deterministic": True}),
        ("--logging_strategy steps", {"logging.steps": 5, "checkpoint.optimizer_state": True}),
        ("--logging_steps 0.5 --ddp_timeout 1800", {"logging.steps": 0.5, "train.timeout_minutes": 30.0}),
        ("--save_only_model true", {"checkpoint.optimizer_state": False}),
        ("--ddp_timeout 18000000 --save_only_model false", {"train.timeout_minutes": 300_000.0}),
    ],
)
def test_trainer_flags_set_their_keys(flags: str, meaning: dict[str, object]) -> None:
    config = parsed(flags).config
    assert {key: attrgetter(key)(config) for key in meaning} == meaning


@pytest.mark.parametrize(
    ("flags", "note"),
    [
        ("--save_strategy epoch --save_steps 100", "--save_steps 100 has no effect: --save_strategy is epoch."),
        ("--eval_strategy no --eval_steps 100", "--eval_steps 100 has no effect: --eval_strategy is no."),
        ("--save_strategy steps", "checkpoint.save_steps is 500"),
        ("--eval_strategy steps --save_steps 20", "train.eval_steps is 20, the same as checkpoint.save_steps"),
        ("--load_best_model_at_end true", "the best checkpoint is RUN/best-checkpoint"),
        ("--logging_first_step true", "--logging_first_step true is not needed"),
        ("""--gradient_checkpointing_kwargs '{"use_reentrant": false}'""", "is not needed"),
    ],
)
def test_setting_without_effect_is_noted(flags: str, note: str) -> None:
    assert [line for line in parsed(flags).notes if note in line]


@pytest.mark.parametrize(
    ("flags", "advice"),
    [
        ("--save_steps 0", "--save_strategy no"),
        ("--eval_steps 0", "--eval_strategy no"),
        ("--logging_steps 0", "--logging_strategy no"),
        ("--save_steps 2.5", "a fraction of all steps, such as 0.1"),
        ("--save_strategy never", "one of 'steps', 'epoch', 'best' or 'no'"),
        ("--ddp_timeout soon", "--ddp_timeout 1800"),
        ("--resume_only_model true", "--resume_from_checkpoint output/MODEL/RUN/checkpoint-100"),
        ("--load_best_model_at_end true --merge_lora true", "swift export RUN/best-checkpoint"),
        ("--average_tokens_across_devices false", "Leave it out"),
        ("--torch_compile_backend eager", "--torch_compile uses inductor"),
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
