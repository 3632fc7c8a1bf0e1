"""GRPO recipes of TRL and ms-swift: imported settings, explicit defaults, and remarks."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from any_grpo import any_grpo

from swift.cli.imported_run import ImportedRun, imported, read_runs
from swift.parsing import config_from_mapping

__all__ = ["any_grpo"]

pytestmark = pytest.mark.usefixtures("any_grpo")


def made(command: str) -> tuple[ImportedRun, dict[str, Any]]:
    (recipe,) = read_runs(command)
    run = imported(recipe)
    content: dict[str, Any] = yaml.safe_load(run.text)
    return run, content


def settled(content: dict[str, Any]) -> dict[str, Any]:
    """The objective of a run of the file, as the parser settles it."""
    return config_from_mapping(content, "rlhf").config.objective.model_dump()


def lost(run: ImportedRun) -> dict[str, Any]:
    return {each.key: each.value for each in run.lost}


TRL = "trl grpo --model_name_or_path m --dataset_name d/p"
MS_SWIFT = "swift rlhf --rlhf_type grpo --model m --dataset d.jsonl"


def test_trl_grpo_recipe_is_imported() -> None:
    run, content = made(
        f"{TRL} --reward_funcs accuracy_reward get_soft_overlong_punishment --reward_weights 1 0.5 --use_vllm "
        "--vllm_mode server --vllm_server_host 0.0.0.0 --num_generations 16 --gradient_accumulation_steps 4 "
        "--steps_per_generation 8 --loss_type dr_grpo --log_completions --mask_truncated_completions"
    )
    assert lost(run) == {}
    assert "swift rollout MODEL" in run.text
    assert run.command == "swift rlhf run.yaml"
    objective = settled(content)
    assert list(objective["reward_funcs"]) == ["accuracy", "soft_overlong"]
    expected = {"rollout_engine": "http://127.0.0.1:8000", "steps_per_generation": 2, "num_generations": 16}
    expected |= {"loss_type": "dr_grpo", "beta": 0.0, "temperature": 1.0, "max_completion_length": 512}
    expected |= {"rollout_importance_sampling_mode": "sequence_mask", "rollout_importance_sampling_threshold": 3.0}
    assert objective.items() >= expected.items()
    assert str(objective["overlong_filter"]).lower() == "true"
    assert content["train"]["micro_batch"] == 8
    assert content["optim"]["lr"] == 1e-6


def test_trl_recipe_without_vllm_has_no_correction() -> None:
    """A recipe of TRL without vLLM corrects nothing as TRL does."""
    _, content = made(f"{TRL} --reward_funcs accuracy_reward")
    assert content["objective"]["rollout_importance_sampling_mode"] == "off"
    _, content = made(f"{TRL} --reward_funcs accuracy_reward --use_vllm --vllm_importance_sampling_correction false")
    assert settled(content)["rollout_importance_sampling_mode"] == "off"


def test_package_reward_function_is_reported_as_lost() -> None:
    """A reward that is a function of a package is reported as lost."""
    run, content = made(f"{TRL} --reward_funcs accuracy_reward my_lib.rewards.shape --reward_weights 1 2")
    assert lost(run).keys() == {"reward_funcs", "reward_weights"}
    assert lost(run)["reward_funcs"] == "my_lib.rewards.shape"
    assert content["objective"]["reward_funcs"] == ["accuracy"]
    assert "reward_funcs" in lost(made(TRL)[0])


def test_trl_recipe_file_sets_prompts_and_system(tmp_path: Any) -> None:
    file = tmp_path / "grpo" / "config.yaml"
    file.parent.mkdir()
    file.write_text(
        "model_name_or_path: m\ndataset_name: d/p\ndataset_prompt_column: problem\nsystem_prompt: Think.\n"
        "reward_funcs: [accuracy, format]\nnum_generations: 4\noutput_dir: data/grpo\n"
    )
    run, content = made(str(file))
    assert lost(run) == {}
    assert content["data"] == {"train": ["d/p"], "system": "Think.", "columns": {"problem": "query"}}
    assert content["objective"]["reward_funcs"] == ["accuracy", "format"]


def test_ms_swift_grpo_recipe_keeps_flags_and_defaults() -> None:
    run, content = made(
        f"{MS_SWIFT} --external_plugins plugin.py --reward_funcs external_math format --use_vllm true "
        "--vllm_mode colocate --vllm_gpu_memory_utilization 0.5 --sleep_level 1 --async_generate true"
    )
    assert lost(run) == {}
    assert run.command == "swift rlhf run.yaml --external_plugins plugin.py"
    objective = settled(content)
    expected = {"rollout_engine": "vllm", "rollout_options": {"gpu_memory_utilization": 0.5}, "rollout_staleness": 1}
    expected |= {"beta": 0.04, "temperature": 0.9, "loss_type": "grpo", "rollout_importance_sampling_mode": "off"}
    assert objective.items() >= expected.items()
    assert content["train"]["accumulation"] == 1
    assert content["data"]["truncation"] == "left"


@pytest.mark.parametrize(
    ("estimator", "scale"), [("grpo", "group"), ("rloo", "none"), ("reinforce_plus_plus", "batch")]
)
def test_advantage_scale_depends_on_estimator(estimator: str, scale: str) -> None:
    """What ms-swift divides rewards by depends on the estimator."""
    _, content = made(f"{MS_SWIFT} --reward_funcs format --advantage_estimator {estimator}")
    assert content["objective"]["scale_rewards"] == scale
    assert content["objective"].get("kl_in_reward", False) == (estimator != "grpo")


def test_unsupported_grpo_settings_are_lost() -> None:
    run, _ = made(f"{MS_SWIFT} --reward_funcs format --multi_turn_scheduler math_tip --loss_type fipo")
    assert lost(run).keys() == {"loss_type"}
