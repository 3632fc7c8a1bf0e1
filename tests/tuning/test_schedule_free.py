"""Schedule-free AdamW: the formulas of its paper, and averages wherever somebody looks at the weights."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from plain_torch import batches_of, conversation_tokens, load_model, response_logp
from processes import on_processes, succeeded
from safetensors.torch import load_file
from tiny_runs import Trained, conversations, run_training, write_model

from swift.errors import SwiftError
from swift.toolkit import gradient_view
from swift_tuning.optimizers import ScheduleFree
from swift_tuning.options import ScheduleFreeOptions

STEPS, SAVED_AT, LR, DECAY, BETA = 8, 5, 3e-3, 0.1, 0.9
ROWS = conversations(16)
SETTINGS: dict[str, Any] = {
    "optim.name": "schedule_free",
    "optim.lr": LR,
    "optim.schedule": "constant",
    "optim.warmup_steps": 3,
    "optim.eps": 1e-6,
    "optim.weight_decay": DECAY,
    "optim.max_grad_norm": 0,
    "train.max_steps": STEPS,
    "train.global_batch": 8,
    "train.eval_steps": SAVED_AT,
    "checkpoint.save_steps": SAVED_AT,
    "checkpoint.save_last": True,
}


def trained(model: Path, out: Path, **changes: Any) -> Trained:
    return run_training(model, out, ROWS, {**SETTINGS, **changes}, validation=ROWS[:8])


def evaluated(run: Trained, step: int = SAVED_AT) -> float:
    return float(run.lines[step]["eval_loss"])


def loss_of(model: torch.nn.Module, batch: Any) -> torch.Tensor:
    weight = sum(len(answer) for _, answer in batch)
    return -torch.stack([response_logp(model, tokens) for tokens in batch]).sum() / weight


def by_the_paper(folder: Path) -> tuple[list[float], float, dict[str, torch.Tensor]]:
    """Three sequences x, y and z, written down one after the other: losses, evaluation at SAVED_AT, weights there."""
    model = load_model(folder).eval()
    samples = conversation_tokens(folder, ROWS)
    named = dict(model.named_parameters())
    x = {name: value.detach().double().clone() for name, value in named.items()}
    z, second = {name: value.clone() for name, value in x.items()}, {name: 0.0 * value for name, value in x.items()}
    losses, evaluation, saved, largest, total = [], 0.0, {}, 0.0, 0.0

    def put(values: dict[str, torch.Tensor]) -> None:
        with torch.no_grad():
            for name, parameter in named.items():
                parameter.copy_(values[name])

    for step, batch in enumerate(batches_of(samples, 8, STEPS), start=1):
        y = {name: (1 - BETA) * z[name] + BETA * x[name] for name in x}
        put(y)
        model.zero_grad()
        loss = loss_of(model, batch)
        loss.backward()
        losses.append(loss.item())
        lr = LR * min(1.0, (step - 1) / 3)
        largest = max(largest, lr)
        total += largest**2
        share = largest**2 / total if total else 0.0
        for name, parameter in named.items():
            grad = parameter.grad.double()
            second[name] = 0.95 * second[name] + 0.05 * grad**2
            update = grad / ((second[name] / (1 - 0.95**step)).sqrt() + 1e-6)
            z[name] = z[name] - lr * (update + (DECAY * y[name] if parameter.ndim >= 2 else 0.0))
            x[name] = (1 - share) * x[name] + share * z[name]
        if step == SAVED_AT:
            put(x)
            saved = {name: value.float() for name, value in x.items()}
            with torch.no_grad():
                evaluation = loss_of(model, samples[:8]).item()
    return losses, evaluation, saved


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Trained]:
    """The model, and the run of one process."""
    folder = tmp_path_factory.mktemp("alone")
    model = write_model(folder / "tiny")
    return model, trained(model, folder)


@pytest.mark.full
def test_schedule_free_matches_the_paper(tmp_path: Path, alone: tuple[Path, Trained]) -> None:
    """Steps evaluations and checkpoints are those of the paper."""
    model, run = alone
    losses, evaluation, weights = by_the_paper(model)
    assert run.losses == pytest.approx(losses, rel=1e-5)
    assert evaluated(run) == pytest.approx(evaluation, rel=1e-5)
    found = load_file(run.folder / f"checkpoint-{SAVED_AT}" / "model.safetensors")
    moved = False
    before = load_file(model / "model.safetensors")
    for name, value in weights.items():
        if name in found:
            torch.testing.assert_close(found[name], value, rtol=1e-4, atol=1e-5, msg=name)
            moved = moved or not torch.allclose(before[name], value, atol=1e-3)
    assert moved

    again = trained(
        model,
        tmp_path / "again",
        **{"checkpoint.resume": str(run.folder / f"checkpoint-{SAVED_AT}"), "checkpoint.save_last": False},
    )
    assert again.losses == run.losses[SAVED_AT:]


def test_a_step_that_is_left_out_leaves_the_averages() -> None:
    torch.manual_seed(0)
    layer = torch.nn.Linear(8, 8)
    groups = [{"params": list(layer.parameters()), "lr": 0.1, "weight_decay": 0.0}]
    optimizer = ScheduleFree().make(groups, ScheduleFreeOptions(), torch.device("cpu"))
    for _ in range(3):
        with gradient_view(optimizer):
            layer(torch.randn(4, 8)).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    averages = layer.weight.detach().clone()
    with gradient_view(optimizer):
        assert not torch.allclose(layer.weight, averages, atol=1e-4)
    torch.testing.assert_close(layer.weight, averages, rtol=1e-6, atol=1e-7)


@pytest.mark.full
def test_layouts_follow_and_resume(tmp_path: Path, alone: tuple[Path, Trained]) -> None:
    model, one = alone
    resumed = {"checkpoint.resume": str(one.folder / f"checkpoint-{SAVED_AT}"), "checkpoint.save_last": False}
    fsdp = {"backend.name": "fsdp"}
    plans: dict[str, dict[str, Any]] = {
        "fsdp": fsdp,
        "fsdp tp": {**fsdp, "parallel.tp": 2},
        "asynchronous": {"checkpoint.asynchronous": True},
        "fsdp resumed": {**fsdp, **resumed},
    }
    answers = on_processes(2, *[partial(trained, model, tmp_path / name, **plan) for name, plan in plans.items()])
    weights = load_file(one.folder / f"checkpoint-{SAVED_AT}" / "model.safetensors")
    for name, answer in zip(plans, answers, strict=True):
        run = succeeded(answer)[0]
        expected = one.losses[SAVED_AT:] if "resumed" in name else one.losses
        assert run.losses == pytest.approx(expected, rel=1e-4), name
        if "resumed" not in name:
            assert evaluated(run) == pytest.approx(evaluated(one), rel=1e-4), name
            found = load_file(run.folder / f"checkpoint-{SAVED_AT}" / "model.safetensors")
            for key, value in weights.items():
                torch.testing.assert_close(found[key], value, rtol=1e-3, atol=1e-4, msg=f"{name}: {key}")


def test_backends_that_keep_copies_of_weights_refuse_it(tmp_path: Path) -> None:
    model = write_model(tmp_path / "tiny")
    with pytest.raises(SwiftError, match="two views of the weights"):
        trained(model, tmp_path, **{"backend.name": "deepspeed"})
