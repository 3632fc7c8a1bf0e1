"""Models that can be planned by name, without their files: the sizes that their config.json says."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from swift.errors import ModelError, did_you_mean
from swift.planning import model_config
from swift.untrusted import parse_json


@cache
def known_models() -> Mapping[str, Mapping[str, Any]]:
    """Return the models that come with the planner, by name."""
    text = (resources.files("swift_plan") / "assets" / "models.json").read_text(encoding="utf-8")
    models: Mapping[str, Mapping[str, Any]] = parse_json(text, "models.json", ModelError)
    return models


def config_of(typed: str) -> Mapping[str, Any]:
    """Return config.json of what was typed: a folder, the file, a model on this machine, or a known name."""
    models = known_models()
    name = typed.lower().rpartition("/")[2]
    if not Path(typed).exists() and name in models:
        return models[name]
    try:
        return model_config(typed)
    except ModelError as error:
        known = f"Known by name: {', '.join(models)}.{did_you_mean(name, models)}"
        raise ModelError(error.message, hint=f"{error.hint or ''}\n{known}".strip()) from None
