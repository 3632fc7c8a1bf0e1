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
_TRAIN, _USE, _INSPECT = "Train", "Use the result", "Inspect"

BUILTIN_COMMANDS = {
    name: BuiltinCommand(name, group, summary, f"swift.cli.{function}", options)
    for name, group, summary, function, options in (
        ("pt", _TRAIN, "Continue pre-training on plain text", "train:run", ""),
        ("sft", _TRAIN, "Fine-tune on conversations or instructions", "train:run", ""),
        (
            "rlhf",
            _TRAIN,
            "Learn from preferences (dpo, kto, orpo, simpo, cpo, rm, prm), rewards (grpo, ppo) or a teacher (gkd)",
            "train:run",
            "",
        ),
        ("train", _TRAIN, "Any objective, named by --train_type or --objective", "train:run", ""),
        ("data", _TRAIN, "Tokenize a data set in advance, on many machines", "data:run", "DataOptions"),
        ("export", _USE, "Write a checkpoint as a model folder, and check it", "export:run", "ExportCommandOptions"),
        ("merge-lora", _USE, "Merge adapters into the model's weights", "export:run", "MergeLoraOptions"),
        ("infer", _USE, "Generate responses to prompts from a file or the keyboard", "infer:run", "InferOptions"),
        ("chat", _USE, "Chat with a model", "infer:run_chat", "ChatOptions"),
        ("serve", _USE, "Serve a model to OpenAI clients, with its adapters", "serve:run", "ServeCommandOptions"),
        ("deploy", _USE, "The same as serve", "serve:run", "ServeCommandOptions"),
        ("eval", _USE, "Evaluate a model on a labeled data set", "eval:run", "EvalOptions"),
        ("doctor", _INSPECT, "Check this machine and suggest fixes", "doctor:run", "DoctorOptions"),
        ("plugins", _INSPECT, "List and check installed plugins", "plugins:run", "PluginsOptions"),
        ("config", _INSPECT, "Show, validate or describe a configuration", "config:run", "ConfigOptions"),
        ("demo", _INSPECT, "Train, export and evaluate a tiny model in minutes", "demo:run", "DemoOptions"),
    )
}

COMMAND_ALIASES = {
    **{
        name: ("rlhf", "--rlhf_type", name)
        for name in ("dpo", "kto", "orpo", "simpo", "cpo", "rm", "prm", "gkd", "grpo", "ppo")
    },
    **{name.replace("_", "-"): ("sft", "--task_type", name) for name in ("seq_cls", "embedding", "reranker")},
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


def training_command(args: list[str], default: str) -> tuple[str, list[str]]:
    """Return the training command that the arguments begin with, if any, and the remaining arguments."""
    if args and args[0] in COMMAND_ALIASES:
        args = [*COMMAND_ALIASES[args[0]], *args[1:]]
    return (args[0], args[1:]) if args and args[0] in TRAINING else (default, args)


def command_name(typed: str) -> str:
    """Return the name of a typed command: `_` means `-`."""
    return typed.replace("_", "-")
