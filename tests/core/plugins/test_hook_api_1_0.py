"""A backend that was written for hook API 1.0 trains unchanged, and is asked for nothing that came later."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from processes import on_processes, succeeded
from tiny_runs import BASE, Trained, conversations, write_model

from swift.config.parse import config_from_mapping
from swift.errors import UnsupportedPlan
from swift.plugins.load import load_backend
from swift.testing import third_party
from swift.train.loop import train

SOURCE = Path(__file__).parents[2] / "packaging" / "backend_of_hook_api_1_0" / "src"
ROWS = conversations(8)


@pytest.fixture
def of_1_0(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The third party's example as it was at hook API 1.0, installed for one test."""
    info = tmp_path / "site" / "swift_zero_redundancy-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: swift-zero-redundancy\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[swift.backends]\nzero-redundancy = swift_zero_redundancy.plugin:ZeroRedundancy\n"
    )
    monkeypatch.syspath_prepend(str(info.parent))
    monkeypatch.syspath_prepend(str(SOURCE))
    # It takes the number from core, as its authors found it there.
    monkeypatch.setattr("swift_zero_redundancy.plugin.ZeroRedundancy.HOOK_API", (1, 0))
    yield "zero-redundancy"
    for name in [each for each in sys.modules if each.partition(".")[0] == "swift_zero_redundancy"]:
        del sys.modules[name]


def _trained(backend: str, tuner: str, model: Path, output: Path) -> Trained:
    name = f"{backend}-{tuner}"
    changes: dict[str, Any] = {"backend.name": backend, "tuner.kind": tuner, "logging.run_name": name}
    changes |= {"train.global_batch": 4, "train.micro_batch": 2, "train.max_steps": 3, "tuner.dropout": 0.0}
    changes |= {"model.path": str(model), "logging.output": str(output), "checkpoint.save_last": True}
    settings = {key: value for key, value in BASE.items() if key != "backend.device"}  # which the old one has not
    return Trained(train(config_from_mapping({**settings, **changes}), rows=ROWS), output / model.name / name)


@pytest.mark.full
def test_it_trains_as_torch_does_with_weights_and_with_adapters(of_1_0: str, tmp_path: Path) -> None:
    assert load_backend(of_1_0).hook_api == (1, 0)
    model = write_model(tmp_path / "model", num_hidden_layers=1)
    for tuner in ("full", "lora"):
        (other,) = {
            tuple(each.losses)
            for each in succeeded(on_processes(2, partial(_trained, of_1_0, tuner, model, tmp_path))[0])
        }
        plain = succeeded(on_processes(1, partial(_trained, "torch", tuner, model, tmp_path))[0])[0]
        assert list(other) == pytest.approx(plain.losses, rel=1e-5)


def test_a_third_partys_optimizer_is_refused_before_anything_is_loaded(of_1_0: str) -> None:
    third_party.install()
    with pytest.raises(UnsupportedPlan, match="the optimizer 'kit-momentum'") as caught:
        config_from_mapping({"backend.name": of_1_0, "optim.name": third_party.NAME})
    assert "--optim.name adamw" in str(caught.value)
