"""Sources of settings: every refusal names the flag, the line of a file, the variable or the plugin that set a key."""

from __future__ import annotations

from pathlib import Path

import pytest
from commands import typed

from swift.config.sources import with_sources
from swift.errors import SwiftError
from swift.parsing import config_from_mapping, parse

RUN = ["--model", "m", "--dataset", "d"]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--tensor_parallel_size", "2"], "does not support parallel.tp 2 (--tensor_parallel_size)"),
        (["--tp", "2"], "does not support parallel.tp 2."),
        (["--problem_type", "regression"], "model.problem_type needs model.task seq_cls, not causal_lm"),
        (["--use_galore", "true", "--deepspeed", "zero3"], "The deepspeed backend (--deepspeed) does not support"),
        (["--use_galore", "true", "--deepspeed", "zero3"], "the optimizer 'galore' (--use_galore)"),
        (["--min_lr", "1"], "optim.min_lr 1 is not below the peak, optim.lr 0.0001 (the tuner 'lora')"),
        (["--packing", "maybe"], "--packing must be true or false"),
        (["--tensor_parallel_size", "x"], "--tensor_parallel_size must be a whole number, not 'x'"),
    ],
)
def test_refusal_names_flag(flags: list[str], message: str) -> None:
    """Errors of values, of combinations and of capabilities alike."""
    with pytest.raises(SwiftError) as error:
        parse([*RUN, *flags], "sft")
    assert message in error.value.message


def test_refusal_names_line_of_file(tmp_path: Path) -> None:
    """Also where the check comes after the configuration is valid, before heavy imports."""
    file = tmp_path / "run.yaml"
    file.write_text("model: {path: m}\ndata:\n  train: [d]\ntuner:\n  kind: full\n  quantize: bnb-nf4\n")
    done = typed(["sft", str(file)], tmp_path)
    assert done.code == 2
    assert (
        f"tuner.kind full ({file}:5) cannot train weights that tuner.quantize bnb-nf4 ({file}:6) stores" in done.output
    )


def test_refusal_names_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    """A value from the environment is refused with the variable's name."""
    monkeypatch.setenv("MAX_PIXELS", "-3")
    with pytest.raises(SwiftError, match=r"the environment variable MAX_PIXELS: data\.max_pixels must be at least 1"):
        parse(RUN, "sft")


def test_refusal_names_keyword() -> None:
    """A call names the keyword, and its own name for the arguments."""
    with pytest.raises(SwiftError, match=r"parallel\.tp 2 \(arguments \(tensor_parallel_size\)\)"):
        config_from_mapping({"model": "m", "tensor_parallel_size": 2})


def test_source_is_named_once() -> None:
    """Neither a flag of the key's own name nor a message that names its source gets another one."""
    config = config_from_mapping({"model": "m", "train.max_steps": 3}).config
    named = {"train.max_steps": "--train-iters", "data.packing": "--data.packing", "train.seed": "--seed"}
    message = "--train-iters: train.max_steps, data.packing and train.seed"
    assert with_sources(message, config, named) == message
    assert with_sources("train.max_steps 3 ends it", config, named) == "train.max_steps 3 (--train-iters) ends it"


def test_parsed_run_knows_its_sources() -> None:
    """Flags, the command and plugins; defaults have no source."""
    parsed = parse([*RUN, "--lora_rank", "4"], "sft")
    assert parsed.sources["tuner.rank"] == "--lora_rank"
    assert parsed.sources["objective.name"] == "swift sft"
    assert parsed.sources["optim.lr"] == "the tuner 'lora'"
    assert "train.epochs" not in parsed.sources
