"""Sources of settings: every refusal names the flag, the line of a file, the variable or the plugin that set a key."""

from __future__ import annotations

from pathlib import Path

import pytest
from commands import typed

from swift.cli.preflight import check_here, check_run
from swift.config.draft import Assignment
from swift.config.sources import with_sources
from swift.errors import SwiftError
from swift.parsing import config_from_mapping, parse

RUN = ["--model", "m", "--dataset", "d"]


def check(file: str) -> None:
    """Make the checks of a run on one process, up to the heavy imports."""
    parsed = parse([file], "train", complete=False)
    with parsed.naming_sources():
        check_here(parsed.config)
        check_run(parsed, 1)


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


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ("tuner: {init: pissa, dora: true}", "tuner.init pissa (run.yaml:1) cannot be used with tuner.dora."),
        ("optim.schedule_options: {power: 2}\noptim.schedule: linear", "optim.schedule_options.power (run.yaml:1)."),
        ("backend: {name: nowhere}", "There is no backend 'nowhere' (run.yaml:1)."),
        ("logging: {report_to: [console, nowhere]}", "There is no observer 'nowhere' (run.yaml:1)."),
        ("checkpoint.copy_to: nowhere://x", "in 'nowhere://x' (run.yaml:1)."),
        ("deepspeed: nowhere.json", "nowhere.json (run.yaml:1) is neither a file nor a preset"),
        ("sequence_parallel_size: 4", "run.yaml:1: sequence_parallel_size 4 is ambiguous"),
        ("objective: {name: grpo, reward_weights: [1]}", "reward_weights (run.yaml:1) has 1 values"),
        ("parallel: {tp: '2(', cp: x}", "run.yaml:1: parallel.tp must be a whole number, not '2('."),
        ("checkpoint.resume: nowhere", "There is no checkpoint at nowhere (run.yaml:1)."),
        ("data: {train: [data.jsonl, nowhere.jsonl]}", "There is no file or folder 'nowhere.jsonl' (run.yaml:1)."),
    ],
)
def test_refusal_names_line_of_value(
    settings: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where a plugin checks its options, a request depends on other settings, or only the value is mentioned."""
    monkeypatch.chdir(tmp_path)
    Path("run.yaml").write_text(f"{settings}\n")
    Path("data.jsonl").touch()
    with pytest.raises(SwiftError) as error:
        check("run.yaml")
    assert message in error.value.message


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
    named = {
        "train.max_steps": Assignment("3", "--train-iters"),
        "data.packing": Assignment(True, "--data.packing"),
        "train.seed": Assignment("1", "--seed"),
    }
    message = "--train-iters: train.max_steps, data.packing and train.seed"
    assert with_sources(message, named) == message
    assert with_sources("train.max_steps 3 ends it", named) == "train.max_steps 3 (--train-iters) ends it"
    assert with_sources("train.max_steps is 3, not", named) == "train.max_steps is 3 (--train-iters), not"


def test_parsed_run_knows_its_sources() -> None:
    """Flags, the command and plugins; defaults have no source."""
    parsed = parse([*RUN, "--lora_rank", "4"], "sft")
    assert parsed.assignments["tuner.rank"].source == "--lora_rank"
    assert parsed.assignments["objective.name"].source == "swift sft"
    assert parsed.assignments["optim.lr"].source == "the tuner 'lora'"
    assert "train.epochs" not in parsed.assignments


def test_source_follows_the_quoted_value() -> None:
    """A value that is also a word of the message is named where it stands in quotes."""
    named = {"data.train": Assignment(["data"], "--dataset")}
    found = with_sources("There is no data set 'data'.", named, about="data.train")
    assert found == "There is no data set 'data' (--dataset)."
