"""What `swift` can be told to do, as plain data, so that `swift --help` imports nothing else."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Verb:
    """One word after `swift`."""

    name: str
    group: str
    summary: str
    target: str
    """`module:function`; the function takes (verb, arguments) and returns the exit code."""


TRAINING = ("pt", "sft", "rlhf", "train")

VERBS = {
    verb.name: verb
    for verb in (
        Verb("pt", "Train", "Go on pre-training on plain text", "swift.cli.train:run"),
        Verb("sft", "Train", "Fine-tune on conversations or instructions", "swift.cli.train:run"),
        Verb("rlhf", "Train", "Learn from preferences: dpo, kto, orpo, simpo, cpo", "swift.cli.train:run"),
        Verb("train", "Train", "Any objective, named by --train_type or --objective", "swift.cli.train:run"),
        Verb("export", "Use the result", "Write a checkpoint as a model folder, and check it", "swift.cli.export:run"),
        Verb("merge-lora", "Use the result", "Merge adapters into the model's weights", "swift.cli.export:run"),
        Verb(
            "convert",
            "Use the result",
            "Take a checkpoint of another program over, or hand one back",
            "swift.cli.convert:run",
        ),
        Verb("infer", "Use the result", "Answer prompts from a file or the keyboard", "swift.cli.delegate:infer"),
        Verb("chat", "Use the result", "Talk to a model", "swift.cli.delegate:infer"),
        Verb("serve", "Use the result", "Serve a model to OpenAI clients, with its adapters", "swift.cli.serve:run"),
        Verb("deploy", "Use the result", "The same as serve", "swift.cli.serve:run"),
        Verb("eval", "Use the result", "Score a model on a data set with answers", "swift.cli.delegate:infer"),
        Verb(
            "doctor", "Look around", "What this machine has, and what mends what it lacks", "swift.cli.delegate:doctor"
        ),
        Verb("plugins", "Look around", "Backends, exporters, objectives and observers", "swift.cli.plugins:run"),
        Verb("config", "Look around", "Show, validate or describe a configuration", "swift.cli.config:run"),
        Verb("demo", "Look around", "Train, export and question a tiny model in minutes", "swift.cli.delegate:demo"),
    )
}

ELSEWHERE = ("plan", "ui")
"""Words that belong to swift's vocabulary but that this version does not have."""
