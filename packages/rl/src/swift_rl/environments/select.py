"""Which environment a run uses: found and checked before any weights are loaded."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

from swift.errors import ConfigError, DataError, PluginError, did_you_mean
from swift.plugins import load_plugin, plugin_names
from swift_rl.options import OnlineOptions
from swift_rl.rewards.process import ask_once
from swift_rl.rewards.verdicts import with_traceback

GROUP = "swift.environments"
OF_MS_SWIFT = ("gym_scheduler", "math_env", "math_tip_trick", "openenv_scheduler")
"""Schedulers and gym environments that ms-swift brings with it (`swift_rl.environments.ms_swift_own`)."""
_OTHERS_OF_MS_SWIFT = {
    "base_scheduler": "leave it out: without an environment the model completes each prompt once",
    "math_tip_trick_multi_turn": "pass --gym_env math_env, which does the same after a wrong completion",
    "thinking_scheduler": "pass --template_drift keep, and your own environment or scheduler instead",
    "thinking_tips_scheduler": "pass --multi_turn_scheduler math_tip_trick --template_drift keep, which doubts a wrong "
    "completion too",
}
"""Names of ms-swift, or of earlier versions of it, that are refused, with what to do instead."""


def select_environment(options: OnlineOptions, columns: Collection[str], tokenizer: Path) -> dict[str, Any] | None:
    """Return how a process finds the environment that the options name; None where they name none.

    See `swift_rl.environments.loading`.
    """
    if options.environment is None:
        return None
    described = _described(options.environment, options, tokenizer)
    reported = ask_once({"do": "describe_environment", "environment": described})  # user code may hang or exit
    title = who(options.environment) or f"The environment {options.environment!r}"
    if "failure" in reported:
        wrong = PluginError if described["kind"] == "installed" else ConfigError
        failure = wrong(f"{title} failed in its constructor: {reported['failure'].rstrip('.')}.")
        raise with_traceback(failure, reported.get("traceback", ""))
    if reported["fault"]:
        raise ConfigError(f"{title} {reported['fault']}.", hint="See swift.contracts.Environment")
    for column in reported["wants"]:
        if column not in columns:
            raise DataError(
                f"{title} needs the column {column!r}, which the data set does not have."
                f"{did_you_mean(column, columns)}",
                hint=f"Its columns: {', '.join(columns) or 'none'}.",
            )
    return described


def who(environment: str) -> str | None:
    """Return the title of an installed environment, with its distribution; None for one in a file."""
    return f"The {load_plugin(GROUP, environment).entry}" if environment in plugin_names(GROUP) else None


def _described(name: str, options: OnlineOptions, tokenizer: Path) -> dict[str, Any]:
    file, _, found = name.rpartition(":")
    if name.endswith(".py"):
        raise ConfigError(f"--environment {name} has no class name.", hint=f"Pass --environment {name}:CLASS")
    if file.endswith(".py") and found.isidentifier():
        if not Path(file).is_file():
            raise ConfigError(f"--environment {name}: the file does not exist.", hint="Pass a Python file.")
        return {
            "kind": "file",
            "file": str(Path(file).resolve()),
            "name": found,
            "options": options.environment_options,
        }
    if not options.external_plugins and name in _OTHERS_OF_MS_SWIFT:
        raise ConfigError(
            f"The scheduler {name!r} of ms-swift is not available: an episode is one sample with all its turns.",
            hint=_OTHERS_OF_MS_SWIFT[name][0].upper() + _OTHERS_OF_MS_SWIFT[name][1:],
        )
    if name in plugin_names(GROUP) or not (options.external_plugins or name in OF_MS_SWIFT):
        return _installed(name, options)
    # Its process has a working directory of its own.
    settings = {"max_turns": options.max_turns, "tokenizer": str(tokenizer.resolve())}
    files = [str(path.resolve()) for path in options.external_plugins]
    if options.environment_options:
        raise ConfigError(
            f"environment_options: schedulers and environments of ms-swift such as {name!r} have no options.",
            hint="A gym environment reads the env_config column of its row.",
        )
    return {"kind": "registered", "files": files, "name": name, "settings": settings}


def _installed(name: str, options: OnlineOptions) -> dict[str, Any]:
    try:
        loaded = load_plugin(GROUP, name)
    except PluginError as error:
        if name not in plugin_names(GROUP):
            error.hint = f"{error.hint}. For your own environment pass --environment FILE.py:CLASS"
        raise
    if loaded.config_model is None and options.environment_options:
        raise ConfigError(f"environment_options: the environment {name!r} has no options.", hint="Leave it out.")
    return {"kind": "installed", "target": loaded.entry.target, "options": options.environment_options}
