"""Reading what somebody brings: a file or a command of another program, and finding out which program it is."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from swift.config.files import read_yaml
from swift.errors import ConfigError, UsageError
from swift.imports import axolotl, llama_factory, ms_swift, nemo, torchtune, trainer, trl
from swift.imports.carrying import NotTrainable, ThirdPartyRun
from swift.imports.commands import ProgramCall, call_of
from swift.imports.components import flat, interpolated
from swift.imports.shell import ShellCommand, read_commands
from swift.untrusted import read_json_object, read_text, shown

READABLE = (".yaml", ".yml", ".sh", ".bash", ".json")
_SCRIPT = 1 << 20
_PICKLED = (".bin", ".pt", ".pth", ".pkl", ".pickle")
_UNSET = re.compile(r"\$\{\w+\}|\$\(")
_NESTED = (torchtune.NAME, nemo.NAME)
_SECTIONS = {"model", "data", "tuner", "objective", "optim", "parallel", "train", "checkpoint", "logging", "backend"}


def whose(values: Mapping[str, Any]) -> str | None:
    """Return the program whose configuration these keys are; None for swift's own, and where nobody can tell."""
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
        and keys
        & {
            "dataset_name",
            "dataset_mixture",
            "datasets",
            "dataset_mixer",
            "use_peft",
        }
    ):
        return trl.NAME
    if _is_ms_swift(values):
        return ms_swift.NAME
    if keys & {"per_device_train_batch_size", "num_train_epochs", "adam_beta1"} and not keys & {"dataset", "data"}:
        return trl.NAME if "model_name_or_path" in keys else trainer.NAME
    return None


def check_is_own(words: Iterable[str]) -> None:
    """Raise `ConfigError` where the configuration file of a command is another program's, whose defaults differ."""
    for word in words:
        path = Path(word)
        if path.suffix not in (".yaml", ".yml") or not path.is_file():
            continue
        values = read_yaml(path)[0]
        program = whose(values)
        # ms-swift's keys are swift's own flags; so are many of LLaMA-Factory's, but never its stage.
        own = program in (None, ms_swift.NAME, trainer.NAME) or (
            program == llama_factory.NAME and "stage" not in values
        )
        if not own:
            raise ConfigError(
                f"{shown(path)} looks like a configuration of {program}'s.",
                hint=f"Type: swift config import {shlex.quote(word)} --out run.yaml",
            )


def _is_ms_swift(values: Mapping[str, Any]) -> bool:
    if any(isinstance(values.get(section), Mapping) for section in _SECTIONS):
        return False
    return bool(
        values.keys() & {"model", "model_id_or_path", "adapters", "mcore_model"}
        and values.keys() & {"dataset", "cached_dataset"}
        and values.keys() & {"tuner_type", "train_type", "sft_type", "num_train_epochs", "max_length", "train_iters"}
    )


def read_file(path: Path) -> list[ThirdPartyRun]:
    """Return the runs that a file describes: one, or as many as a script has commands that train."""
    if path.suffix in _PICKLED:
        raise ConfigError(
            f"{shown(path)} is pickled: to read it is to run what is in it, and nothing is unpickled here.",
            hint="Give the script or YAML that was started, or args.json; or write the arguments as text where you "
            "trust the file: args.to_json_string()",
        )
    if path.suffix in (".yaml", ".yml"):
        return [_of_values(read_yaml(path)[0], path)]
    if path.suffix == ".json":
        return [_of_values(read_json_object(path, ConfigError, limit=_SCRIPT), path)]
    return read_script(read_text(path, ConfigError, limit=_SCRIPT), str(path), path.parent)


def read_script(text: str, source: str, folder: Path) -> list[ThirdPartyRun]:
    """Return the runs of the commands in a script, or of one command line."""
    calls = [(command, call) for command in read_commands(text) if (call := call_of(command))]
    training = [(command, call) for command, call in calls if call.trains]
    if not training:
        raise _no_training(calls, source)
    runs = []
    for command, call in training:
        place = f"{source}:{command.line}" if "\n" in text.strip() else source
        runs.append(_of_call(command, call, place, folder))
    return runs


def _no_training(calls: list[tuple[ShellCommand, ProgramCall]], source: str) -> UsageError:
    if calls:
        command, call = calls[0]
        typed = " ".join(command.words[:2])
        return NotTrainable(
            f"{shown(source)} trains nothing that swift trains: it starts {typed} of {call.program}.",
            hint="swift infer, chat, serve, export and eval take flags of their own: see swift --help",
        )
    return NotTrainable(
        f"{shown(source)} holds no command that is known.",
        hint="Known are swift, megatron, trl, llamafactory-cli, axolotl, tune and automodel, and scripts of TRL.",
    )


def _of_values(values: dict[str, Any], path: Path) -> ThirdPartyRun:
    other = _other_kind(values)
    if other is not None:
        raise NotTrainable(f"{shown(path)} is {other}.", hint="Give the recipe or the command that trains.")
    program = whose(values)
    if program is None:
        sections = sorted(_SECTIONS & values.keys())
        mine = " It may be swift's own already: swift config validate FILE" if sections else ""
        raise NotTrainable(
            f"{shown(path)} is no training configuration of a program that is known.{mine}",
            hint="Known are LLaMA-Factory, axolotl, TRL, ms-swift, Hugging Face Trainer, torchtune and NeMo Automodel.",
        )
    return ThirdPartyRun(program, _ready(program, values), str(path), folder=path.parent)


def _ready(program: str, values: dict[str, Any]) -> dict[str, Any]:
    return interpolated(flat(values)) if program in _NESTED else values


_OTHERS = (
    ({"compute_environment", "distributed_type"}, "a configuration of accelerate's launcher, not a training recipe"),
    ({"zero_optimization"}, "a configuration of DeepSpeed: use it as it is, with --deepspeed FILE"),
    ({"export_dir"}, "LLaMA-Factory's recipe of an export: swift export RUN --to hf"),
    ({"infer_backend"}, "a recipe of inference: swift chat MODEL, swift infer MODEL"),
    ({"model_class", "dist_config"}, "a recipe of LLaMA-Factory's new engine (v1), which is not read yet"),
    ({"sample_backend"}, "a recipe of LLaMA-Factory's new engine (v1), which is not read yet"),
    ({"sampler_type"}, "a recipe of sampling: swift infer MODEL --dataset FILE"),
    ({"sampler_engine"}, "a recipe of sampling: swift infer MODEL --dataset FILE"),
    ({"generation_config_path"}, "a recipe of inference: swift chat MODEL, swift infer MODEL"),
)


def _other_kind(values: Mapping[str, Any]) -> str | None:
    """Return what a file is that trains nothing, in words; None for one that may train."""
    for keys, what in _OTHERS:
        if keys <= values.keys() and not (
            values.get("do_train") or values.get("stage") in ("sft", "dpo", "kto", "pt", "rm")
        ):
            return what
    return None


def _of_call(command: ShellCommand, call: ProgramCall, place: str, folder: Path) -> ThirdPartyRun:
    values: dict[str, Any] = {}
    remarks: list[tuple[str, Any, str]] = []
    for name in call.files:
        found = next((at / name for at in (Path(), folder) if (at / name).is_file()), None)
        if found is None and not any("model" in key for key in call.values):
            raise ConfigError(
                f"{place} takes its settings from {shown(name)}, which is not there.",
                hint="Import that file itself: swift config import FILE",
            )
        if found is None:
            remarks.append(("config", name, "there is no such file here: import the file itself"))
        elif found.suffix == ".json":
            values.update(read_json_object(found, ConfigError, limit=_SCRIPT))
        else:
            values.update(read_yaml(found)[0])
    values = _ready(call.program, values) | call.values
    for key, value in values.items():
        if _UNSET.search(str(value)):
            remarks.append((key, value, "the script does not say what this is: write the value itself"))
    remarks += [("", word, "belongs to no flag") for word in call.strays]
    return ThirdPartyRun(
        call.program, values, place, command=call.task, folder=folder, processes=call.processes, remarks=tuple(remarks)
    )
