"""Mistakes that people make with optimizers on several processes, one each: the comparison with one process finds all.

Three more are backends of the kit's own (tests/core/testing/broken_backends.py): weights that decay though they are
frozen, that are trained though they are frozen, and that get a gradient and no update.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from processes import on_processes, succeeded
from tiny_runs import Trained, conversations, run_training, write_model
from torch.optim import optimizer

from swift.contracts import Matrix, Placement
from swift.optim import quantised
from swift_tuning import adam_mini, low_rank, matrices, schedule_free

ROWS = conversations(8)
STEPS, SAVED_AT = 4, 2
COMMON: dict[str, Any] = {
    "optim.lr": 3e-3,
    "optim.eps": 1e-6,
    "optim.warmup_steps": 0,
    "train.max_steps": STEPS,
    "train.global_batch": 8,
    "train.micro_batch": 4,
    "train.eval_steps": STEPS,
    "checkpoint.save_steps": 1000,
}
MODELS: dict[str, dict[str, Any]] = {
    "small": {},
    "experts": {
        **{"architecture": "Qwen3Moe", "num_experts": 4, "num_experts_per_tok": 2},
        **{"moe_intermediate_size": 32, "decoder_sparse_step": 1},
    },
    # Keys and values are 4,096 elements: just enough to be kept in few bits, and half of them are not.
    "narrow keys": {
        **{"hidden_size": 256, "intermediate_size": 256, "num_attention_heads": 4},
        **{"num_key_value_heads": 1, "head_dim": 16},
    },
}
SEEN_HERE_ONLY = ("projections forgotten", "bits by part", "layers by rank")
"""What no other test compares with one process without the fault."""
Fault = Callable[[pytest.MonkeyPatch], Any]


def nothing(_: pytest.MonkeyPatch) -> None:
    """Make no mistake."""


def updates_the_rows_that_are_here(patch: pytest.MonkeyPatch) -> None:
    """Each process takes its rows for the matrix, as an optimizer does that is handed a shard."""

    class Local:
        def __init__(self, placements: Sequence[Placement]) -> None:
            self.placements = placements

        def update(self, tensors: Sequence[torch.Tensor], compute: Any) -> None:
            for placement, tensor in zip(self.placements, tensors, strict=True):
                tensor.copy_(compute(Matrix(placement.name, 0, tuple(tensor.shape)), tensor))

    patch.setattr(matrices, "MatrixOwners", Local)


def takes_two_experts_for_one_matrix(patch: pytest.MonkeyPatch) -> None:
    """What a model keeps in one tensor, as experts or as queries, keys and values, is not cut as it is on disk."""
    real = matrices.MatrixOptimizer.__init__

    def joined(placement: Placement) -> Placement:
        found = placement.matrices
        if len(found) < 2:
            return placement
        pairs = [Matrix(one.name, one.start, (2 * one.shape[0], one.shape[1])) for one in found[::2]]
        return replace(placement, matrices=tuple(pairs))

    def init(self: Any, groups: Any, *rest: Any) -> None:
        real(self, [{**group, "placements": [*map(joined, group["placements"])]} for group in groups], *rest)

    patch.setattr(matrices.MatrixOptimizer, "__init__", init)


def draws_projections_of_its_own(patch: pytest.MonkeyPatch) -> None:
    """The seed of a projection has the rank in it."""
    real = low_rank.generator_of
    patch.setattr(low_rank, "generator_of", lambda seed, name: real(seed + 1 + dist.get_rank(), name))


def forgets_projections(patch: pytest.MonkeyPatch) -> None:
    """Moments are read from a checkpoint, and the space that they lie in is not."""
    real = low_rank.LowRankOptimizer.take_matrix_slots

    def take(self: Any, slots: Any) -> None:
        real(self, slots)
        for kept in self._kept.values():
            kept["projection"].copy_(torch.eye(*kept["projection"].shape))

    patch.setattr(low_rank.LowRankOptimizer, "take_matrix_slots", take)


def keeps_moments_by_shape(patch: pytest.MonkeyPatch) -> None:
    """Matrices of one shape that a process updates share what is kept."""
    real = low_rank.LowRankOptimizer._updated

    def updated(self: Any, matrix: Matrix, grad: torch.Tensor) -> torch.Tensor:
        return real(self, Matrix(str(matrix.shape), 0, matrix.shape), grad)

    patch.setattr(low_rank.LowRankOptimizer, "_updated", updated)


def takes_the_mean_of_its_own_part(patch: pytest.MonkeyPatch) -> None:
    """Squares are not added up over the processes that hold the rest of a head."""
    patch.setattr(adam_mini.dist, "all_reduce", lambda *_, **__: None)


def decides_bits_by_the_part(patch: pytest.MonkeyPatch) -> None:
    """Whether moments are kept in few bits is asked of the shape that is here."""
    real = quantised._in_few_bits

    def local(placement: Placement, block: int) -> bool:
        return real(replace(placement, shape=tuple(part.stop - part.start for part in placement.region)), block)

    patch.setattr(quantised, "_in_few_bits", local)


def evaluates_where_gradients_are_taken(patch: pytest.MonkeyPatch) -> None:
    """Weights stay where the next gradient is taken, and nobody says so to an evaluation."""
    real = schedule_free.ScheduleFreeAdam.step

    def step(self: Any, closure: Any = None) -> None:
        real(self, closure)
        self.to_gradient_view()
        self._at_gradient, self.stays = False, True

    @torch.no_grad()
    def to_gradient_view(self: Any) -> None:
        if not getattr(self, "stays", False):
            self._mix(1 - self._options.beta1)
        self._at_gradient, self.stays = True, False

    patch.setattr(schedule_free.ScheduleFreeAdam, "step", step)
    patch.setattr(schedule_free.ScheduleFreeAdam, "to_gradient_view", to_gradient_view)


def draws_layers(rank: Callable[[], int], patch: pytest.MonkeyPatch) -> None:
    """Train half of the matrices in each step, drawn by the step and by what `rank` says."""
    step = iter(range(10**6))

    def hide(updating: Any, *_: Any) -> None:
        drawn = torch.Generator().manual_seed(100 * rank() + next(step))
        for group in updating.param_groups:
            for parameter in group["params"]:
                if torch.rand((), generator=drawn) < 0.5:
                    parameter.grad = None

    patch.setitem(optimizer._global_optimizer_pre_hooks, -1, hide)


def one_draw() -> int:
    return 0


FAULTS: dict[str, tuple[str, str, dict[str, Any], Fault, Fault]] = {
    "muon on a row shard": ("muon", "small", {}, nothing, updates_the_rows_that_are_here),
    "experts not cut": ("muon", "experts", {}, nothing, takes_two_experts_for_one_matrix),
    "projections by rank": ("apollo", "small", {"optim.rank": 4}, nothing, draws_projections_of_its_own),
    "projections forgotten": ("galore", "small", {"optim.rank": 4}, nothing, forgets_projections),
    "moments by shape": ("galore", "small", {"optim.rank": 4}, nothing, keeps_moments_by_shape),
    "heads by part": ("adam_mini", "small", {}, nothing, takes_the_mean_of_its_own_part),
    "bits by part": ("adamw_4bit", "narrow keys", {}, nothing, decides_bits_by_the_part),
    "the wrong view": ("schedule_free", "small", {}, nothing, evaluates_where_gradients_are_taken),
    "layers by rank": ("adamw", "small", {}, partial(draws_layers, one_draw), partial(draws_layers, dist.get_rank)),
}
"""Optimizer, model, options, what is right on one process and on several, and what is wrong on several."""


def trained(model: Path, out: Path, name: str, fault: Fault, changes: dict[str, Any]) -> Trained:
    settings = {**COMMON, "optim.name": name, **changes}
    with pytest.MonkeyPatch.context() as patch:
        fault(patch)
        return run_training(model, out, ROWS, settings, validation=ROWS[:4])


def numbers(run: Trained, after: int = 0) -> list[float]:
    evaluations = [line["eval_loss"] for line in run.lines.values() if "eval_loss" in line]
    return [*run.losses[after:], *run.grad_norms[after:], *evaluations]


@pytest.mark.full
def test_each_fault_is_seen_beside_one_process(tmp_path: Path) -> None:
    models = {name: write_model(tmp_path / name.replace(" ", "-"), **shape) for name, shape in MODELS.items()}
    fsdp = {"backend.name": "fsdp"}
    alone, sharded = [], {}
    for title, (name, model, options, honest, fault) in FAULTS.items():
        make = partial(trained, models[model])
        resumes = fault is forgets_projections
        start = tmp_path / "alone" / title / models[model].name / "run" / f"checkpoint-{SAVED_AT}"
        saved = {**options, "checkpoint.save_steps": SAVED_AT} if resumes else options
        several = {**options, **fsdp, **({"checkpoint.resume": str(start)} if resumes else {})}
        alone.append(partial(make, tmp_path / "alone" / title, name, honest, saved))
        sharded[title, False] = partial(make, tmp_path / "wrong" / title, name, fault, several)
        if title in SEEN_HERE_ONLY:
            sharded[title, True] = partial(make, tmp_path / "right" / title, name, honest, several)
    references = dict(zip(FAULTS, on_processes(1, *alone), strict=True))
    answers = zip(sharded, on_processes(2, *sharded.values()), strict=True)
    for (title, honest), answer in answers:
        found, expected = succeeded(answer)[0], succeeded(references[title])[0]
        agrees = numbers(found) == pytest.approx(numbers(expected, after=STEPS - len(found.losses)), rel=1e-4)
        assert agrees == honest, f"{title}: {found.losses} beside {expected.losses}"
