"""Help of every command: what it shows, and that it is made without importing what takes long."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from swift.cli.commands import TRAINING, commands
from swift.cli.main import run
from swift.cli.options import flag_table, options_of
from swift.config.fields import core_fields
from swift.plugins.discover import list_plugins

PROGRAM = """
import contextlib, io, json, os, sys

from swift.cli.main import run

def models(base):
    return [base, *(model for each in base.__subclasses__() for model in models(each))]

found = []
for words in json.loads(sys.argv[1]):
    reader, writer = os.pipe()
    if os.fork() == 0:  # as in an interpreter of its own: nothing of another command is imported
        with contextlib.redirect_stdout(io.StringIO()):
            code = run([*words, "--help"])
        options = models(sys.modules["swift.config.options"].Section)
        built = [model.__qualname__ for model in options if model.__pydantic_complete__]
        os.write(writer, json.dumps([code, sorted(sys.modules), built]).encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as answer:
        found.append(json.loads(answer.read()))
    os.wait()
print(json.dumps(found))
"""
HEAVY = {"torch", "transformers", "datasets", "peft", "numpy", "safetensors", "huggingface_hub", "jinja2", "psutil"}
SLOW = {"rich", "typer", "yaml", "packaging", "pyarrow", "ssl"}
"""Modules that a command may import, and its help may not."""
COMMANDS = commands()
LIGHT = sorted(COMMANDS.keys() - {"plan", "rewards"})  # whose modules import what they compute with
OWN_COMMANDS = sorted({name for name in COMMANDS if options_of(name)} - set(TRAINING))


@dataclass(frozen=True)
class Work:
    """What a process has done that only prints help."""

    modules: set[str]
    """Modules that are imported."""
    built: list[str]
    """Sections whose validators are built."""


def work_of(commands: Sequence[Sequence[str]]) -> list[Work]:
    """Ask for the help of each command in a process of its own."""
    command = [sys.executable, "-c", PROGRAM, json.dumps(commands)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert [code for code, _, _ in found] == [0] * len(commands)
    return [Work(set(modules), built) for _, modules, built in found]


@pytest.fixture(scope="module")
def work() -> dict[str, Work]:
    """Command → imports of its help."""
    return dict(zip(COMMANDS, work_of([[command_name] for command_name in COMMANDS]), strict=True))


@pytest.mark.parametrize("command_name", LIGHT)
def test_help_imports_nothing_slow_and_builds_no_validators(work: dict[str, Work], command_name: str) -> None:
    assert not (HEAVY | SLOW) & work[command_name].modules
    assert work[command_name].built == []


def test_help_with_backend_imports_nothing_heavy() -> None:
    backends = [entry.name for entry in list_plugins("swift.backends")]
    found = work_of([["sft", "--backend", name] for name in backends])
    assert {name: HEAVY & each.modules for name, each in zip(backends, found, strict=True)} == {
        name: set() for name in backends
    }


@pytest.mark.parametrize("command_name", sorted({*LIGHT} - {*TRAINING}))
def test_command_help_imports_no_train_sections(work: dict[str, Work], command_name: str) -> None:
    """Help of a command does not import what reads a configuration."""
    others = {"swift.parsing.command_line"}
    if command_name not in ("export", "merge-lora"):  # whose options are a section of the configuration, too
        others.add("swift.config.sections")
    assert not others & work[command_name].modules


@pytest.mark.parametrize("command_name", OWN_COMMANDS)
def test_command_help_shows_flags_with_meaning_and_default(
    command_name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Help of a command shows every flag with its meaning and its default."""
    monkeypatch.setenv("COLUMNS", "250")
    assert run([command_name, "--help"]) == 0
    printed = capsys.readouterr().out
    assert f"swift {command_name}: " in printed
    options = options_of(command_name)
    assert options is not None
    table = flag_table(command_name, options)
    for flag in (*table.fields, *table.aliases):
        assert f"--{flag}" in printed
    for field in table.fields.values():
        assert field.description
        assert " ".join(field.description.split()) in " ".join(printed.split())


def test_help_lines_fit_terminal(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "90")
    for command_name in ("infer", "export", "serve", "sft"):
        assert run([command_name, "--help"]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert max(map(len, (line for line in lines if not line.startswith("  swift ")))) <= 92


def test_training_help_lists_common_flags_first(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "250")
    assert run(["sft", "--help", "all"]) == 0
    printed = capsys.readouterr().out
    for section, first in {
        "model": "model",
        "data": "dataset",
        "optim": "learning_rate",
        "train": "num_train_epochs",
    }.items():
        assert printed.split(f"\n{section}  ")[1].splitlines()[1].split()[0] == f"--{first}"
    for key in core_fields():
        assert f"--{key}" in printed


def test_training_help_is_short_by_default(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The help of training shows the most used flags, and names the commands that show the others."""
    monkeypatch.setenv("COLUMNS", "80")
    assert run(["sft", "--help"]) == 0
    printed = capsys.readouterr().out
    assert len(printed.splitlines()) < 110
    assert "--learning_rate" in printed
    assert "--adam_beta1" not in printed
    assert "swift sft --help SECTION" in printed

    assert run(["sft", "--help", "optim"]) == 0
    section = capsys.readouterr().out
    assert "--adam_beta1" in section
    assert "--num_train_epochs " not in section.split("\noptim  ")[1]

    assert run(["sft", "--help=optin"]) == 2
    assert "no section 'optin' of flags. Did you mean 'optim'?" in capsys.readouterr().err


def test_help_separates_synonyms_from_translated_flags(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A flag that sets one value of a key, or another value than its own, is listed as no synonym of the key."""
    monkeypatch.setenv("COLUMNS", "250")
    assert run(["sft", "--help", "all"]) == 0
    entries = re.findall(r"^  (--\S+).*((?:\n {6,}.*)*)", capsys.readouterr().out, re.MULTILINE)
    lines = {name: [line.split() for line in rest.splitlines() if line] for name, rest in entries}
    assert lines["--checkpoint.optimizer_state"][-1] == ["also", "set", "by", "--save_only_model", "--no_save_optim"]
    assert lines["--torch_dtype"][0] == ["--dtype", "--model.dtype"]
    assert {"--bf16", "--fp16"} < {*lines["--torch_dtype"][1]}
    assert lines["--dataset"][0] == ["--train_dataset", "--data.train"]
    assert "--max_samples" in lines["--dataset"][1]
    assert lines["--train_type"][-1] == ["also", "set", "by", "--use_peft"]
    assert "--ddp_timeout" not in lines, "seconds; the key is in minutes"


@pytest.mark.parametrize(
    ("typed", "shown"),
    [
        (["--hlep"], "Did you mean '--help'?"),
        (["sft", "--hlep"], "Did you mean '--help'?"),
        (["infer", "--hepl"], "Did you mean '--help'?"),
    ],
    ids=" ".join,
)
def test_misspelled_help_is_recognized(typed: list[str], shown: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(typed) == 2
    assert shown in capsys.readouterr().err
