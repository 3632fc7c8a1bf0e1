"""Flags that core knows for `grpo` are options that it has, and take the values that it takes."""

from __future__ import annotations

from swift.config.other_programs.online import FLAGS, LOSSES, OWN_OPTIONS
from swift.config.parse import parse
from swift_rl.options import GrpoOptions


def test_every_flag_of_online_learning_sets_an_option_that_grpo_has() -> None:
    keys = {key.partition(".")[2] for _, key, *_ in FLAGS if key.startswith("objective.")}
    assert keys - GrpoOptions.model_fields.keys() == set()
    assert OWN_OPTIONS - GrpoOptions.model_fields.keys() == set()


def test_every_loss_that_core_takes_for_one_of_grpo_is_one() -> None:
    for loss in LOSSES:
        parsed = parse(["--rlhf_type", "grpo", "--loss_type", loss.upper()], "rlhf", complete=False)
        assert parsed.config.objective.model_dump()["loss_type"] == loss


def test_a_recipe_as_people_type_it_is_typed_by_the_options() -> None:
    line = "--num_generations 16 --epsilon_high 0.28 --reward_funcs accuracy soft_overlong --reward_weights 1 0.5 "
    line += "--soft_cache_length 64 --mask_truncated_completions true --scale_rewards False --beta 0 --top_k -1 "
    line += "--rollout_importance_sampling_mode token_truncate --stop_words </answer> --dynamic_sample true"
    objective = parse(["--rlhf_type", "grpo", *line.split()], "rlhf", complete=False).objective_options.model_dump()
    expected = {"num_generations": 16, "epsilon_high": 0.28, "reward_funcs": ("accuracy", "soft_overlong")}
    expected |= {"reward_weights": (1.0, 0.5), "overlong_filter": True, "scale_rewards": "none", "beta": 0.0}
    expected |= {"top_k": 0, "stop_words": ("</answer>",), "dynamic_sample": True, "soft_cache_length": 64}
    assert objective.items() >= expected.items()
