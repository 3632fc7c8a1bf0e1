"""GaLore and APOLLO, which third-party recipes turn on with a switch, with different defaults."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from swift.config import names_in
from swift_migrate.imports.recipe import RecipeImport, is_off

Options = Mapping[str, tuple[str, Any]]
"""Third-party key → key here, and the third-party default."""

LLAMA_FACTORY: Mapping[str, Options] = {
    "galore": {
        "galore_rank": ("rank", 16),
        "galore_update_interval": ("update_proj_gap", 200),
        "galore_scale": ("scale", 2.0),
        "galore_target": ("targets", "all"),
    },
    "apollo": {
        "apollo_rank": ("rank", 16),
        "apollo_update_interval": ("update_proj_gap", 200),
        "apollo_scale": ("scale", 32.0),
        "apollo_scale_type": ("scale_type", "channel"),
        "apollo_target": ("targets", "all"),
    },
}
MS_SWIFT: Mapping[str, Options] = {
    "galore": {
        "galore_rank": ("rank", 128),
        "galore_update_proj_gap": ("update_proj_gap", 50),
        "galore_scale": ("scale", 1.0),
        "galore_target_modules": ("targets", "all"),
    }
}
_QUANTISED: Options = {
    "galore_proj_group_size": ("group_size", 256),
    "galore_cos_threshold": ("cos_threshold", 0.4),
    "galore_gamma_proj": ("gamma_proj", 2),
    "galore_queue_size": ("queue_size", 5),
}
_PLAIN: Options = {"galore_proj_type": ("proj_type", "std")}
_LOST = ("galore_layerwise", "galore_optim_per_parameter", "galore_with_embedding", "apollo_layerwise")
_EVERY = ("all", "all-linear")


def low_rank(run: RecipeImport, programs: Mapping[str, Options]) -> None:
    """Select such an optimizer where it is on, before the optimizer's name is read."""
    quantised = not is_off(run.take("galore_quantization") or "false")
    run.take("galore_proj_quant", "galore_proj_bits", "apollo_proj")
    for name, options in programs.items():
        switch = run.take(f"use_{name}")
        on = not is_off(switch)
        if on:
            run.take("optim", "optimizer")
            run.set("optim.name", "q_galore" if quantised and name == "galore" else name, f"use_{name}")
        special = {} if name != "galore" else (_QUANTISED if quantised else _PLAIN)
        if name == "galore":
            run.take(*{**_QUANTISED, **_PLAIN}.keys() - special.keys())
        for theirs, (ours, default) in {**options, **special}.items():
            _option(run, theirs, ours, default, on=on)
    for theirs in _LOST:
        value = run.take(theirs)
        if not is_off(value):
            run.lose(theirs, value, "updates follow the backward pass, and AdamW updates embeddings")


def _option(run: RecipeImport, theirs: str, ours: str, default: Any, *, on: bool) -> None:
    value = run.take(theirs)
    if not on:
        if value is not None:
            run.unneeded(theirs, value, "belongs to an optimizer that is off")
    elif ours == "targets":
        names = names_in(default if value is None else value)
        if not any(each.replace("_", "-") in _EVERY for each in names):
            run.set(f"optim.{ours}", names, theirs)
    elif value is None:
        run.default(f"optim.{ours}", default)
    else:
        run.set(f"optim.{ours}", value, theirs)
