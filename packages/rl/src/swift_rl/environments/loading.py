"""From the description of an environment, which is JSON, to an episode of it, in the process that runs it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from swift_rl.rewards.loading import attribute_of, registered, run_file


def episode_class(described: Mapping[str, Any]) -> Any:
    """Return the class that a description names.

    `kind` is 'installed' (with `target`), 'file' (`file` and `name`) or 'registered' (`files` and `name`).
    """
    if described["kind"] == "installed":
        return attribute_of(described["target"])
    if described["kind"] == "file":
        found = getattr(run_file(described["file"]), described["name"], None)
        if found is None:
            raise LookupError(f"{described['file']} has no class {described['name']!r}")
        return found
    from swift_rl.environments.ms_swift import ENVS, SCHEDULERS

    registered(described["files"])
    name = described["name"]
    if name not in SCHEDULERS and name not in ENVS:
        there = ", ".join([*SCHEDULERS, *ENVS]) or "none"
        raise LookupError(f"no environment {name!r} is registered; there are {there}")
    return SCHEDULERS.get(name, ENVS.get(name))


def new_episode(described: Mapping[str, Any]) -> Any:
    """Return one episode, which is a `swift.contracts.Environment`."""
    found = episode_class(described)
    if described["kind"] == "registered":
        from swift_rl.environments.ms_swift import SCHEDULERS, GymEpisode, ScheduledEpisode

        name = described["name"]
        return ScheduledEpisode(found, described["settings"]) if name in SCHEDULERS else GymEpisode(name)
    model = getattr(found, "options_model", None)
    return found() if model is None else found(model.model_validate(described["options"]))


def faults(described: Mapping[str, Any]) -> str | None:
    """Return why a class is no environment; None where it is one. Raises what its file or its options raise."""
    found = episode_class(described)
    if described["kind"] == "registered":
        from swift_rl.environments.ms_swift import SCHEDULERS, TurnScheduler
        from swift_rl.environments.select import OF_MS_SWIFT

        if described["name"] in SCHEDULERS and getattr(found, "run", None) is not TurnScheduler.run:
            return "overrides run, which drives an engine of its own: define step and check_finished instead"
        if described["name"] in OF_MS_SWIFT:
            new_episode(described)
        return None
    if missing := [each for each in ("reset", "step") if not callable(getattr(found, each, None))]:
        return f"lacks {' and '.join(missing)}"
    model = getattr(found, "options_model", None)
    if model is not None and not callable(getattr(model, "model_validate", None)):
        return "has an options_model that is not a pydantic model"
    new_episode(described)
    return None
