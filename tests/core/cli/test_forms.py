"""Forms show every option that the command line has, and refuse what it refuses, with its own sentence."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from commands import typed

from swift.config.fields import core_fields
from swift.errors import SwiftError
from swift.forms import check_command, form_of, resume_argv
from swift.parsing import parse
from swift.plugins.discover import list_plugins


def fields(command: str, **selected: str) -> dict[str, str]:
    """Key → the flag that is typed for it."""
    chosen = {f"{section}.{'kind' if section == 'tuner' else 'name'}": name for section, name in selected.items()}
    return {each.key: each.flag for section in form_of(command, chosen) for each in section.fields}


def test_form_lists_every_key_once_with_selected_plugins() -> None:
    """A form has every key of a run once and those of the plugins that are selected."""
    shown = fields("sft")
    keys = [each.key for section in form_of("sft") for each in section.fields]
    assert len(keys) == len(set(keys))
    of_adapters = {key for key in core_fields() if key.startswith("tuner.")} - set(shown)
    assert set(core_fields()) - set(shown) == of_adapters
    assert "tuner.rank" in shown
    assert "tuner.rank" not in fields("sft", tuner="full")
    assert "tuner.freeze" in fields("sft", tuner="full")
    assert "objective.num_generations" in fields("rlhf", objective="grpo")
    names = {each.key: each.choices for section in form_of("sft") for each in section.fields if each.selects}
    assert set(names["optim.name"]) == {entry.name for entry in list_plugins("swift.optimizers")}


def test_form_uses_common_flags() -> None:
    shown = fields("sft")
    assert shown["model.path"] == "model"
    assert shown["tuner.rank"] == "lora_rank"
    assert shown["optim.lr"] == "learning_rate"


def test_flags_of_form_take_values_of_their_keys() -> None:
    """The form types the flags of the terminal's help where these take every value of the key."""
    values = {"train.max_steps": ["7"], "checkpoint.keep": ["2"], "checkpoint.resume": ["last"]}
    values["tuner.kind"] = [entry.name for entry in list_plugins("swift.tuners")]
    shown = fields("sft")
    usual = {key: shown[key] for key in values}
    assert set(usual.values()) == {"max_steps", "save_total_limit", "resume_from_checkpoint", "train_type"}
    inputs = ["--model", "m", "--dataset", "d"]
    for key, flag in usual.items():
        for value in values[key]:
            by_flag, by_key = (parse([*inputs, f"--{each}", value], "sft").config for each in (flag, key))
            assert by_flag == by_key


def test_broken_plugin_form_section_shows_reason() -> None:
    """A plugin that does not load leaves its section with the reason."""
    (section,) = [each for each in form_of("sft", {"backend.name": "nowhere"}) if each.name == "backend"]
    assert "nowhere" in section.problem
    assert [each.key for each in section.fields] == ["backend.name"]


@pytest.mark.parametrize(
    "words",
    [
        "sft --model m --dataset d.jsonl --lora_rank x",
        "sft --model m --dataset d.jsonl --lora_rnak 8",
        "sft --model m",
        "sft --model m --dataset d.jsonl --tp 2",
        "sft --model m --dataset d.jsonl --train_type full --quant_bits 4",
        "rlhf --rlhf_type sft --model m --dataset d.jsonl",
        "export --to nowhere --shard_size_gb lots model",
        "serve m --port high",
    ],
)
def test_form_error_matches_command_line(words: str, tmp_path: Path) -> None:
    with pytest.raises(SwiftError) as refused:
        check_command(words.split())
    assert typed(words.split(), tmp_path).output == f"Error: {refused.value}\n"


def test_form_check_shows_command_and_remote_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A check returns what the command writes and which third-party code it runs."""
    monkeypatch.chdir(tmp_path)
    Path("d.jsonl").write_text(json.dumps({"text": "a"}))
    common = ["--model", "far/away", "--dataset", "d.jsonl"]
    checked = check_command(["sft", *common, "--trust_remote_code", "--run_name", "first", "--output_dir", "out"])
    assert checked.writes == (tmp_path / "out",)
    assert checked.run_folder == tmp_path / "out" / "away" / "first"
    assert checked.trusts == ("model.trust_remote_code",)
    assert check_command(["serve", "m", "--host", "0.0.0.0", "--an-engines-flag", "1"]).hosts == ("0.0.0.0",)
    assert check_command(["serve", "m", "--an-engines-flag", "1"]).trusts != ()
    rewarded = check_command(["rlhf", "--rlhf_type", "grpo", *common, "--reward_funcs", "mine.py:score"])
    assert rewarded.trusts == ("mine.py:score",)


def test_resume_form_uses_command_of_run() -> None:
    folder = Path("/runs/v0")
    assert " ".join(resume_argv(folder, folder / "checkpoint-2", processes=2, optimizer_state=False)) == (
        "train --config /runs/v0/config.yaml --resume_from_checkpoint /runs/v0/checkpoint-2 "
        "--resume_only_model true --nproc 2"
    )
