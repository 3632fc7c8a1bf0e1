"""Verbs that plugins add: listed from metadata, read by the same reader of flags, refused where they are broken."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from swift.cli.main import run


def test_overview_lists_plugin_commands_without_import(installed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The overview names the commands of plugins and imports none."""
    before = set(sys.modules)
    assert run(["--help"]) == 0
    printed = capsys.readouterr().out
    assert "From plugins" in printed
    lines = [" ".join(line.split()) for line in printed.splitlines()]
    assert "measure-it Measure something (acme-more-verbs 1.0)" in lines
    assert "greet Say hello (acme-verbs 1.0)" in lines
    assert not {name for name in set(sys.modules) - before if name.startswith("acme")}


@pytest.mark.parametrize("line", ["measure-it table --unit-size 3", "measure_it --thing=table --unit_size=3"])
def test_command_gets_validated_options(installed: Path, capsys: pytest.CaptureFixture[str], line: str) -> None:
    assert run(line.split()) == 0
    assert capsys.readouterr().out == "table: 3\n"


def test_its_help_is_made_of_its_options(installed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["measure-it", "--help"]) == 0
    printed = capsys.readouterr().out
    assert "swift measure-it: Measure something" in printed
    assert "Usage  swift measure-it WHAT [flags]" in printed
    assert "--unit_size" in printed
    assert "[integer; 1]" in printed
    assert "--thing" in printed


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (["measure-it"], 2, "swift measure-it needs WHAT (What is measured)."),
        (["measure-it", "table", "--unit-sise", "3"], 2, "Did you mean '--unit_size'?"),
        (["measure-it", "table", "--unit-size", "big"], 2, "--unit-size must be a whole number, not 'big'"),
        (["measure-it", "nothing"], 2, "Nothing has no size."),
        (["measure-it", "crash"], 3, "the ruler broke"),
        (["measure-it", "words"], 3, "returned the str 'many' from run. Expected: an exit code"),
        (["measur-it"], 2, "Did you mean 'measure-it'?"),
        (["mute"], 3, "command 'mute' (acme-verbs 1.0) lacks summary"),
    ],
)
def test_command_error_is_one_message(
    installed: Path, capsys: pytest.CaptureFixture[str], words: list[str], code: int, sentence: str
) -> None:
    assert run(words) == code
    printed = capsys.readouterr()
    assert sentence in printed.err
    assert "Traceback" not in printed.err
    if code == 3:
        assert "acme-" in printed.err


def test_command_without_options_parses_argv(installed: Path) -> None:
    assert run(["greet", "--anything", "you"]) == 0
    assert run(["greet"]) == 2


@pytest.mark.parametrize(
    ("line", "code", "out", "err"),
    [
        ("weigh gold --unit mg", 0, "gold in mg", ""),
        ("weigh nothing", 4, "", ""),
        ("weigh --help", 0, "Usage: swift weigh", ""),
        ("weigh gold --unti mg", 2, "", "--unti"),
        ("weigh air", 2, "", "Air cannot be weighed here."),
        ("weigh crash", 3, "", "the scales broke"),
        ("empty", 3, "", "acme-typer 1.0"),
    ],
)
def test_typer_app_is_a_command(
    installed: Path, capsys: pytest.CaptureFixture[str], line: str, code: int, out: str, err: str
) -> None:
    assert run(line.split()) == code
    printed = capsys.readouterr()
    assert out in printed.out
    assert err in printed.err
    assert "Traceback" not in printed.err


def test_built_in_command_cannot_be_replaced(
    installed: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "250")
    assert run(["doctor", "--jason"]) == 2
    assert "Did you mean '--json'?" in capsys.readouterr().err
    assert run(["--help"]) == 0
    overview = capsys.readouterr().out
    assert overview.count(" doctor ") == 1
    assert "Check this machine" in overview
    assert run(["plugins", "--check"]) == 3
    printed = " ".join(capsys.readouterr().out.split())
    assert "command 'doctor' (acme-more-verbs 1.0) has the name of a built-in command" in printed
