"""The Python API: the flags of the command line as keywords.

    Swift.from_config(TrainerConfig(model="qwen3-0.6b", dataset="data.jsonl", learning_rate=1e-5)).train()
    Trainer(model=SwiftModel.from_pretrained("qwen3-0.6b"), args={"max_steps": 20}, train_dataset=rows).train()

Keywords use the same table of aliases as flags, so both give the same configuration.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from swift.contracts import RunSummary, StepRecord
from swift.errors import UsageError
from swift.parsing import Parsed, config_from_mapping
from swift.script import script_errors

Rows = Sequence[Any]
"""Rows in memory: a list of mappings, or a `datasets.Dataset`."""


class MegatronArguments:
    """Options of the Megatron backend, under Megatron's names: `tensor_model_parallel_size=4`."""

    def __init__(self, **options: Any) -> None:
        self.options = options


class TrainerConfig:
    """A training run, with any flag of the command line as a keyword; `megatron_args` selects the Megatron backend."""

    def __init__(self, *, megatron_args: MegatronArguments | None = None, **options: Any) -> None:
        self.options = {key: value for key, value in options.items() if value is not None}
        if megatron_args is not None:
            self.options = {"backend": "megatron", **self.options, **megatron_args.options}

    def parse(self) -> Parsed:
        """Return the validated configuration."""
        with script_errors():
            return config_from_mapping(self.options, "train", source="TrainerConfig")


class Swift:
    """A run that is ready to start."""

    def __init__(self, parsed: Parsed, *, rows: Rows | None = None, validation_rows: Rows | None = None) -> None:
        self.parsed = parsed
        self._rows = rows
        self._validation_rows = validation_rows

    @classmethod
    def from_config(cls, config: TrainerConfig | Mapping[str, Any]) -> Swift:
        """Return a run from keywords, or from a mapping of sections as in a YAML file."""
        with script_errors():
            parsed = config.parse() if isinstance(config, TrainerConfig) else config_from_mapping(config)
        return cls(parsed)

    def train(self) -> RunSummary:
        """Train in this process, or as a member of the group that a launcher started."""
        with script_errors():
            self._prepare()
            from swift.train.loop import train

            return train(self.parsed, rows=self._rows, validation_rows=self._validation_rows)

    def steps(self) -> Iterator[StepRecord]:
        """Train as `train` does, and yield a record after each step, once logging, evaluation and saving are done."""
        with script_errors():
            self._prepare()
            from swift.train.loop import steps

            yield from steps(self.parsed, rows=self._rows, validation_rows=self._validation_rows)

    def _prepare(self) -> None:
        """Raise `UsageError` where the model or the data is missing; silence libraries before they are imported."""
        config = self.parsed.config
        if config.model.path is None:
            raise UsageError("No model is given.", hint="Pass model='qwen3-0.6b', or a folder.")
        if not config.data.train and self._rows is None:
            raise UsageError("No training data is given.", hint="Pass dataset='data.jsonl' or train_dataset.")
        if (self.parsed.nproc or 1) > 1:
            raise UsageError(
                "The Python API trains in the current process, so nproc cannot be greater than 1.",
                hint=f"Start the script with: torchrun --nproc-per-node {self.parsed.nproc} SCRIPT",
            )
        from swift.models.quiet import quiet_libraries

        quiet_libraries()


@dataclass(frozen=True)
class SwiftModel:
    """A model by name; the backend reads its weights when training starts."""

    path: str
    options: Mapping[str, Any]

    @classmethod
    def from_pretrained(cls, name: str | os.PathLike[str], **options: Any) -> SwiftModel:
        """Return the model for a folder, hub id or short name; `options` are keys of the `model` section or aliases."""
        return cls(os.fspath(name), options)


class Trainer:
    """A run with the interface of the Hugging Face Trainer, and rows in memory."""

    def __init__(
        self,
        model: SwiftModel | str | os.PathLike[str],
        args: Mapping[str, Any] | None = None,
        train_dataset: str | os.PathLike[str] | Rows | None = None,
        eval_dataset: str | os.PathLike[str] | Rows | None = None,
    ) -> None:
        chosen = model if isinstance(model, SwiftModel) else SwiftModel.from_pretrained(model)
        options: dict[str, Any] = {"model": chosen.path, **chosen.options, **(args or {})}
        rows = _rows(train_dataset, options, "dataset")
        validation_rows = _rows(eval_dataset, options, "val_dataset")
        with script_errors():
            parsed = config_from_mapping(options, "train", source="Trainer")
        self._swift = Swift(parsed, rows=rows, validation_rows=validation_rows)

    @property
    def parsed(self) -> Parsed:
        """The validated configuration."""
        return self._swift.parsed

    def train(self) -> RunSummary:
        """Train in this process."""
        return self._swift.train()


def _rows(dataset: str | os.PathLike[str] | Rows | None, options: dict[str, Any], name: str) -> Rows | None:
    """Return rows in memory unchanged; put a name into the options."""
    if isinstance(dataset, str | os.PathLike):
        options[name] = os.fspath(dataset)
        return None
    return dataset
