"""Flags that core knows for `grpo`, `ppo` and `gkd` are options that these have, and take the values that they take."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from swift.cli.imported_run import ImportedRun, imported, read_runs
from swift.errors import ConfigError
from swift.parsing import config_from_mapping, parse
from swift_rl.distill.options import GkdOptions
from swift_rl.flags.table import FLAGS, LOSSES, OWN_OPTIONS
from swift_rl.options import GrpoOptions, PpoOptions


def test_every_rl_flag_sets_an_existing_option() -> None:
    """Every flag of online learning sets an option that an objective has."""
    keys = {key.partition(".")[2] for _, key, *_ in FLAGS if key.startswith("objective.")}
    known = GrpoOptions.model_fields.keys() | PpoOptions.model_fields.keys() | GkdOptions.model_fields.keys()
    assert keys - known == set()
    assert OWN_OPTIONS - known == set()


def test_ppo_as_people_type_it_is_typed_by_the_options() -> None:
    line = "--num_ppo_epochs 2 --num_mini_batches 4 --whiten_rewards true --kl_coef 0.02 --cliprange 0.1 --vf_coef 0.5 "
    line += "--cliprange_value 0.3 --gamma 0.99 --lam 0.9 --missing_eos_penalty 1.0 --response_length 64 "
    line += "--critic_lr 1e-5 --critic_warmup 3 --kl_target 0.1 --reward_model rm --temperature 0.7"
    objective = parse(["--rlhf_type", "ppo", *line.split()], "rlhf", complete=False).objective.options.model_dump()
    expected = {"num_ppo_epochs": 2, "num_mini_batches": 4, "whiten_rewards": True, "kl_coef": 0.02, "cliprange": 0.1}
    expected |= {"vf_coef": 0.5, "cliprange_value": 0.3, "gamma": 0.99, "lam": 0.9, "missing_eos_penalty": 1.0}
    expected |= {"max_completion_length": 64, "critic_lr": 1e-5, "critic_warmup": 3, "kl_target": 0.1}
    expected |= {"reward_model": ("rm",), "temperature": 0.7}
    assert objective.items() >= expected.items()


def test_option_of_another_rl_objective_names_its_owner() -> None:
    """An option of another objective of online learning is refused with where it belongs."""
    with pytest.raises(ConfigError, match="multi_turn_scheduler is not an option of the objective gkd") as refused:
        parse(["--rlhf_type", "gkd", "--multi_turn_scheduler", "math_tip_trick"], "rlhf", complete=False)
    assert "--rlhf_type grpo" in (refused.value.hint or "")


def carried(command: str) -> tuple[ImportedRun, dict[str, Any]]:
    """What becomes of a recipe, and its objective as the options of this package settle it."""
    run = imported(read_runs(command)[0])
    parsed = config_from_mapping(yaml.safe_load(run.text), "rlhf")
    return run, parsed.objective.options.model_dump()


def test_ppo_recipes_use_reward_model_as_critic() -> None:
    """Recipes of PPO are imported with the reward model as the critic."""
    run, objective = carried(
        "trl ppo --model_name_or_path tokenizer --sft_model_path policy --reward_model_path judge --dataset_name d/p "
        "--num_mini_batches 2 --num_ppo_epochs 3 --response_length 64 --missing_eos_penalty 1.0 --kl_estimator k3 "
        "--stop_token eos --total_episodes 1000"
    )
    assert [each.key for each in run.lost] == ["total_episodes"]
    assert yaml.safe_load(run.text)["model"]["path"] == "policy"
    expected = {"reward_model": ("judge",), "critic_model": "judge", "num_mini_batches": 2, "num_ppo_epochs": 3}
    expected |= {"max_completion_length": 64, "missing_eos_penalty": 1.0, "kl_estimator": "k3", "temperature": 0.7}
    expected |= {"num_generations": 1, "kl_coef": 0.05, "cliprange": 0.2, "cliprange_value": 0.2, "vf_coef": 0.1}
    assert objective.items() >= expected.items()
    run, objective = carried("swift rlhf --rlhf_type ppo --model m --dataset d.jsonl --reward_model judge --lam 0.9")
    assert not run.lost
    assert objective.items() >= {"critic_model": "judge", "lam": 0.9, "temperature": 0.9}.items()
    assert [each.key for each in carried("trl ppo --model_name_or_path m --dataset_name d/p")[0].lost] == [
        "reward_model_path"
    ]


def test_axolotl_grpo_recipe_maps_trl_section(tmp_path: Path) -> None:
    """A recipe of GRPO for Axolotl has the settings of its section for TRL."""
    file = tmp_path / "grpo.yaml"
    file.write_text(
        "base_model: m\nrl: grpo\ndatasets: [{path: d/p, type: chat_template}]\nmicro_batch_size: 4\n"
        "trl: {beta: 0.02, num_generations: 4, reward_funcs: [accuracy, mine.shape], use_vllm: true, epsilon: 0.1,\n"
        "  max_completion_length: 96, vllm_server_host: 10.0.0.7, vllm_server_port: 8100, sync_ref_model: true}\n"
    )
    run, objective = carried(str(file))
    assert [each.key for each in run.lost] == ["reward_funcs"]
    expected = {"beta": 0.02, "num_generations": 4, "epsilon": 0.1, "max_completion_length": 96, "loss_type": "dapo"}
    expected |= {"reward_funcs": ("accuracy",), "rollout_engine": "http://10.0.0.7:8100"}
    expected |= {"sync_ref_model": True, "ref_model_mixup_alpha": 0.9, "ref_model_sync_steps": 64}
    assert objective.items() >= expected.items()


def test_every_loss_that_core_takes_for_one_of_grpo_is_one() -> None:
    for loss in LOSSES:
        parsed = parse(["--rlhf_type", "grpo", "--loss_type", loss.upper()], "rlhf", complete=False)
        assert parsed.config.objective.model_dump()["loss_type"] == loss


def test_a_recipe_as_people_type_it_is_typed_by_the_options() -> None:
    line = "--num_generations 16 --epsilon_high 0.28 --reward_funcs accuracy soft_overlong --reward_weights 1 0.5 "
    line += "--soft_cache_length 64 --mask_truncated_completions true --scale_rewards False --beta 0 --top_k -1 "
    line += "--rollout_importance_sampling_mode token_truncate --stop_words </answer> --dynamic_sample true"
    objective = parse(["--rlhf_type", "grpo", *line.split()], "rlhf", complete=False).objective.options.model_dump()
    expected = {"num_generations": 16, "epsilon_high": 0.28, "reward_funcs": ("accuracy", "soft_overlong")}
    expected |= {"reward_weights": (1.0, 0.5), "overlong_filter": True, "scale_rewards": "none", "beta": 0.0}
    expected |= {"top_k": 0, "stop_words": ("</answer>",), "dynamic_sample": True, "soft_cache_length": 64}
    assert objective.items() >= expected.items()
