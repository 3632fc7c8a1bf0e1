"""A third party's backend takes part in plans by optional hooks; one without them is left out, and trains as ever."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from commands import typed

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "packages" / "testing" / "src" / "swift_testing" / "templates" / "backend"


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    info = tmp_path / "site" / "swift_sharded_adam-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: swift-sharded-adam\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[swift.backends]\nsharded-adam = swift_sharded_adam:ShardedAdam\n")
    monkeypatch.syspath_prepend(str(info.parent))
    monkeypatch.syspath_prepend(str(SOURCE))
    yield
    for name in [each for each in sys.modules if each.startswith("swift_sharded_adam")]:
        del sys.modules[name]


PLAN = ["plan", "qwen3-0.6b", "--gpus", "4xA100", "--train_type", "full", "--json", "--top", "60"]


def test_third_party_plan_uses_declared_costs(installed: None, tmp_path: Path) -> None:
    found = json.loads(typed(PLAN, tmp_path).output)
    plans = {(plan["backend"], tuple(plan["layout"].items())): plan for plan in found["fits"]}
    own = plans["sharded-adam", (("dp_replicate", 4),)]["memory_bytes"]
    ddp = plans["torch", (("dp_replicate", 4),)]["memory_bytes"]
    assert own["weights"] == ddp["weights"] == own["gradients"]
    assert own["optimizer"] == pytest.approx(ddp["optimizer"] / 4, abs=1)


def test_backend_without_costs_is_omitted(installed: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for hook in ("memory", "traffic"):
        monkeypatch.delattr(f"swift_sharded_adam.ShardedAdam.swift_estimate_{hook}")
    found = json.loads(typed(PLAN, tmp_path).output)
    assert found["fits"]
    assert "sharded-adam" not in {plan["backend"] for plan in found["fits"]}
    assert "does not estimate memory" in found["refused"]["sharded-adam"]
