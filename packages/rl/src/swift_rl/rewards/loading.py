"""From the description of a reward, which is JSON, to the reward itself, in whichever process computes it."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from swift_rl.rewards.functions import FunctionReward, made_orm


def load_reward(described: Mapping[str, Any]) -> Any:
    """Return the `swift.contracts.Reward` of a description.

    `kind` is 'installed' (with `target`, `module:attribute`, and `options`), 'function' (`file` and `name`) or
    'registered' (`files`, `name`, and the run's options as `settings`).
    """
    if described["kind"] == "installed":
        return installed(attribute_of(described["target"]), described["options"])
    if described["kind"] == "function":
        module = run_file(described["file"])
        function = getattr(module, described["name"], None)
        if not callable(function):
            raise LookupError(f"{described['file']} has no function {described['name']!r}")
        return FunctionReward(function)
    return FunctionReward(made_orm(registered(described["files"])[described["name"]], described["settings"]))


def installed(target: Any, options: Mapping[str, Any]) -> Any:
    """Return an installed reward, made with its options."""
    if not isinstance(target, type):
        return FunctionReward(target)
    model = getattr(target, "options_model", None)
    return target() if model is None else target(model.model_validate(options))


def registered(files: list[str]) -> dict[str, Any]:
    """Return what plugin files of ms-swift's kind register, by name."""
    from swift_rl.environments import ms_swift as turns
    from swift_rl.environments import ms_swift_own as own
    from swift_rl.rewards.ms_swift import ORMS, provide

    provide()
    turns.provide()
    own.provide()
    for file in files:
        run_file(file)
    return ORMS


@cache
def run_file(file: str) -> ModuleType:
    """Run a Python file once and return its module. Files next to it can be imported by it."""
    path = Path(file).resolve()
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))
    name = f"reward_file_{len(sys.modules)}_{path.stem}"  # none that any other module has
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{file} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    # Its source as it is now: bytecode is taken for current where a change within a second left the size as it was.
    exec(compile(path.read_bytes(), str(path), "exec", dont_inherit=True), vars(module))
    return module


def attribute_of(target: str) -> Any:
    """Return what an entry point names, imported."""
    module, _, attribute = target.partition(":")
    found: Any = importlib.import_module(module.strip())
    for part in filter(None, attribute.split("[")[0].strip().split(".")):
        found = getattr(found, part)
    return found
