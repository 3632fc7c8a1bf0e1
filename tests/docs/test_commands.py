"""Every `swift` command of a page parses; nothing is run."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
from pages import ENGLISH, ROOT, Command, blocks, commands, missing

from swift.cli import commands as cli_commands
from swift.cli.commands import TRAINING
from swift.cli.config import ConfigOptions, presets_of_backends
from swift.cli.config_import import import_options
from swift.cli.data import read_command as read_data_command
from swift.cli.export import export_options
from swift.cli.options import options_of, read_options
from swift.cli.planner_choice import without_auto
from swift.errors import SwiftError
from swift.parsing import parse
from swift.plugins.load import load_command
from swift_infer.serving.options import ServeOptions

PAGES = [
    *(ROOT / "README.md", ROOT / "examples" / "README.md"),
    *ENGLISH,
    *sorted(ROOT.glob(".claude/skills/*/SKILL.md")),
]
OF_PLUGINS = {
    "write-an-observer.md",
    "write-an-objective.md",
    "write-a-backend.md",
    "write-an-engine.md",
    "write-an-exporter.md",
    "write-an-optimizer.md",
    "write-a-tuner.md",
    "write-a-command.md",
    "write-a-vocabulary.md",
    "write-a-reward.md",
    "rollouts.md",
}
"""Pages whose commands need the plugin of the page; `test_plugin_pages.py` runs them."""


def _commands() -> list[tuple[Path, Command]]:
    found = [
        (page, command)
        for page in PAGES
        for block in blocks(page)
        if block.language in ("console", "text") and page.name not in OF_PLUGINS
        for command in (commands(block) if block.language == "console" else _lines(block.text))
    ]
    return [(page, command) for page, command in found if command.words() and command.words()[0] == "swift"]


def _lines(text: str) -> list[Command]:
    """Return the commands of a block without prompts."""
    return [Command(line) for line in text.replace("\\\n", " ").splitlines() if line.startswith("swift ")]


@pytest.mark.parametrize(
    ("page", "command"), _commands(), ids=lambda each: each.line if isinstance(each, Command) else each.stem
)
def test_command_of_page_parses(page: Path, command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for each in ROOT.iterdir():
        (tmp_path / each.name).symlink_to(each)
    for block in blocks(page):
        if block.language == "json" and block.file:
            (tmp_path / block.file).write_text(block.text)
    for written, words in _presets_saved(page):
        (tmp_path / written).write_text(_preset_of(words))
    monkeypatch.chdir(tmp_path)
    refused = _refusal(command.words()[1:])
    if any(line.startswith("Error:") for line in command.shown):
        assert refused, f"{command.line} is right, but {page.name} shows an error"
        assert missing(command.shown, refused) == [], refused
    else:
        assert not refused, f"{command.line}\n{refused}"


@cache
def _presets_saved(page: Path) -> list[tuple[str, list[str]]]:
    """Return the files that a page writes with `swift config BACKEND PRESET > FILE`."""
    saved = []
    for of, command in _commands():
        words = command.words()
        if of == page and words[1:2] == ["config"] and words[4:5] == [">"]:
            saved.append((words[5], words[2:4]))
    return saved


def _preset_of(words: list[str]) -> str:
    backend, preset = words
    return presets_of_backends()[backend][preset]


def _refusal(words: list[str]) -> str:
    """Return the error that swift would print; empty without one."""
    try:
        _read(words)
    except SwiftError as error:
        return f"Error: {error}"
    return ""


def _read(words: list[str]) -> None:
    command_name, *rest = words
    if command_name.startswith("--"):
        return
    if command_name in ("serve", "deploy"):
        # Flags that are not swift's belong to the server.
        rest = _without_redirection(rest)
        assert read_options(command_name, rest, ServeOptions, passes_on=True).options.model, "the model comes first"
        return
    if command_name not in TRAINING and cli_commands.commands()[command_name].entry.distribution != "swift-core":
        command = load_command(command_name).object
        passes_on = getattr(command, "passes_on", False)
        typed = read_options(command_name, rest, command.options_model, passes_on=passes_on)
        if passes_on:  # to a command that trains
            parse([*typed.positional, *typed.passed_on], getattr(typed.options, "kind", "sft"), complete=False)
        return
    rest = [word for word in _without_redirection(rest) if not _own_file(word)]
    if command_name == "config":
        action, *rest = rest
        if action in presets_of_backends():
            assert _preset_of([action, *rest])
            return
        if action == "import":
            assert import_options(_without_redirection(words)[2:]).source
            return
        assert action in ("show", "validate", "schema")
        command_name = rest.pop(0) if rest and rest[0] in TRAINING else "train"
        typed = read_options("config", rest, ConfigOptions, passes_on=True)
        parse(without_auto([*typed.positional, *typed.passed_on]), command_name, complete=False)
    elif command_name == "data":
        read_data_command(rest, complete=False)
    elif "--help" in rest:
        return
    elif command_name in TRAINING:
        # A configuration that the page writes does not exist yet.
        rest = without_auto(rest)
        parse(rest, command_name, complete=not any(word.endswith(".yaml") for word in words))
    elif command_name == "export":
        read_options(command_name, rest, export_options(rest))
    elif (options := options_of(command_name)) is not None:
        read_options(command_name, rest, options)


def _without_redirection(words: list[str]) -> list[str]:
    return words[: words.index(">")] if ">" in words else words


def _own_file(word: str) -> bool:
    return word.endswith(".yaml") and not (ROOT / word).exists()


def test_there_are_commands_to_check() -> None:
    assert len(_commands()) > 50
