"""Flags that core knows for `grpo`, `ppo` and `gkd` are options that these have, and take the values that they take."""

from __future__ import annotations

from swift.config.other_programs.online import FLAGS, LOSSES, OWN_OPTIONS
from swift.config.parse import parse
from swift_rl.distill.options import GkdOptions
from swift_rl.options import GrpoOptions
from swift_rl.ppo_options import PpoOptions


def test_every_flag_of_online_learning_sets_an_option_that_an_objective_has() -> None:
    keys = {key.partition(".")[2] for _, key, *_ in FLAGS if key.startswith("objective.")}
    known = GrpoOptions.model_fields.keys() | PpoOptions.model_fields.keys() | GkdOptions.model_fields.keys()
    assert keys - known == set()
    assert OWN_OPTIONS - known == set()


def test_ppo_as_people_type_it_is_typed_by_the_options() -> None:
    line = "--num_ppo_epochs 2 --num_mini_batches 4 --whiten_rewards true --kl_coef 0.02 --cliprange 0.1 --vf_coef 0.5 "
    line += "--cliprange_value 0.3 --gamma 0.99 --lam 0.9 --missing_eos_penalty 1.0 --response_length 64 "
    line += "--critic_lr 1e-5 --critic_warmup 3 --kl_target 0.1 --reward_model rm --temperature 0.7"
    objective = parse(["--rlhf_type", "ppo", *line.split()], "rlhf", complete=False).objective_options.model_dump()
    expected = {"num_ppo_epochs": 2, "num_mini_batches": 4, "whiten_rewards": True, "kl_coef": 0.02, "cliprange": 0.1}
    expected |= {"vf_coef": 0.5, "cliprange_value": 0.3, "gamma": 0.99, "lam": 0.9, "missing_eos_penalty": 1.0}
    expected |= {"max_completion_length": 64, "critic_lr": 1e-5, "critic_warmup": 3, "kl_target": 0.1}
    expected |= {"reward_model": ("rm",), "temperature": 0.7}
    assert objective.items() >= expected.items()


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
