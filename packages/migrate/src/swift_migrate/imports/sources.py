"""Reader of third-party files and commands that detects their program."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from swift.config import read_yaml
from swift.contracts import ThirdPartyRun
from swift.errors import ConfigError, NotTrainable, UsageError
from swift.untrusted import read_json_object, read_text, shown
from swift_migrate.imports import axolotl, llama_factory, ms_swift, nemo, torchtune, trainer, trl
from swift_migrate.imports.commands import ProgramCall, call_of
from swift_migrate.imports.components import flat, interpolated
from swift_migrate.imports.shell import ShellCommand, read_commands

_SCRIPT = 1 << 20
_PICKLED = (".bin", ".pt", ".pth", ".pkl", ".pickle")
_UNSET = re.compile(r"\$\{\w+\}|\$\(")
_NESTED = (torchtune.NAME, nemo.NAME)
_SECTIONS = {"model", "data", "tuner", "objective", "optim", "parallel", "train", "checkpoint", "logging", "backend"}


def whose(values: Mapping[str, Any]) -> str | None:
    """Return the program of a configuration by its keys; None for swift's own and unknown ones."""
    keys = values.keys()
    inner = {key for value in values.values() if isinstance(value, Mapping) for key in value}
    if "_component_" in inner:
        return torchtune.NAME
    if "_target_" in inner or "step_scheduler" in keys:
        return nemo.NAME
    if "base_model" in keys and keys & {
        "micro_batch_size",
        "sequence_len",
        "datasets",
        "adapter",
        "pretraining_dataset",
    }:
        return axolotl.NAME
    if keys & {"finetuning_type", "cutoff_len"} or ("template" in keys and "model_name_or_path" in keys):
        return llama_factory.NAME
    if (
        "model_name_or_path" in keys
        and "dataset" not in keys
        and keys & {"dataset_name", "dataset_mixture", "datasets", "dataset_mixer", "use_peft"}
    ):
        return trl.NAME
    if _is_ms_swift(values):
        return ms_swift.NAME
    if keys & {"per_device_train_batch_size", "num_train_epochs", "adam_beta1"} and not keys & {"dataset", "data"}:
        return trl.NAME if "model_name_or_path" in keys else trainer.NAME
    return None


def refused_program(values: Mapping[str, Any]) -> str | None:
    """Return the program of a configuration that swift does not train as it is; None for others."""
    program = whose(values)
    # ms-swift's keys are swift's own flags; so are many of LLaMA-Factory's, but never its stage.
    own = program in (ms_swift.NAME, trainer.NAME) or (program == llama_factory.NAME and "stage" not in values)
    return None if own else program


def _is_ms_swift(values: Mapping[str, Any]) -> bool:
    if any(isinstance(values.get(section), Mapping) for section in _SECTIONS):
        return False
    return bool(
        values.keys() & {"model", "model_id_or_path", "adapters", "mcore_model"}
        and values.keys() & {"dataset", "cached_dataset"}
        and values.keys() & {"tuner_type", "train_type", "sft_type", "num_train_epochs", "max_length", "train_iters"}
    )


def read_file(path: Path) -> list[ThirdPartyRun]:
    """Return the runs of a file: one, or one for each training command of a script."""
    if path.suffix in _PICKLED:
        raise ConfigError(
            f"{shown(path)} is a pickle, which could run code when it is read.",
            hint="Pass the script or YAML of the training, or args.json. If you trust the pickle, write the arguments "
            "with args.to_json_string().",
        )
    if path.suffix in (".yaml", ".yml"):
        return [_of_values(read_yaml(path)[0], path)]
    if path.suffix == ".json":
        return [_of_values(read_json_object(path, ConfigError, limit=_SCRIPT), path)]
    return read_script(read_text(path, ConfigError, limit=_SCRIPT), str(path), path.parent)


def read_script(text: str, source: str, folder: Path) -> list[ThirdPartyRun]:
    """Return the runs of a script, or of one command line."""
    calls = [(command, call) for command in read_commands(text) if (call := call_of(command))]
    training = [(command, call) for command, call in calls if call.trains]
    if not training:
        raise _no_training(calls, source)
    runs = []
    for command, call in training:
        position = f"{source}:{command.line}" if "\n" in text.strip() else source
        runs.append(_of_call(command, call, position, folder))
    return runs


def _no_training(calls: list[tuple[ShellCommand, ProgramCall]], source: str) -> UsageError:
    if calls:
        command, call = calls[0]
        typed = " ".join(command.argv[:2])
        return NotTrainable(
            f"{shown(source)} has no training command: it runs {typed} of {call.program}.",
            hint="For inference, serving and export see swift --help",
        )
    return NotTrainable(
        f"{shown(source)} has no known command.",
        hint="Known commands: swift, megatron, trl, llamafactory-cli, axolotl, tune, automodel, and scripts of TRL.",
    )


def _of_values(values: dict[str, Any], path: Path) -> ThirdPartyRun:
    other = _other_kind(values)
    if other is not None:
        raise NotTrainable(f"{shown(path)} is {other}.", hint="Pass the training recipe or command.")
    program = whose(values)
    if program is None:
        sections = sorted(_SECTIONS & values.keys())
        mine = " It may already be swift's own: swift config validate FILE" if sections else ""
        raise NotTrainable(
            f"{shown(path)} is not a training configuration of a known program.{mine}",
            hint="Known programs: LLaMA-Factory, axolotl, TRL, ms-swift, the Trainer, torchtune, NeMo Automodel.",
        )
    return ThirdPartyRun(program, _ready(program, values), str(path), folder=path.parent)


def _ready(program: str, values: dict[str, Any]) -> dict[str, Any]:
    return interpolated(flat(values)) if program in _NESTED else values


_OTHERS = (
    ({"compute_environment", "distributed_type"}, "a configuration of accelerate's launcher, not a training recipe"),
    ({"zero_optimization"}, "a DeepSpeed configuration; use it unchanged with --deepspeed FILE"),
    ({"export_dir"}, "an export recipe of LLaMA-Factory; use swift export RUN --to hf"),
    ({"infer_backend"}, "an inference recipe; use swift chat MODEL or swift infer MODEL"),
    ({"model_class", "dist_config"}, "a recipe of LLaMA-Factory's v1 engine, which is not supported"),
    ({"sample_backend"}, "a recipe of LLaMA-Factory's v1 engine, which is not supported"),
    ({"sampler_type"}, "a sampling recipe; use swift infer MODEL --dataset FILE"),
    ({"sampler_engine"}, "a sampling recipe; use swift infer MODEL --dataset FILE"),
    ({"generation_config_path"}, "an inference recipe; use swift chat MODEL or swift infer MODEL"),
)


def _other_kind(values: Mapping[str, Any]) -> str | None:
    """Return a description of a file that is not a training recipe; None for one that may be."""
    for keys, what in _OTHERS:
        if keys <= values.keys() and not (
            values.get("do_train") or values.get("stage") in ("sft", "dpo", "kto", "pt", "rm")
        ):
            return what
    return None


def _of_call(command: ShellCommand, call: ProgramCall, source: str, folder: Path) -> ThirdPartyRun:
    values: dict[str, Any] = {}
    remarks: list[tuple[str, Any, str]] = []
    for name in call.files:
        found = next((at / name for at in (Path(), folder) if (at / name).is_file()), None)
        if found is None and not any("model" in key for key in call.values):
            raise ConfigError(
                f"{source} reads {shown(name)}, which does not exist.",
                hint="Import that file instead: swift config import FILE",
            )
        if found is None:
            remarks.append(("config", name, "the file does not exist: import the file itself"))
        elif found.suffix == ".json":
            values.update(read_json_object(found, ConfigError, limit=_SCRIPT))
        else:
            values.update(read_yaml(found)[0])
    values = _ready(call.program, values) | call.values
    for key, value in values.items():
        if _UNSET.search(str(value)):
            remarks.append((key, value, "the script does not set this variable: write the value"))
    remarks += [("", arg, "unexpected argument") for arg in call.strays]
    return ThirdPartyRun(
        call.program, values, source, command=call.task, folder=folder, processes=call.processes, remarks=tuple(remarks)
    )
