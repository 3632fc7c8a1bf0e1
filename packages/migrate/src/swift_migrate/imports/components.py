"""Recipes that name Python objects, with values that refer to each other: torchtune's and NeMo's."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from swift_migrate.imports.recipe import RecipeImport
from swift_migrate.imports.rules import Table

_REFERENCE = re.compile(r"\$\{([\w.]+)\}")
_ROUNDS = 10
_LONGEST = 4096


def flat(content: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested sections as dotted keys: `{'optimizer': {'lr': 1}}` as `{'optimizer.lr': 1}`."""
    found: dict[str, Any] = {}
    for key, value in content.items():
        if isinstance(value, Mapping) and value:
            found.update(flat(value, f"{prefix}{key}."))
        else:
            found[f"{prefix}{key}"] = value
    return found


def interpolated(values: dict[str, Any]) -> dict[str, Any]:
    """Return dotted keys with `${other.key}` replaced by that key's value; unknown names and cycles are kept."""
    for _ in range(_ROUNDS):
        resolved = {key: _resolved(value, values) for key, value in values.items()}
        if resolved == values:
            break
        values = resolved
    return values


def _resolved(value: Any, values: Mapping[str, Any]) -> Any:
    if not isinstance(value, str):
        return value
    whole = _REFERENCE.fullmatch(value)
    if whole is not None:
        return values.get(whole[1], value)
    text = _REFERENCE.sub(lambda found: str(values.get(found[1], found[0])), value)
    return value if len(text) > _LONGEST else text


def adam(run: RecipeImport) -> None:
    """Translate the pair of betas of an optimizer."""
    betas = run.take("optimizer.betas")
    if isinstance(betas, list) and len(betas) == 2:
        run.set("optim.beta1", betas[0], "optimizer.betas")
        run.set("optim.beta2", betas[1], "optimizer.betas")


def skip_own_objects(run: RecipeImport, table: Table, quiet: re.Pattern[str], meant: re.Pattern[str]) -> None:
    """Note keys without a rule that match `quiet` and not `meant`: they configure the program's own objects."""
    for name in [name for name in run.values if name not in table and quiet.match(name) and not meant.match(name)]:
        run.unneeded(name, run.values.pop(name), f"configures {run.program.split()[0]}'s own objects")


def last_name(path: Any) -> str:
    """Return the last part of the path of a Python object: 'AdamW' of 'torch.optim.AdamW'."""
    return str(path or "").rpartition(".")[2]
