"""The doctor of online learning: what each illness of a run is called, and when it ends the run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from swift_rl import advantages
from swift_rl.algorithm_options import AlgorithmOptions
from swift_rl.health import Health, NothingToLearn, entropy_of, teaches
from swift_rl.rounds.data import Prompt, RolloutCompletion, Round

GROUP = 4


def made_up(rewards: Sequence[float | None], number: int = 0, **changes: Any) -> Round:
    """A round with groups of four; `changes` are what each completion has besides."""
    prompts = [Prompt(index, index, np.arange(3), []) for index in range(len(rewards) // GROUP)]
    completions = []
    for index, reward in enumerate(rewards):
        given: dict[str, Any] = {
            "prompt": index // GROUP, "index": index % GROUP, "token_ids": np.arange(5), "logps": np.full(5, -1.0),
            "finish_reason": "stop", "text": f"completion {index}",
            "rewards": {"right": reward}, "reward": reward or 0.0,
        }  # fmt: skip
        completions.append(RolloutCompletion(**{**given, **changes}))
    table = np.array([[np.nan if reward is None else reward] for reward in rewards])
    groups = np.array([completion.prompt for completion in completions])
    made = advantages.estimate(table, groups, np.full(len(completions), 5), AlgorithmOptions())
    for completion, values in zip(completions, made.tokens, strict=True):
        completion.advantages = values
    return Round(number, number, prompts, completions)


def taught_alone() -> Round:
    """A round without rewards, whose teacher says what the policy says."""
    made = made_up([0.0] * 8)
    for completion in made.completions:
        completion.rewards = {}
    return made


LEARNS = [0.0, 1.0, 0.0, 1.0] * 2
EQUAL = [0.0] * 4 + [1.0] * 4


@pytest.mark.parametrize(
    ("make", "what", "advice"),
    [
        (
            lambda: made_up([0.0] * 8, finish_reason="length"),
            "100% of the completions were cut off",
            "max_completion_length",
        ),
        (lambda: made_up([0.5] * 8), "every completion has the reward 0.5", "the reward expects"),
        (lambda: made_up([None] * 8), "no reward could be computed", "swift rewards test"),
        (taught_alone, "teacher and policy agree on every token", "--teacher_model"),
        (lambda: made_up([0.0] * 8, text="the same"), "completions of each prompt are identical", "--temperature"),
        (lambda: made_up(EQUAL, logps=np.full(5, -0.001)), "the entropy fell to 0.001", "--temperature"),
        (lambda: made_up(EQUAL), "within each group all completions have the same reward", "--num_generations"),
        (lambda: made_up(LEARNS, why_not="overlong", finish_reason="length"), "were cut off", "max_completion_length"),
    ],
    ids=["truncated", "constant", "unscorable", "no rewards", "alike", "entropy", "equal", "filtered"],
)
def test_run_that_cannot_learn_is_explained_and_ended(make: Callable[[], Round], what: str, advice: str) -> None:
    """A run that cannot learn ends after some rounds with the reason."""
    said: list[str] = []
    health = Health(3, said.append)
    for _ in range(2):
        health.look(make())
    assert len(said) == 1, "it is said once"
    assert what in said[0]
    assert advice in said[0]
    with pytest.raises(NothingToLearn, match="last 3 rounds taught nothing") as raised:
        health.look(make())
    assert what in str(raised.value)
    assert advice in str(raised.value)


def test_learning_round_resets_count_and_zero_disables() -> None:
    """One round that teaches begins the count anew and zero never ends a run."""
    health = Health(2, lambda line: None)
    for rewards in ([0.0] * 8, LEARNS, [0.0] * 8, LEARNS):
        health.look(made_up(rewards))
    patient = Health(0, lambda line: None)
    for _ in range(50):
        patient.look(made_up([0.0] * 8))


def test_converged_run_continues() -> None:
    """A run that has learned all that its prompts teach goes on."""
    health = Health(2, lambda line: None)
    health.look(made_up(LEARNS))
    for _ in range(20):
        health.look(made_up([1.0] * 8))


def test_truncated_completions_do_not_end_learning_run() -> None:
    said: list[str] = []
    health = Health(1, said.append)
    for _ in range(3):
        health.look(made_up(LEARNS, finish_reason="length"))
    assert said == []


def test_groups_that_were_left_out_teach_nothing() -> None:
    made = made_up(LEARNS)
    made.dropped = {0: "all the same", 1: "all the same"}
    assert teaches(made_up(LEARNS))
    assert not teaches(made)


def test_wrong_reference_ends_run_before_first_step() -> None:
    """A reference that is not the first model ends the run before its first step."""
    apart = {"old_logps": np.full(5, -1.0), "ref_logps": np.full(5, -1.2)}
    with pytest.raises(NothingToLearn, match=r"reference differs from the model by 0\.2 nats"):
        Health(5, lambda line: None).look(made_up(LEARNS, **apart))
    Health(5, lambda line: None).look(made_up(LEARNS, number=1, **apart))
    Health(5, lambda line: None).look(made_up(LEARNS, **{**apart, "ref_logps": np.full(5, -1.0001)}))


def test_measured_entropy_overrides_sampled_estimate() -> None:
    assert entropy_of(made_up(LEARNS).completions) == 1.0
    assert entropy_of(made_up(LEARNS, entropies=np.full(5, 0.25)).completions) == 0.25
