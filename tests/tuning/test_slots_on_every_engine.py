"""Slots of optimizers on every engine: low-bit moments, which go on as AdamW and in 8 bits again."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from processes import on_processes, succeeded
from tiny_runs import Trained, conversations, run_training, write_model
from torch.optim import optimizer

from swift.checkpoint.load import open_checkpoint
from swift.contracts import ScalesGradients
from swift.toolkit import generator_of

ROWS = conversations(8)
WIDE = {"hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 8, "head_dim": 32}
"""Rows of matrices are whole blocks of 256."""
FSDP: dict[str, Any] = {"backend.name": "fsdp"}
ENGINES: dict[str, dict[str, Any]] = {
    "zero 1": {"backend.name": "deepspeed", "backend.config": "zero1"},
    "zero 3": {"backend.name": "deepspeed", "backend.config": "zero3"},
    "autotp": {"backend.name": "deepspeed", "backend.config": "zero1", "parallel.tp": 2},
    "megatron, tp": {"backend.name": "megatron", "parallel.tp": 2},
    "megatron, pp": {"backend.name": "megatron", "parallel.pp": 2},
    "megatron, distributed optimizer": {"backend.name": "megatron"},
}
FIRST, THEN, LAST = 5, 10, 13
"""Steps after which the 8 bits, AdamW, and the 8 bits again have saved."""


def trained(model: Path, out: Path, optim: str, plan: dict[str, Any], start: Path | None, steps: int) -> Trained:
    settings = {
        **{"optim.name": optim, "optim.weight_decay": 0.5, "optim.lr": 3e-4, "optim.eps": 1e-6},
        **{"train.max_steps": steps, "train.global_batch": 8, "train.micro_batch": 4},
        # The rate is that of the step alone, wherever a run ends.
        **{"optim.schedule": "constant", "checkpoint.save_last": True, "checkpoint.save_steps": FIRST},
    }
    resume = {} if start is None else {"checkpoint.resume": str(start)}
    return run_training(model, out, ROWS, {**settings, **plan, **resume})


def stored(folder: Path) -> dict[str, torch.Tensor]:
    reader = open_checkpoint(folder)
    return {name: reader.read(name) for name in reader.names()}


def assert_near(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor], within: float) -> None:
    """Compare tensors by the norm of what they differ by, as part of their own."""
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert (found[name] - value).norm() <= within * value.norm(), name


@pytest.mark.full
def test_eight_bits_go_on_as_adamw_on_every_engine_and_back(tmp_path: Path) -> None:
    model = write_model(tmp_path / "tiny", **WIDE)
    (start,) = on_processes(2, partial(trained, model, tmp_path / "few", "adamw_8bit", FSDP, None, THEN))
    few = succeeded(start)[0]
    first = few.folder / f"checkpoint-{FIRST}"
    plain = trained(model, tmp_path / "plain", "adamw", {}, first, THEN)
    there = on_processes(
        2, *[partial(trained, model, tmp_path / name, "adamw", plan, first, THEN) for name, plan in ENGINES.items()]
    )
    runs = {name: succeeded(answers)[0] for name, answers in zip(ENGINES, there, strict=True)}
    # What all engines have stored is compared; what comes of it, of two.
    ends = {name: run.folder / f"checkpoint-{THEN}" for name, run in (("plain", plain), ("zero 3", runs["zero 3"]))}
    back = on_processes(
        2,
        *[
            partial(trained, model, tmp_path / "back" / name, "adamw_8bit", FSDP, end, LAST)
            for name, end in ends.items()
        ],
    )
    expected, other = (succeeded(answers)[0] for answers in back)
    assert plain.losses == pytest.approx(few.losses[FIRST:], rel=1e-3)
    states, again = (stored(run.folder / f"checkpoint-{at}") for run, at in ((plain, THEN), (expected, LAST)))
    assert any(name.endswith("exp_avg_sq") for name in states)
    for name, run in runs.items():
        assert run.losses == pytest.approx(plain.losses, rel=1e-4), name
        assert run.grad_norms == pytest.approx(plain.grad_norms, rel=1e-4), name
        assert_near(stored(run.folder / f"checkpoint-{THEN}"), states, 1e-4)
    assert other.losses == pytest.approx(expected.losses, rel=1e-4)
    # A moment between two of the 256 codes may be rounded to either, on some processors.
    assert_near(stored(other.folder / f"checkpoint-{LAST}"), again, 4e-3)


LAYOUTS: dict[str, tuple[int, dict[str, Any], tuple[str, ...]]] = {
    "two processes": (2, {}, ("adamw_8bit",)),
    "fsdp": (2, FSDP, ("adamw_8bit", "adamw_4bit")),
    "fsdp tp": (2, {**FSDP, "parallel.tp": 2}, ("adamw_4bit",)),  # which cuts rows inside of blocks of 256
    "fsdp with replicas": (4, {**FSDP, "parallel.dp_replicate": 2}, ("adamw_4bit",)),
}


def with_gradients_of_its_own(updating: torch.optim.Optimizer, *_: Any) -> None:
    """Give every weight a gradient that is drawn from its name and the step, the same in every layout."""
    for group in updating.param_groups:
        for parameter, placement in zip(group["params"], group["placements"], strict=True):
            step = int(updating.state[parameter]["step"]) if updating.state.get(parameter) else 0
            whole = torch.randn(placement.shape, generator=generator_of(step, placement.name)).pow_(3)
            parameter.grad = whole[placement.region].contiguous()
    if isinstance(updating, ScalesGradients):
        updating.gradient_factor = 1.0  # which was for those of the run


def on_gradients_of_its_own(model: Path, out: Path, optim: str, plan: dict[str, Any]) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(optimizer._global_optimizer_pre_hooks, -1, with_gradients_of_its_own)
        return trained(model, out, optim, plan, None, FIRST).folder / f"checkpoint-{FIRST}"


@pytest.mark.full
def test_low_bit_moments_match_in_every_layout(tmp_path: Path) -> None:
    """Given the same gradients, low-bit moments are the same in every layout."""
    model = write_model(tmp_path / "tiny", **WIDE)
    alone = {
        name: stored(on_gradients_of_its_own(model, tmp_path / f"alone/{name}", name, {}))
        for name in ("adamw_8bit", "adamw_4bit")
    }
    for layout, (processes, plan, names) in LAYOUTS.items():
        jobs = [partial(on_gradients_of_its_own, model, tmp_path / layout / name, name, plan) for name in names]
        for name, answers in zip(names, on_processes(processes, *jobs), strict=True):
            found = stored(succeeded(answers)[0])
            assert found.keys() == alone[name].keys()
            for key, expected in alone[name].items():
                assert (found[key] - expected).norm() <= 1e-6 * expected.norm(), f"{name}, {layout}: {key}"
                if ".exp_avg" in key:
                    assert torch.equal(found[key], expected), f"{name}, {layout}: {key}"
