"""Which rewards a run uses: found, made with their options and checked before any weights are loaded."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ValidationError

from swift.errors import ConfigError, DataError, PluginError, did_you_mean
from swift.plugins import failing, load_plugin, plugin_names
from swift_rl.reward_options import RewardOptions
from swift_rl.rewards.loading import installed
from swift_rl.rewards.process import ask_once

if TYPE_CHECKING:
    from swift.contracts import Reward


GROUP = "swift.rewards"


@dataclass(frozen=True)
class SelectedReward:
    """One reward of a run."""

    name: str
    """Its name in metrics and rounds."""
    described: Mapping[str, Any]
    """How a process finds it: see `swift_rl.rewards.loading`."""
    weight: float = 1.0
    wants: tuple[str, ...] = ()
    isolation: str = "process"
    batched: bool = False
    reward: Reward | None = None
    """The reward itself, where it is computed in this process."""
    flags: tuple[str, ...] = field(default=(), compare=False)
    """What selects it on a command line."""
    origin: str = ""
    """Distribution and version, where it is installed."""

    @property
    def title(self) -> str:
        """The reward in a message."""
        return f"The reward {self.name!r}{self.origin and f' ({self.origin})'}"


def select_rewards(names: Iterable[str], options: RewardOptions) -> list[SelectedReward]:
    """Return the rewards of these names, and the models that `reward_model` names, with their weights.

    Python files of the user are described in a separate process.
    """
    typed = [*names]
    in_files = {name: file for name in typed if (file := _in_a_file(name, options)) is not None}
    registered, found = _describe_files(_files(options), [*in_files.values()])
    facts = dict(zip(in_files, found, strict=True))
    selected = [
        _of_a_file(name, in_files[name], facts[name]) if facts.get(name) else _installed(name, options, registered)
        for name in typed
    ]
    selected += [_model(number, address, options) for number, address in enumerate(options.reward_model, 1)]
    _check_names(selected, options)
    weights = options.reward_weights or (1.0,) * len(selected)
    return [replace(reward, weight=weight) for reward, weight in zip(selected, weights, strict=True)]


def _describe_files(
    files: Sequence[str], rewards: Sequence[Mapping[str, Any]]
) -> tuple[Sequence[str], Sequence[Mapping[str, Any]]]:
    """Run plugin files, and the files of functions; raise where they fail.

    Return the names in `orms`, and `wants` and `batched` of each reward, or None for one that is not registered.
    """
    if not files and not rewards:
        return (), ()
    reply = ask_once({"do": "describe", "files": files, "rewards": rewards})
    if "failure" in reply:
        named = " or ".join(dict.fromkeys([*files, *(each["file"] for each in rewards if each["kind"] == "function")]))
        output = "\n".join(filter(None, (reply["output"], reply.get("traceback"))))
        raise ConfigError(f"{named} failed to load: {reply['failure']}\n{output}".rstrip())
    return reply["names"], reply["rewards"]


def check_columns(selected: Iterable[SelectedReward], columns: Collection[str]) -> None:
    """Raise if a reward needs a column that the data set does not have."""
    for reward in selected:
        for column in reward.wants:
            if column not in columns:
                raise DataError(
                    f"The reward {reward.name!r} needs the column {column!r}, which the data set does not have."
                    f"{did_you_mean(column, columns)}",
                    hint=f'Its columns: {", ".join(columns) or "none"}. To read another: --columns \'{{"OTHER": '
                    f'"{column}"}}\'',
                )


def _files(options: RewardOptions) -> list[str]:
    return [_existing(path, "external_plugins") for path in options.external_plugins]


def _existing(path: Path, flag: str) -> str:
    if not path.is_file():
        raise ConfigError(f"--{flag} {path}: the file does not exist.", hint="Pass a Python file.")
    return str(path.resolve())


def _in_a_file(name: str, options: RewardOptions) -> dict[str, Any] | None:
    """Return the description of a reward that stands in a file, or may be registered by one."""
    file, _, function = name.rpartition(":")
    if file.endswith(".py") and function.isidentifier():
        return {"kind": "function", "file": _existing(Path(file), "reward_funcs"), "name": function}
    if name.endswith(".py"):
        raise ConfigError(f"--reward_funcs {name} has no function name.", hint=f"Pass --reward_funcs {name}:FUNCTION.")
    if not options.external_plugins:
        return None
    settings = options.model_dump(mode="json")
    return {"kind": "registered", "files": _files(options), "name": name, "settings": settings}


def _of_a_file(typed: str, described: Mapping[str, Any], facts: Mapping[str, Any]) -> SelectedReward:
    flags = ["--reward_funcs", typed]
    if described["kind"] == "registered":
        flags += ["--external_plugins", *described["files"]]
    return SelectedReward(
        described["name"],
        described,
        wants=tuple(facts["wants"]),
        batched=facts["batched"],
        flags=tuple(flags),
    )


def _installed(name: str, options: RewardOptions, registered: Sequence[str]) -> SelectedReward:
    try:
        loaded = load_plugin(GROUP, name)
    except PluginError as error:
        if name not in plugin_names(GROUP):
            files = f"Registered by external_plugins: {', '.join(registered)}. " if registered else ""
            error.hint = f"{error.hint}. {files}For your own function pass --reward_funcs FILE.py:FUNCTION"
        raise
    with failing(loaded.entry, "its options_model"):
        values = _values(name, loaded.config_model, options)
    with failing(loaded.entry, "its constructor"):
        reward = installed(loaded.object, values)
    flags = ["--reward_funcs", name]
    if values:
        flags += ["--reward_options", json.dumps({name: values})]
    isolation = getattr(reward, "isolation", "process")
    return SelectedReward(
        name,
        {"kind": "installed", "target": loaded.entry.target, "options": values},
        wants=tuple(getattr(reward, "wants", ())),
        isolation=isolation,
        batched=getattr(reward, "batched", False),
        reward=reward if isolation == "inline" else None,
        flags=tuple(flags),
        origin=f"{loaded.entry.distribution} {loaded.entry.version}",
    )


def _values(name: str, model: type[BaseModel] | None, options: RewardOptions) -> dict[str, Any]:
    """Return the options of an installed reward that differ from its defaults, as JSON; refuse wrong ones."""
    given = options.reward_options.get(name, {})
    if model is None:
        if given:
            raise ConfigError(f"reward_options.{name}: the reward {name!r} has no options.", hint="Leave it out.")
        return {}
    fields = model.model_fields
    for key in given:
        if key not in fields:
            raise ConfigError(
                f"reward_options.{name}.{key}: unknown option.{did_you_mean(key, fields)}",
                hint=f"Options: {', '.join(fields)}",
            )
    of_the_run = {field: getattr(options, field) for field in fields if hasattr(options, field)}
    try:
        return model.model_validate({**of_the_run, **given}).model_dump(mode="json", exclude_defaults=True)
    except ValidationError as problem:
        first = problem.errors()[0]
        where = ".".join(["reward_options", name, *map(str, first["loc"])])
        raise ConfigError(f"{where}: {first['msg']}, not {first['input']!r}.") from None


def _model(number: int, address: str, options: RewardOptions) -> SelectedReward:
    from swift_rl.rewards.models import open_reward_model

    settings = {"step_reward": options.step_reward, "step_separator": options.step_separator}
    of_steps = {name: value for name, value in settings.items() if value is not None}
    return SelectedReward(
        "reward_model" if number == 1 else f"reward_model_{number}",
        {"kind": "model", "model": address, **of_steps},
        isolation="inline",
        batched=True,
        reward=open_reward_model(address, options),
        flags=("--reward_model", address, *(text for name, value in of_steps.items() for text in (f"--{name}", value))),
    )


def _check_names(selected: Sequence[SelectedReward], options: RewardOptions) -> None:
    names = [reward.name for reward in selected]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"Two rewards have the name {name!r}.", hint="Pass each once, or rename a function.")
    for name in options.reward_options:
        if name not in names:
            raise ConfigError(
                f"reward_options.{name}: no reward of this name is selected.{did_you_mean(name, names)}",
                hint=f"Selected: {', '.join(names) or 'none'}",
            )
