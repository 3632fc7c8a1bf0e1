"""The commands of `swift`, as plain data, so that `swift --help` imports nothing else, and those that plugins add."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from swift.plugins.entry import PluginEntry

COMMANDS = "swift.commands"
"""Entry-point group of commands that plugins add."""


@dataclass(frozen=True)
class BuiltinCommand:
    """One word after `swift`."""

    name: str
    group: str
    summary: str
    target: str
    """`module:function`; the function takes (command, arguments) and returns the exit code."""
    options: str = ""
    """The class in that module whose fields are the verb's flags; none for the commands that train."""


TRAINING = ("pt", "sft", "rlhf", "train")

BUILTIN_COMMANDS = {
    command.name: command
    for command in (
        BuiltinCommand("pt", "Train", "Continue pre-training on plain text", "swift.cli.train:run"),
        BuiltinCommand("sft", "Train", "Fine-tune on conversations or instructions", "swift.cli.train:run"),
        BuiltinCommand(
            "rlhf",
            "Train",
            "Learn from preferences (dpo, kto, orpo, simpo, cpo, rm, prm), rewards (grpo, ppo) or a teacher (gkd)",
            "swift.cli.train:run",
        ),
        BuiltinCommand("train", "Train", "Any objective, named by --train_type or --objective", "swift.cli.train:run"),
        BuiltinCommand(
            "data", "Train", "Tokenise a data set beforehand, on many machines", "swift.cli.data:run", "DataOptions"
        ),
        BuiltinCommand(
            "export",
            "Use the result",
            "Write a checkpoint as a model folder, and check it",
            "swift.cli.export:run",
            "ExportCommandOptions",
        ),
        BuiltinCommand(
            "merge-lora",
            "Use the result",
            "Merge adapters into the model's weights",
            "swift.cli.export:run",
            "MergeLoraOptions",
        ),
        BuiltinCommand(
            "convert",
            "Use the result",
            "Import a checkpoint of another program, or export one",
            "swift.cli.convert:run",
            "ConvertOptions",
        ),
        BuiltinCommand(
            "infer",
            "Use the result",
            "Answer prompts from a file or the keyboard",
            "swift.cli.infer:run",
            "InferOptions",
        ),
        BuiltinCommand("chat", "Use the result", "Talk to a model", "swift.cli.chat:run", "ChatOptions"),
        BuiltinCommand(
            "serve",
            "Use the result",
            "Serve a model to OpenAI clients, with its adapters",
            "swift.cli.serve:run",
            "ServeCommandOptions",
        ),
        BuiltinCommand("deploy", "Use the result", "The same as serve", "swift.cli.serve:run", "ServeCommandOptions"),
        BuiltinCommand(
            "eval", "Use the result", "Score a model on a data set with answers", "swift.cli.eval:run", "EvalOptions"
        ),
        BuiltinCommand(
            "doctor", "Look around", "Check this machine and suggest fixes", "swift.cli.doctor:run", "DoctorOptions"
        ),
        BuiltinCommand(
            "plugins",
            "Look around",
            "List installed plugins, and check them",
            "swift.cli.plugins:run",
            "PluginsOptions",
        ),
        BuiltinCommand(
            "config",
            "Look around",
            "Show, validate or describe a configuration",
            "swift.cli.config:run",
            "ConfigOptions",
        ),
        BuiltinCommand(
            "demo",
            "Look around",
            "Train, export and question a tiny model in minutes",
            "swift.cli.demo:run",
            "DemoOptions",
        ),
    )
}

KIN = {
    name: ("rlhf", "--rlhf_type", name)
    for name in ("dpo", "kto", "orpo", "simpo", "cpo", "rm", "prm", "gkd", "grpo", "ppo")
}
KIN |= {name.replace("_", "-"): ("sft", "--task_type", name) for name in ("seq_cls", "embedding", "reranker")}
"""Verbs of other programs → the command and the flags that mean the same here."""

NOT_THERE = {
    "web-ui": ("swift's web interface is another command.", "Type: swift ui"),
    "app": ("swift's web interface is another command.", "Type: swift ui"),
}
"""Verbs of other programs that swift does not have: what is missing, and what there is."""


def plugin_commands() -> list[PluginEntry]:
    """Return the commands that allowed plugins add, by name. Reads metadata, imports no plugin."""
    from importlib import metadata

    with suppress(Exception):  # of one distribution whose file is damaged, which others are read without
        if not any(True for _ in metadata.entry_points(group=COMMANDS)):
            return []
    from swift.plugins.discover import list_plugins

    return [entry for entry in list_plugins(COMMANDS) if entry.allowed and collision(entry) is None]


def collision(entry: PluginEntry) -> str | None:
    """Return why a plugin's command is refused, to be read after the plugin's name; None where nothing is wrong."""
    if entry.group == COMMANDS and command_name(entry.name) in (*BUILTIN_COMMANDS, *KIN, "help", "version"):
        return "has the name of a command of swift itself, which a plugin cannot replace"
    return None


def command_name(typed: str) -> str:
    """Return the name of a command as it was typed: `-` and `_` mean the same."""
    return typed.replace("_", "-")
