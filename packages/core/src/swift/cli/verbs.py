"""The verbs of `swift`, as plain data, so that `swift --help` imports nothing else, and those that plugins add."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from swift.plugins.entry import PluginEntry

COMMANDS = "swift.commands"
"""Entry-point group of verbs that plugins add."""


@dataclass(frozen=True)
class Verb:
    """One word after `swift`."""

    name: str
    group: str
    summary: str
    target: str
    """`module:function`; the function takes (verb, arguments) and returns the exit code."""
    options: str = ""
    """The class in that module whose fields are the verb's flags; none for the verbs that train."""


TRAINING = ("pt", "sft", "rlhf", "train")

VERBS = {
    verb.name: verb
    for verb in (
        Verb("pt", "Train", "Continue pre-training on plain text", "swift.cli.train:run"),
        Verb("sft", "Train", "Fine-tune on conversations or instructions", "swift.cli.train:run"),
        Verb(
            "rlhf",
            "Train",
            "Learn from preferences (dpo, kto, orpo, simpo, cpo, rm, prm), rewards (grpo, ppo) or a teacher (gkd)",
            "swift.cli.train:run",
        ),
        Verb("train", "Train", "Any objective, named by --train_type or --objective", "swift.cli.train:run"),
        Verb("data", "Train", "Tokenise a data set beforehand, on many machines", "swift.cli.data:run", "DataOptions"),
        Verb(
            "export",
            "Use the result",
            "Write a checkpoint as a model folder, and check it",
            "swift.cli.export:run",
            "ExportVerbOptions",
        ),
        Verb(
            "merge-lora",
            "Use the result",
            "Merge adapters into the model's weights",
            "swift.cli.export:run",
            "MergeLoraOptions",
        ),
        Verb(
            "convert",
            "Use the result",
            "Import a checkpoint of another program, or export one",
            "swift.cli.convert:run",
            "ConvertOptions",
        ),
        Verb(
            "infer",
            "Use the result",
            "Answer prompts from a file or the keyboard",
            "swift.cli.infer:run",
            "InferOptions",
        ),
        Verb("chat", "Use the result", "Talk to a model", "swift.cli.chat:run", "ChatOptions"),
        Verb(
            "serve",
            "Use the result",
            "Serve a model to OpenAI clients, with its adapters",
            "swift.cli.serve:run",
            "ServeVerbOptions",
        ),
        Verb("deploy", "Use the result", "The same as serve", "swift.cli.serve:run", "ServeVerbOptions"),
        Verb("eval", "Use the result", "Score a model on a data set with answers", "swift.cli.eval:run", "EvalOptions"),
        Verb("doctor", "Look around", "Check this machine and suggest fixes", "swift.cli.doctor:run", "DoctorOptions"),
        Verb(
            "plugins",
            "Look around",
            "List installed plugins, and check them",
            "swift.cli.plugins:run",
            "PluginsOptions",
        ),
        Verb(
            "config",
            "Look around",
            "Show, validate or describe a configuration",
            "swift.cli.config:run",
            "ConfigOptions",
        ),
        Verb(
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
"""Verbs of other programs → the verb and the flags that mean the same here."""

NOT_THERE = {
    "web-ui": ("swift's web interface is another verb.", "Type: swift ui"),
    "app": ("swift's web interface is another verb.", "Type: swift ui"),
}
"""Verbs of other programs that swift does not have: what is missing, and what there is."""


def plugin_verbs() -> list[PluginEntry]:
    """Return the verbs that allowed plugins add, by name. Reads metadata, imports no plugin."""
    from importlib import metadata

    with suppress(Exception):  # of one distribution whose file is damaged, which others are read without
        if not any(True for _ in metadata.entry_points(group=COMMANDS)):
            return []
    from swift.plugins.discover import list_plugins

    return [entry for entry in list_plugins(COMMANDS) if entry.allowed and collision(entry) is None]


def collision(entry: PluginEntry) -> str | None:
    """Return why a plugin's verb is refused, to be read after the plugin's name; None where nothing is wrong."""
    if entry.group == COMMANDS and verb_name(entry.name) in (*VERBS, *KIN, "help", "version"):
        return "has the name of a verb of swift itself, which a plugin cannot replace"
    return None


def verb_name(typed: str) -> str:
    """Return the name of a verb as it was typed: `-` and `_` mean the same."""
    return typed.replace("_", "-")
