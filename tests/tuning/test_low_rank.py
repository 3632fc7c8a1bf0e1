"""GaLore, Q-GaLore and APOLLO beside the formulas of their authors' packages, written down one matrix at a time.

Those packages leave the signs of singular vectors to the decomposition, and moments live on when it is made anew: here
and there the largest element is made positive, which is the one thing that both sides agree on beforehand.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from few_layers import Together, assert_equal, layer, of_swift, trained

from swift.errors import SwiftError
from swift.plugins.load import load_optimizer
from swift.toolkit import generator_of

B1, B2, EPS, RANK, GAP = 0.9, 0.95, 1e-6, 8, 2
SMALL = {"rank": RANK, "update_proj_gap": GAP, "eps": EPS}

State = dict[str, Any]
Rule = Callable[[str, torch.Tensor, State, int], torch.Tensor]


class ByHand(torch.optim.Optimizer):
    """w ← (1 - lr · decay) · w - lr · update, one matrix after the other."""

    def __init__(self, matrices: dict[str, torch.nn.Parameter], rule: Rule) -> None:
        super().__init__(list(matrices.values()), {"lr": 0.0})
        self.matrices, self.rule = matrices, rule

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        lr = self.param_groups[0]["lr"]
        for name, weight in self.matrices.items():
            state = self.state[weight]
            state["step"] = state.get("step", 0) + 1
            update = self.rule(name, weight.grad, state, state["step"])
            weight.mul_(1 - lr * 0.1).sub_(lr * update)


def by_hand(rule: Rule) -> tuple[Any, Together]:
    model = layer()
    matrices = {"up.weight": model.up.weight, "down.weight": model.down.weight}
    adam = {"lr": 1e-2, "betas": (B1, B2), "eps": EPS}
    others = torch.optim.AdamW([model.embed.weight, model.lm_head.weight], weight_decay=0.1, **adam)
    biases = torch.optim.AdamW([model.up.bias], weight_decay=0.0, **adam)
    return model, Together(ByHand(matrices, rule), others, biases)


def vectors_of(grad: torch.Tensor, right: bool, rank: int = RANK) -> torch.Tensor:
    """The first singular vectors as columns."""
    left, _, across = torch.linalg.svd(grad, full_matrices=False)
    found = (across.T if right else left)[:, :rank]
    for column in found.T:
        if column[column.abs().argmax()] < 0:
            column.neg_()
    return found


def adam_of(low: torch.Tensor, state: State) -> torch.Tensor:
    """transformers' former AdamW, on which these packages are built: ε is added before biases are corrected."""
    state["m"] = B1 * state.get("m", torch.zeros_like(low)) + (1 - B1) * low
    state["v"] = B2 * state.get("v", torch.zeros_like(low)) + (1 - B2) * low**2
    return state["m"] / (state["v"].sqrt() + EPS)


def correction(step: int) -> float:
    return math.sqrt(1 - B2**step) / (1 - B1**step)


def galore(kind: str, scale: float) -> Rule:
    def rule(_: str, grad: torch.Tensor, state: State, step: int) -> torch.Tensor:
        rows, columns = grad.shape
        right = {"std": rows >= columns, "reverse_std": rows < columns, "right": True, "left": False}[kind]
        if (step - 1) % GAP == 0:
            state["vectors"] = vectors_of(grad, right)
        vectors = state["vectors"]
        stepped = adam_of(grad @ vectors if right else vectors.T @ grad, state) * correction(step)
        return scale * (stepped @ vectors.T if right else vectors @ stepped)

    return rule


@pytest.mark.parametrize("kind", ["std", "reverse_std", "left", "right"])
def test_galore_is_adam_in_singular_space(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """GaLore is Adam in the space of the first singular vectors."""
    ours = of_swift("galore", monkeypatch, **SMALL, proj_type=kind, scale=0.5)
    assert_equal(trained(*ours), trained(*by_hand(galore(kind, 0.5))), rtol=1e-4)


@pytest.mark.parametrize(
    ("name", "rank", "options"),
    [("apollo", RANK, {}), ("apollo", RANK, {"projection_seed": 3}), ("apollo_mini", 1, {"rank": 1, "scale": 128.0})],
)
def test_apollo_scales_gradients_by_projected_adam(
    name: str, rank: int, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """APOLLO scales gradients as Adam scales their random projection."""

    def rule(matrix: str, grad: torch.Tensor, state: State, step: int) -> torch.Tensor:
        rows, columns = grad.shape
        right = rows >= columns
        shape = (rank, columns) if right else (rows, rank)
        drawn = generator_of(options.get("projection_seed", 0), f"{matrix}:{(step - 1) // GAP}")
        projection = torch.randn(shape, generator=drawn) / math.sqrt(rank)
        low = grad @ projection.T if right else projection.T @ grad
        stepped = adam_of(low, state)
        if name == "apollo_mini":
            update = grad * (stepped.norm() / (low.norm() + 1e-8))
        elif right:
            update = grad * (stepped.norm(dim=1) / (low.norm(dim=1) + 1e-8))[:, None]
        else:
            update = grad * (stepped.norm(dim=0) / (low.norm(dim=0) + 1e-8))
        if "before" in state:
            update = update / (max(update.norm() / (state["before"] + 1e-8), 1.01) / 1.01)
        state["before"] = update.norm()
        return update * math.sqrt(options.get("scale", 1.0)) * correction(step)

    ours = of_swift(name, monkeypatch, **{**SMALL, **options})
    assert_equal(trained(*ours), trained(*by_hand(rule)), rtol=1e-4)


def in_four_bits(values: torch.Tensor) -> torch.Tensor:
    groups = values.reshape(-1, 256)
    least, most = groups.amin(1, keepdim=True), groups.amax(1, keepdim=True)
    step = (most - least).clamp(min=1e-5) / 15
    zero = (-torch.round(least / step)).clamp(0, 15)
    return (step * ((torch.round(groups / step) + zero).clamp(0, 15) - zero)).reshape(values.shape)


def test_q_galore_projects_in_int4_and_updates_lazily(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Q-GaLore projects in four bits and looks less often where nothing turns."""
    looked: list[str] = []

    def rule(name: str, grad: torch.Tensor, state: State, step: int) -> torch.Tensor:
        right = grad.shape[0] >= grad.shape[1]
        gap = state.setdefault("gap", 1)
        if (step - 1) % gap == 0:
            looked.append(name)
            vectors = vectors_of(grad, right)
            if "past" in state:
                state.setdefault("similar", []).append(float(torch.cosine_similarity(state["past"], vectors[:, 0], 0)))
                last = state["similar"][-2:]
                if len(last) == 2 and sum(last) / 2 >= 0.3:
                    state["gap"] = gap * 2
            state["past"] = vectors[:, 0]
            # Groups are those of the projection as it is laid out: vectors are rows on the right, columns on the left.
            state["vectors"] = in_four_bits(vectors.T).T if right else in_four_bits(vectors)
        vectors = state["vectors"]
        stepped = adam_of(grad @ vectors if right else vectors.T @ grad, state) * correction(step)
        return 0.25 * (stepped @ vectors.T if right else vectors @ stepped)

    options = {**SMALL, "update_proj_gap": 1, "queue_size": 2, "cos_threshold": 0.3}
    model, optimizer = of_swift("q_galore", monkeypatch, **options)
    start = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    found, expected = trained(model, optimizer), trained(*by_hand(rule))
    assert looked.count("up.weight") < 6  # of as many steps
    gaps = {name: int(slots["schedule"][0]) for name, slots in optimizer.matrix_slots().items()}  # type: ignore[attr-defined]
    assert gaps["up.weight"] > 1
    for name, value in expected.items():  # moments are in 8 bits here, and in 32 there
        assert (found[name] - value).norm() < 0.06 * (value - start[name]).norm(), name


@pytest.mark.parametrize("name", ["galore", "q_galore", "apollo", "adam_mini"])
def test_what_is_kept_in_memory_is_what_is_claimed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plugin = load_optimizer(name).object
    options = {} if name == "adam_mini" else {"rank": 128}
    model, optimizer = of_swift(name, monkeypatch, **options)
    trained(model, optimizer)
    kept = getattr(optimizer, "_kept", {})
    for key, weight in model.named_parameters():
        if key not in ("up.weight", "down.weight"):
            continue
        held = [*kept.get(key, {}).values(), *(v for v in optimizer.state[weight].values() if torch.is_tensor(v))]
        if name == "apollo":
            held.append(optimizer._rule._projections[key][1])  # type: ignore[attr-defined]
        if name == "adam_mini":
            held.append(optimizer._means[weight])  # type: ignore[attr-defined]
        size = sum(each.numel() * each.element_size() for each in held)
        claimed = plugin.bytes_per_parameter(tuple(weight.shape)) * weight.numel()
        assert size == pytest.approx(claimed, rel=0.02), key


def test_nothing_to_project_is_refused_with_what_to_type(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SwiftError, match="rank 300") as refusal:
        of_swift("galore", monkeypatch, rank=300)
    assert "--optim.rank" in str(refusal.value.hint)
    assert "--train_type full" in str(refusal.value.hint)
    with pytest.raises(SwiftError, match=r"optim\.targets"):
        of_swift("apollo", monkeypatch, rank=8, targets=("attention",))


def test_targets_leave_the_others_to_adamw(monkeypatch: pytest.MonkeyPatch) -> None:
    model, optimizer = of_swift("galore", monkeypatch, **SMALL, targets=("up",))
    trained(model, optimizer)
    assert list(optimizer.matrix_slots()) == ["up.weight"]  # type: ignore[attr-defined]
    assert "exp_avg_sq" in optimizer.state[model.down.weight]


@pytest.mark.parametrize("name", ["galore", "q_galore", "apollo"])
def test_what_was_stored_goes_on_to_the_same_bits(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    options = {**SMALL, "update_proj_gap": 4}  # due again in the middle of what follows
    model, optimizer = of_swift(name, monkeypatch, **options)
    trained(model, optimizer)
    again, other = of_swift(name, monkeypatch, **options)
    again.load_state_dict(model.state_dict())
    memory = other.empty_matrix_slots()  # type: ignore[attr-defined]
    stored = optimizer.matrix_slots()  # type: ignore[attr-defined]
    assert {slot.name for slot in load_optimizer(name).object.slots if slot.shape == "matrix"} == set(
        stored["up.weight"]
    )
    for matrix, slots in memory.items():
        for slot, value in slots.items():
            value.copy_(stored[matrix][slot])
    other.take_matrix_slots(memory)  # type: ignore[attr-defined]
    for one, two in zip(model.parameters(), again.parameters(), strict=True):
        other.state[two] = copy.deepcopy(optimizer.state[one])
    found = trained(again, other)
    for key, value in trained(model, optimizer).items():
        assert torch.equal(found[key], value), key
