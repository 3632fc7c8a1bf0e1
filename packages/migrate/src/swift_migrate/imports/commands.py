"""Third-party commands: the program, task, flags and configuration file of each."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from swift.errors import SwiftError
from swift.untrusted import parse_json
from swift_migrate.flags.environment import IGNORED_MEDIA_VARIABLES, MEDIA_VARIABLES, VARIABLES_OF_OBJECTIVE
from swift_migrate.imports import axolotl, llama_factory, ms_swift, nemo, torchtune, trainer, trl
from swift_migrate.imports.recipe import number
from swift_migrate.imports.shell import ShellCommand

_PROCESSES = ("nproc_per_node", "num_processes", "num_gpus", "nproc")
_SCRIPTS = re.compile(
    r"(?:run_)?(sft|dpo|kto|orpo|cpo|grpo|rloo|gkd|ppo|reward|reward_modeling|prm|online_dpo|bco)(?:_\w+)?"
)
_SWIFT = ("pt", "sft", "rlhf")


@dataclass
class ProgramCall:
    """A command of a known training program."""

    program: str
    task: str
    """'sft', 'megatron dpo', or empty where a file determines it."""
    values: dict[str, Any] = field(default_factory=dict)
    files: list[str] = field(default_factory=list)
    processes: int = 1
    strays: list[str] = field(default_factory=list)
    trains: bool = True


def call_of(command: ShellCommand) -> ProgramCall | None:
    """Return the call of a command; None for an unknown program."""
    argv, launcher = _without_launcher(list(command.argv))
    if not argv:
        return None
    found = _program(argv)
    if found is None:
        return None
    program, task, rest, trains = found
    call = ProgramCall(program, task, trains=trains)
    _read(call, rest)
    if program == ms_swift.NAME:
        of_objectives = (name for each in VARIABLES_OF_OBJECTIVE.values() for name in each)
        options = [*MEDIA_VARIABLES, *IGNORED_MEDIA_VARIABLES, *of_objectives]
        call.values.update({name: command.environment[name] for name in options if name in command.environment})
    flags = {**launcher, **{key: call.values.pop(key) for key in _PROCESSES if key in call.values}}
    flags.setdefault("nproc_per_node", command.environment.get("NPROC_PER_NODE"))
    sizes = [int(size) for key in _PROCESSES if (size := number(flags.get(key))) is not None and size >= 1]
    call.processes = sizes[0] if sizes else 1
    _launcher_file(call, launcher)
    return call


def _without_launcher(argv: list[str]) -> tuple[list[str], dict[str, Any]]:
    """Return the command line from the program or script on, and the flags of its launcher."""
    name = Path(argv[0]).name if argv else ""
    if argv[:2] == ["uv", "run"]:
        return _without_launcher(argv[2:])
    if name == "accelerate" and argv[1:2] == ["launch"]:
        return _after_script(argv[2:])
    if name in ("torchrun", "deepspeed") or (
        name.startswith("python") and argv[1:3] == ["-m", "torch.distributed.run"]
    ):
        return _after_script(argv[1:])
    return _after_script(argv[1:]) if name.startswith("python") else (argv, {})


def _after_script(argv: list[str]) -> tuple[list[str], dict[str, Any]]:
    for at, arg in enumerate(argv):
        if arg in ("-m", "--module") and at + 1 < len(argv):
            return argv[at + 1 :], _flags(argv[:at])[0]
        if arg.endswith(".py") or arg in ("$(which", "trl", "swift"):
            return argv[at:], _flags(argv[:at])[0]
    return [], {}


def _program(argv: list[str]) -> tuple[str, str, list[str], bool] | None:
    """Return the program, the task, the remaining arguments, and whether it trains."""
    head, second = argv[0], argv[1] if len(argv) > 1 else ""
    name = Path(head).name
    if head in ("swift", "megatron") or re.search(r"swift[./]cli", head):
        return _swift(argv)
    if name == "trl":
        return trl.NAME, second.replace("-", "_"), argv[2:], second.replace("-", "_") in trl.TASKS
    if name in ("llamafactory-cli", "lmf"):
        return llama_factory.NAME, "", argv[2:], second == "train"
    if name == "axolotl":
        return axolotl.NAME, "", argv[2:], second == "train"
    if head.startswith("axolotl.cli"):
        return axolotl.NAME, "", argv[1:], head == "axolotl.cli.train"
    if name == "tune":
        return torchtune.NAME, "", argv[2:], second == "run"
    if name in ("automodel", "nemo_automodel"):
        return nemo.NAME, "", argv[1:], True
    if name.endswith(".py"):
        return _script(head, argv[1:])
    return None


def _swift(argv: list[str]) -> tuple[str, str, list[str], bool]:
    head, rest = argv[0], argv[1:]
    megatron = "megatron" in head
    if head not in ("swift", "megatron"):
        command_name = Path(head).stem.rpartition(".")[2] if head.endswith(".py") else head.rpartition(".")[2]
    else:
        command_name, rest = (rest[0], rest[1:]) if rest else ("", [])
    return ms_swift.NAME, f"megatron {command_name}" if megatron else command_name, rest, command_name in _SWIFT


def _script(path: str, rest: list[str]) -> tuple[str, str, list[str], bool] | None:
    stem = Path(path).stem
    if path.endswith("src/train.py") or path.endswith("llamafactory/launcher.py"):
        return llama_factory.NAME, "", rest, True
    if stem in ("finetune", "automodel") or "nemo_automodel" in path:
        return nemo.NAME, "", rest, True
    if "trl/" in path and _SCRIPTS.fullmatch(stem) is None:
        return trl.NAME, stem, rest, True
    if (found := _SCRIPTS.fullmatch(stem)) is not None:
        return trl.NAME, found[1].replace("_modeling", ""), rest, True
    if any(arg.startswith("--model_name_or_path") for arg in rest):
        return trainer.NAME, "", rest, True
    return None


def _read(call: ProgramCall, argv: list[str]) -> None:
    """Read flags, `key=value` overrides and configuration files."""
    values, loose = _flags(argv)
    for key in ("config", "config_file", "c"):
        if isinstance(named := values.get(key), str):
            call.files.append(named)
            del values[key]
    for arg in loose:
        key, equals, value = arg.partition("=")
        if equals and re.fullmatch(r"[\w.]+", key):
            values[key] = value
        elif arg.endswith((".yaml", ".yml", ".json")):
            call.files.append(arg)
        elif call.program not in (torchtune.NAME, nemo.NAME):
            call.strays.append(arg)
    if call.program in (trl.NAME, trainer.NAME, llama_factory.NAME):
        values = dict(_without_no(key, value) for key, value in values.items())
    call.values = values


def _without_no(key: str, value: Any) -> tuple[str, Any]:
    """Return `--no_x` as `x` off: transformers' parser adds one for each switch that is on by default."""
    return (key.removeprefix("no_"), False) if value is True and key.startswith("no_") else (key, value)


def _flags(argv: list[str]) -> tuple[dict[str, Any], list[str]]:
    """Return the flags of a command line with their values, and the positional arguments."""
    values: dict[str, Any] = {}
    loose: list[str] = []
    name: str | None = None
    for arg in argv:
        if re.match(r"--?[A-Za-z_]", arg) and " " not in arg.partition("=")[0]:
            typed, equals, value = arg.lstrip("-").partition("=")
            head, dot, tail = typed.partition(".")
            name = head.replace("-", "_") + dot + tail
            values[name] = value if equals else True
            name = None if equals else name
        elif name is None:
            loose.append(arg)
        elif values[name] is True:
            values[name] = arg
        else:
            earlier = values[name]
            values[name] = [*earlier, arg] if isinstance(earlier, list) else [earlier, arg]
    return {key: _object(value) for key, value in values.items()}, loose


def _object(value: Any) -> Any:
    """Return a JSON object or list that was typed as a string."""
    if isinstance(value, str) and value.strip()[:1] in ("{", "["):
        try:
            return parse_json(value, "this value", SwiftError)
        except SwiftError:
            return value
    return value


def _launcher_file(call: ProgramCall, launcher: dict[str, Any]) -> None:
    """Guess the backend from the name of accelerate's configuration file."""
    named = str(call.values.pop("accelerate_config", launcher.get("config_file", ""))).lower()
    if "deepspeed" in launcher and isinstance(launcher["deepspeed"], str):
        call.values.setdefault("deepspeed", launcher["deepspeed"])
    elif re.search(r"zero_?[1-3]", named):
        call.values.setdefault("deepspeed", named)
    elif "fsdp" in named or launcher.get("use_fsdp"):
        call.values.setdefault("fsdp", "full_shard")
