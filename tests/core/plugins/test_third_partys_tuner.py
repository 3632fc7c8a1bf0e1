"""A tuner of a third party, found through its entry point: what it trains, on one process and in shards."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import torch
from processes import on_processes, succeeded
from safetensors.torch import load_file
from small_distributions import Distribution, install
from tiny_runs import Trained, conversations, run_training, write_model

from swift.errors import PluginError, UnsupportedLayout
from swift.parsing import config_from_mapping

SOURCE = """
from swift import Section
from swift.contracts import Trains


class Options(Section):
    norms: bool = True


class BitFit:
    options_model = Options
    adapter = False
    learning_rate = 1e-2

    def needs(self, options):
        return frozenset({Trains.WEIGHTS})

    def attach(self, model, options, context):
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(name.endswith("bias") or (options.norms and parameter.ndim < 2))
        return model

    def initial(self, name, shape, options, seed):
        return None

    def lr_scale(self, name, options):
        return 1.0


class Idle(BitFit):
    def attach(self, model, options, context):
        return model.requires_grad_(False)
"""
ROWS = conversations(8)
SETTINGS = {
    "tuner.kind": "bitfit", "optim.lr": None, "train.global_batch": 4, "train.micro_batch": 2, "train.max_steps": 4,
    "checkpoint.save_steps": 2, "checkpoint.save_last": True,
}  # fmt: skip


@pytest.fixture(scope="module")
def distribution(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that the distribution is installed in."""
    tuners = {"swift.tuners": {"bitfit": "BitFit", "idle": "Idle"}}
    site = tmp_path_factory.mktemp("site")
    install([Distribution("acme-tuners", SOURCE, tuners)], site, tmp_path_factory.mktemp("wheels"))
    return site


@pytest.fixture
def site(distribution: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for a test of the distribution, which can be imported."""
    monkeypatch.syspath_prepend(str(distribution))
    return tmp_path


def _trained(model: Path, output: Path, name: str, **changes: object) -> Trained:
    return run_training(model, output, ROWS, {**SETTINGS, "logging.run_name": name, **changes})


@pytest.mark.full
def test_shards_and_resume_train_alike(site: Path) -> None:
    model = write_model(site / "model", num_hidden_layers=1)
    alone = succeeded(on_processes(1, partial(_trained, model, site / "out", "torch"))[0])[0]
    sharded = {"backend.name": "fsdp", "parallel.dp_shard": 2}
    (both, _) = succeeded(on_processes(2, partial(_trained, model, site / "out", "fsdp", **sharded))[0])
    assert both.losses == pytest.approx(alone.losses, rel=1e-5)
    for run in (alone, both):
        start, end = (
            load_file(model / "model.safetensors"),
            load_file(run.folder / "checkpoint-4" / "model.safetensors"),
        )
        moved = {name for name in start if not torch.equal(start[name].float(), end[name].float())}
        assert moved == {name for name in start if name.endswith("norm.weight")}
    resume = {"checkpoint.resume": str(both.folder / "checkpoint-2")}
    on = succeeded(on_processes(1, partial(_trained, model, site / "out", "on", **resume))[0])[0]
    assert on.losses == pytest.approx(alone.losses[2:], rel=1e-5)


def test_tuner_that_trains_nothing_is_named(site: Path) -> None:
    model = write_model(site / "model", num_hidden_layers=1)
    with pytest.raises(PluginError, match=r"tuner 'idle' \(acme-tuners 1\.0\).*all frozen"):
        _trained(model, site / "out", "idle", **{"tuner.kind": "idle"})


def test_backend_without_tuner_refuses_before_loading(site: Path) -> None:
    """A backend that does not serve it refuses before anything is loaded."""
    with pytest.raises(UnsupportedLayout, match=r"the tuner 'bitfit' \(it needs weights\)") as caught:
        config_from_mapping({"backend.name": "megatron", "tuner.kind": "bitfit"})
    assert "--backend" in str(caught.value)


def test_its_options_are_its_own(site: Path) -> None:
    parsed = config_from_mapping({"tuner.kind": "bitfit", "tuner.norms": "false", "tuner.rank": 4})
    assert parsed.config.tuner.model_extra == {"norms": False}
    assert parsed.config.learning_rate == 1e-2
    assert any("has no effect" in note for note in parsed.notes)
