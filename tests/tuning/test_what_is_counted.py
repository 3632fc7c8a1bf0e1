"""What `swift plan` asks of optimizers and tuners: bytes and values by their options, as they are in memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftConfig, inject_adapter_in_model

from swift.contracts import Matrix, Placement, RequestedRun, World
from swift.models.quiet import without_bitsandbytes
from swift.parsing import config_from_mapping
from swift.planning import PlannedBackend
from swift.plugins.load import load_optimizer, load_tuner
from swift.terminal import say_nothing

ROWS, COLUMNS = 96, 64
TUNERS: dict[str, dict[str, Any]] = {
    "miss": {"rank": 8},
    "oft": {"block_size": 8},
    "boft": {"block_size": 8},
    "hira": {"rank": 4},
    "loha": {"rank": 4},
    "gralora": {"rank": 4},
    "vera": {"rank": 8},
    "ia3": {"targets": ("0",)},
}


def planned(changes: dict[str, Any]) -> PlannedBackend:
    parsed = config_from_mapping({"model.path": "m", "backend.device": "cpu", **changes})
    return PlannedBackend.of_run(
        RequestedRun(parsed.config, parsed.backend_options, Path(), World(size=1), say_nothing)
    )


@pytest.mark.parametrize("kind", TUNERS)
def test_values_of_a_tuner_are_those_that_peft_trains(kind: str) -> None:
    tuner = load_tuner(kind).object
    options = tuner.options_model(**TUNERS[kind])
    model = torch.nn.Sequential(torch.nn.Linear(COLUMNS, ROWS, bias=False))
    with without_bitsandbytes():
        config = PeftConfig.from_peft_type(peft_type=tuner.kind, target_modules=["0"], **tuner.settings(options))
        inject_adapter_in_model(config, model)
    trained = sum(each.numel() for name, each in model.named_parameters() if tuner.prefix in name)
    settings = {"tuner.kind": kind, **{f"tuner.{key}": value for key, value in TUNERS[kind].items()}}
    assert planned(settings).trained_values(ROWS, COLUMNS) == trained


@pytest.mark.parametrize(
    ("name", "options"),
    [("galore", {}), ("galore", {"proj_type": "reverse_std"}), ("galore", {"proj_type": "left"}), ("apollo", {})],
)
def test_optimizer_bytes_are_of_requested_rank(name: str, options: dict[str, Any]) -> None:
    """Bytes of an optimizer are those of the requested rank."""
    plugin = load_optimizer(name).object
    asked = plugin.options_model(rank=8, **options)
    weight = torch.nn.Parameter(torch.randn(ROWS, COLUMNS))
    whole = (slice(0, ROWS), slice(0, COLUMNS))
    placement = Placement("up", (ROWS, COLUMNS), whole, (Matrix("up", 0, (ROWS, COLUMNS)),))
    group = {"params": [weight], "placements": [placement], "lr": 0.1, "weight_decay": 0.0, "lr_scale": 1.0}
    optimizer = plugin.make([group], asked, torch.device("cpu"))
    weight.grad = torch.randn(ROWS, COLUMNS)
    optimizer.step()
    kept = [each for each in optimizer._kept["up"].values() if each.ndim == 2]
    kept += [drawn for _, drawn in getattr(optimizer._rule, "_projections", {}).values()]
    settings = {"tuner.kind": "full", "optim.name": name, "optim.rank": 8}
    found = planned({**settings, **{f"optim.{key}": value for key, value in options.items()}})
    size = sum(each.numel() * each.element_size() for each in kept)
    assert found.slot_bytes((ROWS, COLUMNS)) * ROWS * COLUMNS == pytest.approx(size)
