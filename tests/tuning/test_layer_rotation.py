"""LISA and BAdam: which weights change at each step, the numbers of a plain loop, and memory that falls."""

from __future__ import annotations

import math
import os
import weakref
from functools import partial
from pathlib import Path
from typing import Any

import plain_torch
import pytest
import torch
from plain_torch import batches_of, conversation_tokens, response_logp
from processes import on_processes, succeeded
from safetensors import safe_open
from safetensors.torch import load_file
from tiny_runs import Trained, conversations, run_training, write_model

from swift.backends.torch import state as shard
from swift.errors import SwiftError
from swift_tuning.layer_rotation import Badam, Lisa, blocks_of
from swift_tuning.options import BadamOptions, LisaOptions

STEPS, BLOCKS, LR = 7, 4, 2e-3
ROWS = conversations(16)
KINDS: dict[str, dict[str, Any]] = {
    "lisa": {"tuner.layers": 1, "tuner.interval": 2},
    "badam": {"tuner.interval": 2},
}
SETTINGS: dict[str, Any] = {
    "optim.lr": LR,
    "optim.schedule": "constant",
    "optim.warmup_steps": 0,
    "optim.eps": 1e-6,
    "train.max_steps": STEPS,
    "train.global_batch": 8,
    "checkpoint.save_steps": 1,
}


def tiny(folder: Path) -> Path:
    return write_model(folder, num_hidden_layers=BLOCKS)


def trained(model: Path, out: Path, kind: str, changes: dict[str, Any] | None = None) -> Trained:
    settings = {**SETTINGS, "tuner.kind": kind, **KINDS[kind], "logging.run_name": kind, **(changes or {})}
    return run_training(model, out, ROWS, settings)


def states_after(run: Trained, step: int) -> set[str]:
    """Names of the weights for which the optimizer keeps anything."""
    with safe_open(run.folder / f"checkpoint-{step}" / "state" / "00000.safetensors", "pt") as file:
        names: list[str] = list(file.keys())
    return {name.split(".", 1)[1].removesuffix(".exp_avg") for name in names if name.endswith(".exp_avg")}


def turn(kind: str, names: list[str], step: int) -> set[str]:
    """Names that have their turn at a step, counted from 0."""
    if kind == "lisa":
        return set(Lisa().trained(names, step, LisaOptions(layers=1, interval=2), 42))
    inside = [name for block in blocks_of(names) for name in block]
    return set(Badam().trained(inside, step, BadamOptions(interval=2), 42))


def by_hand(folder: Path, kind: str) -> tuple[list[float], list[float]]:
    """A plain loop, in which AdamW begins anew with every turn: losses and gradient norms."""
    model = plain_torch.load_model(folder).eval()
    named = dict(model.named_parameters())
    now: set[str] = set()
    losses, norms = [], []
    for step, batch in enumerate(batches_of(conversation_tokens(folder, ROWS), 8, STEPS)):
        due = turn(kind, list(named), step)
        mine = [named[name] for name in named if name in due]
        if due != now:
            decay, plain = [p for p in mine if p.ndim >= 2], [p for p in mine if p.ndim < 2]
            groups = [{"params": decay, "weight_decay": 0.1}, {"params": plain, "weight_decay": 0.0}]
            optimizer = torch.optim.AdamW(groups, lr=LR, betas=(0.9, 0.95), eps=1e-6)
        now = due
        model.zero_grad()
        weight = sum(len(answer) for _, answer in batch)
        loss = -torch.stack([response_logp(model, tokens) for tokens in batch]).sum() / weight
        loss.backward()
        losses.append(loss.item())
        norms.append(math.sqrt(sum(float(p.grad.double().square().sum()) for p in mine if p.grad is not None)))
        torch.nn.utils.clip_grad_norm_(mine, 1.0)
        optimizer.step()
    return losses, norms


def changed_at(run: Trained, model: Path, step: int) -> set[str]:
    """Weights that a step, counted from 0, has changed."""
    after, before = (run.folder / f"checkpoint-{each}" if each else model for each in (step + 1, step))
    weights = load_file(before / "model.safetensors")
    found = load_file(after / "model.safetensors")
    assert found.keys() == weights.keys()
    return {name for name, value in found.items() if not torch.equal(value, weights[name])}


def test_sampled_layers_depend_on_seed_and_step() -> None:
    """The sampled layers depend on seed and step alone, and every layer is sampled."""
    names = ["embed", *(f"layers.{block}.{part}" for block in range(6) for part in ("q", "experts.3.up")), "head"]
    assert [len(block) for block in blocks_of(names)] == [2] * 6
    lisa = LisaOptions(layers=2, interval=5)
    draws = [frozenset(Lisa().trained(names, step, lisa, 1)) for step in range(200)]
    assert all(len(draw) == 6 and {"embed", "head"} <= draw for draw in draws)
    assert all(draws[step] == draws[step - step % 5] for step in range(200))
    assert len(set(draws)) > 5
    assert draws != [frozenset(Lisa().trained(names, step, lisa, 2)) for step in range(200)]
    for order in ("random", "ascending", "descending"):
        badam = BadamOptions(interval=3, order=order)
        round_ = [tuple(Badam().trained(names, 3 * turn, badam, 1)) for turn in range(12)]
        assert len(set(round_[:6])) == len(set(round_[6:])) == 6
        assert (round_[:6] == sorted(round_[:6])) == (order == "ascending")


@pytest.mark.parametrize("kind", KINDS)
def test_active_layers_match_plain_loop(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The weights that have their turn change as in a plain loop."""
    model = tiny(tmp_path / "tiny")
    alive: list[weakref.ref[Any]] = []
    make = shard.build_optimizer

    def remembered(*arguments: Any) -> Any:
        optimizer = make(*arguments)
        alive.append(weakref.ref(optimizer))
        return optimizer

    monkeypatch.setattr(shard, "build_optimizer", remembered)
    run = trained(model, tmp_path, kind)
    losses, norms = by_hand(model, kind)
    assert run.losses == pytest.approx(losses, rel=1e-5)
    assert run.grad_norms == pytest.approx(norms, rel=1e-5)
    names = list(dict(plain_torch.load_model(model).named_parameters()))
    for step in range(STEPS):
        due = turn(kind, names, step)
        assert changed_at(run, model, step) == due, step
        # Memory: a state for what is trained, none for what waits.
        assert states_after(run, step + 1) == due, step
    turns = len({frozenset(turn(kind, names, step)) for step in range(STEPS)})
    assert len(alive) >= turns > 2
    assert sum(each() is not None for each in alive) <= 1


LAYOUTS: dict[str, tuple[str, dict[str, Any]]] = {
    "two processes": ("lisa", {}),
    "fsdp": ("badam", {"backend.name": "fsdp"}),
    "fsdp tp": ("lisa", {"backend.name": "fsdp", "parallel.tp": 2}),
}


@pytest.mark.full
def test_layer_rotation_matches_on_layouts_and_after_resume(tmp_path: Path) -> None:
    """Layers take the same turns on every layout and after a resume."""
    model = tiny(tmp_path / "tiny")
    alone = {kind: trained(model, tmp_path / "torch", kind) for kind in KINDS}
    cases = [(kind, name, plan) for name, (kind, plan) in LAYOUTS.items()]
    # In the middle of a turn, and between two.
    cases += [
        (
            kind,
            f"from {step}",
            {"backend.name": "fsdp", "checkpoint.resume": str(alone[kind].folder / f"checkpoint-{step}")},
        )
        for kind, step in (("badam", 3), ("lisa", 4))
    ]
    answers = on_processes(2, *[partial(trained, model, tmp_path / name, kind, plan) for kind, name, plan in cases])
    for (kind, name, plan), answer in zip(cases, answers, strict=True):
        first = int(name.removeprefix("from ")) if "checkpoint.resume" in plan else 0
        run, expected = succeeded(answer)[0], alone[kind]
        assert run.losses == pytest.approx(expected.losses[first:], rel=1e-4), (kind, name)
        assert run.grad_norms == pytest.approx(expected.grad_norms[first:], rel=1e-4), (kind, name)
        for step in range(first + 1, STEPS):
            assert changed_at(run, model, step) == changed_at(expected, model, step), (kind, name, step)
    back = trained(model, tmp_path / "back", "lisa", {"checkpoint.resume": str(alone["lisa"].folder / "checkpoint-3")})
    assert back.losses == pytest.approx(alone["lisa"].losses[3:], rel=1e-6)


def drawn_by_rank(self: Any, names: Any, step: int, options: Any, seed: int) -> Any:
    blocks = blocks_of(names)
    return blocks[(step + int(os.environ["RANK"])) % len(blocks)]


@pytest.mark.full
def test_rank_dependent_layer_sampling_is_detected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Lisa, "trained", drawn_by_rank)
    (answer,) = on_processes(2, partial(trained, tiny(tmp_path / "tiny"), tmp_path / "run", "lisa"))
    for each in answer:
        assert "the same weights in all processes" in str(each)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"backend.name": "deepspeed", "backend.config": "zero2"}, "deepspeed backend does not support"),
        ({"backend.name": "megatron"}, "megatron backend does not support"),
        ({"tuner.quantize": "bnb-nf4"}, "cannot be trained"),
    ],
)
def test_layer_rotation_is_refused_where_unsupported(tmp_path: Path, changes: dict[str, Any], reason: str) -> None:
    model = tiny(tmp_path / "tiny")
    with pytest.raises(SwiftError, match=reason):
        trained(model, tmp_path, "lisa", changes)
