"""The torch backend on two processes gives the numbers of one, whatever is trained and however the rows fall."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from processes import on_processes, succeeded
from tiers import selected, tiered
from tiny_runs import Trained, conversations, run_training, verdicts

from swift.errors import ConfigError, UnsupportedLayout

SAME = 1e-6
SHORT = conversations(9)
"""The second batch has a single row: one process has none."""
LORA = {"tuner.kind": "lora", "tuner.dropout": 0.05, "optim.lr": 1e-2}
COMMON = {"train.global_batch": 8, "train.max_steps": 6, "train.micro_batch": 2}

CASES: dict[str, tuple[list[Any], dict[str, Any]]] = {
    "full, a process without rows": (SHORT, {}),
    "lora with dropout, a process without rows": (SHORT, LORA),
    "kto, lora": (verdicts(13), {"objective.name": "kto", **LORA, "optim.lr": 2e-3}),
}
"""What the conformance kit has no case of."""
QUICK = ("lora with dropout, a process without rows",)


def run_case(name: str, model: Path, output: Path) -> Callable[[], Trained]:
    rows, changes = CASES[name]

    def case() -> Trained:
        settings = {**COMMON, **changes, "logging.run_name": name}
        return run_training(model, output, rows, settings, validation=rows[:5])

    return case


@pytest.fixture(scope="module")
def both(
    request: pytest.FixtureRequest, tied: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, tuple[Trained, Trained]]:
    """Each case on one process and on two."""
    single, double = tmp_path_factory.mktemp("single"), tmp_path_factory.mktemp("double")
    names = selected(request, "name")
    two = on_processes(2, *(run_case(name, tied, double) for name in names))
    alone = {name: run_case(name, tied, single)() for name in names}
    return {name: (alone[name], succeeded(answers)[0]) for name, answers in zip(names, two, strict=True)}


@pytest.mark.parametrize("name", tiered(CASES, QUICK))
def test_two_processes_give_the_numbers_of_one(both: dict[str, tuple[Trained, Trained]], name: str) -> None:
    one, two = both[name]
    assert len(one.losses) == 6
    assert one.losses[-1] != pytest.approx(one.losses[0], rel=1e-3)
    assert two.losses == pytest.approx(one.losses, rel=SAME)
    assert two.grad_norms == pytest.approx(one.grad_norms, rel=SAME)
    final, other = one.lines[6], two.lines[6]
    measured = [key for key in final if key.startswith("eval_") or key in ("token_acc", "reward_margin", "kl")]
    assert "eval_loss" in measured
    for key in measured:
        # Rewards are small differences of large log-probabilities.
        assert other[key] == pytest.approx(final[key], rel=SAME, abs=1e-5 if "reward" in key else 0), key


def test_undividable_batch_schedule_is_refused_on_every_rank(tiny: Path, tmp_path: Path) -> None:
    """A batch schedule that cannot be divided is refused on every process."""

    def odd() -> None:
        run_training(tiny, tmp_path, SHORT, {"train.global_batch": 5})

    def too_few() -> None:
        run_training(tiny, tmp_path, SHORT, {"parallel.dp_replicate": 4})

    def left_behind() -> bool:
        return dist.is_initialized()

    odd_answers, few_answers, groups = on_processes(2, odd, too_few, left_behind)
    for answer in odd_answers:
        assert isinstance(answer, ConfigError)
        assert "train.global_batch 5 cannot be divided evenly over 2 processes" in answer.message
        assert "--train.global_batch 6" in (answer.hint or "")
    for answer in few_answers:
        assert isinstance(answer, UnsupportedLayout)
        assert "parallel.dp_replicate is 4, but 2 processes were started" in answer.message
    assert groups == [False, False]
    assert not list(tmp_path.iterdir())
