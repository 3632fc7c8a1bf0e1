"""Commands of `swift` as plain data, so that `swift --help` imports nothing else, and those that plugins add."""

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
    """A command of core."""

    name: str
    group: str
    summary: str
    target: str
    """`module:function`; the function takes (command, arguments) and returns the exit code."""
    options: str = ""
    """The class in that module whose fields are the command's flags; empty for the commands that train."""


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
            "data", "Train", "Tokenize a data set in advance, on many machines", "swift.cli.data:run", "DataOptions"
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
            "Convert checkpoints from and to third-party formats",
            "swift.cli.convert:run",
            "ConvertOptions",
        ),
        BuiltinCommand(
            "infer",
            "Use the result",
            "Generate responses to prompts from a file or the keyboard",
            "swift.cli.infer:run",
            "InferOptions",
        ),
        BuiltinCommand("chat", "Use the result", "Chat with a model", "swift.cli.infer:run_chat", "ChatOptions"),
        BuiltinCommand(
            "serve",
            "Use the result",
            "Serve a model to OpenAI clients, with its adapters",
            "swift.cli.serve:run",
            "ServeCommandOptions",
        ),
        BuiltinCommand("deploy", "Use the result", "The same as serve", "swift.cli.serve:run", "ServeCommandOptions"),
        BuiltinCommand(
            "eval", "Use the result", "Evaluate a model on a labeled data set", "swift.cli.eval:run", "EvalOptions"
        ),
        BuiltinCommand(
            "doctor", "Inspect", "Check this machine and suggest fixes", "swift.cli.doctor:run", "DoctorOptions"
        ),
        BuiltinCommand(
            "plugins",
            "Inspect",
            "List and check installed plugins",
            "swift.cli.plugins:run",
            "PluginsOptions",
        ),
        BuiltinCommand(
            "config",
            "Inspect",
            "Show, validate or describe a configuration",
            "swift.cli.config:run",
            "ConfigOptions",
        ),
        BuiltinCommand(
            "demo",
            "Inspect",
            "Train, export and evaluate a tiny model in minutes",
            "swift.cli.demo:run",
            "DemoOptions",
        ),
    )
}

COMMAND_ALIASES = {
    name: ("rlhf", "--rlhf_type", name)
    for name in ("dpo", "kto", "orpo", "simpo", "cpo", "rm", "prm", "gkd", "grpo", "ppo")
}
COMMAND_ALIASES |= {
    name.replace("_", "-"): ("sft", "--task_type", name) for name in ("seq_cls", "embedding", "reranker")
}
"""Third-party command → the command and flags that replace it."""

REPLACED_COMMANDS = {name: (f"There is no `swift {name}`.", "Type: swift ui") for name in ("web-ui", "app")}
"""Third-party command without an equivalent → the message, and the hint."""


def plugin_commands() -> list[PluginEntry]:
    """Return the commands that allowed plugins add, by name, from metadata alone."""
    from importlib import metadata

    with suppress(Exception):  # one damaged distribution must not hide the others
        if not any(True for _ in metadata.entry_points(group=COMMANDS)):
            return []
    from swift.plugins.discover import list_plugins

    return [entry for entry in list_plugins(COMMANDS) if entry.allowed and collision(entry) is None]


def collision(entry: PluginEntry) -> str | None:
    """Return why a plugin's command is refused, as the end of a sentence; None where it is valid."""
    if entry.group == COMMANDS and command_name(entry.name) in (*BUILTIN_COMMANDS, *COMMAND_ALIASES, "help", "version"):
        return "has the name of a built-in command, which a plugin cannot replace"
    return None


def command_name(typed: str) -> str:
    """Return the name of a typed command: `_` means `-`."""
    return typed.replace("_", "-")
