"""Plans of runs that learn from answers of their own: every model that is held, and phases that never add up."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
from commands import typed

LLAMA = 8.03e9
GRPO = ["plan", "llama-3.1-8b", "--gpus", "8xH100", "--kind", "rlhf", "--backend", "fsdp", "--max_length", "1024",
        "--max_completion_length", "2048"]  # fmt: skip


def _plan(folder: Path, *words: str) -> dict[str, Any]:
    """Return the first plan of a question."""
    ended = typed([*GRPO, *words, "--json"], folder)
    assert ended.code == 0, ended.output
    found = json.loads(ended.output[ended.output.index("{") :])
    assert found["length"] == 3072
    plan: dict[str, Any] = found["fits"][0]
    assert sum(plan["memory_bytes"].values()) == pytest.approx(plan["peak_bytes"], abs=20)
    return plan


def _of(plan: dict[str, Any], name: str) -> float:
    return float(plan["memory_bytes"].get(name, 0))


def test_reference_and_engine_are_counted_as_they_are_held(tmp_path: Path) -> None:
    words = ["--rlhf_type", "grpo", "--train_type", "full", "--beta", "0.1"]
    plan = _plan(tmp_path, *words, "--parallel.dp_shard", "8", "--torch_dtype", "bfloat16")
    assert _of(plan, "reference: weights") == pytest.approx(2 * LLAMA / 8, rel=0.01)  # cut as the policy is
    assert _of(plan, "rollout engine") == pytest.approx(2 * LLAMA, rel=0.01)  # whole
    assert {"generation", "scoring"} <= set(plan["seconds"])
    served = _plan(tmp_path, *words, "--rollout_engine", "http://127.0.0.1:8000")
    assert not _of(served, "rollout engine")
    assert "generation" not in served["seconds"]  # by devices that are not the run's


@pytest.mark.full
def test_new_adapters_have_their_own_model_for_a_reference(tmp_path: Path) -> None:
    plan = _plan(tmp_path, "--rlhf_type", "grpo", "--train_type", "lora", "--beta", "0.1")
    assert not [name for name in plan["memory_bytes"] if name.startswith("reference")]
    alone = _plan(tmp_path, "--rlhf_type", "grpo", "--train_type", "lora", *shlex.split("--beta 0 --num_iterations 1"))
    assert plan["seconds"]["scoring"] > alone["seconds"].get("scoring", 0.0)


@pytest.mark.full
def test_reused_completions_are_generated_half_as_often(tmp_path: Path) -> None:
    words = ["--rlhf_type", "grpo", "--train_type", "lora", "--rollout_batch_size", "1", "--global_batch_size", "64"]
    once, twice = (_plan(tmp_path, *words, "--num_iterations", each) for each in ("1", "2"))
    assert twice["seconds"]["generation"] == pytest.approx(once["seconds"]["generation"] / 2)


def test_phases_do_not_add_up(tmp_path: Path) -> None:
    words = ["--rlhf_type", "grpo", "--train_type", "lora", "--gradient_checkpointing", "true"]
    words += ["--per_device_train_batch_size", "1", "--global_batch_size", "1024"]
    small = _plan(tmp_path, *words, "--rollout_batch_size", "1")
    large = _plan(tmp_path, *words, "--rollout_batch_size", "64")
    assert not _of(small, "KV cache of rollouts")
    assert _of(small, "activations")
    # 2 × 32 layers × 1,024 keys × 2 bytes a token, and what drawing from 128,256 logits takes.
    assert _of(large, "KV cache of rollouts") == pytest.approx(64 * (3072 * 131072 + 40 * 128256), rel=0.001)
    assert not _of(large, "activations")
    assert large["peak_bytes"] < small["peak_bytes"] + _of(large, "KV cache of rollouts")


@pytest.mark.full
def test_critic_is_trained_with_policy(tmp_path: Path) -> None:
    words = ["--rlhf_type", "ppo", "--train_type", "full", "--reward_funcs", "length", "--parallel.dp_shard", "8"]
    plan = _plan(tmp_path, *words, "--torch_dtype", "bfloat16")
    head = 2 * 128256 * 4096 * 2 / 8  # that a model of values has no use for, in two copies' worth of fp32
    assert _of(plan, "critic: optimizer") == pytest.approx(8 * LLAMA / 8 - 2 * head, rel=0.01)
    assert plan["seconds"]["steps of other models"] > 0
    shared = _plan(tmp_path, *words, "--critic", "shared")
    assert not [name for name in shared["memory_bytes"] if name.startswith("critic")]


@pytest.mark.full
def test_a_teacher_is_counted_with_its_own_size(tmp_path: Path) -> None:
    words = ["--rlhf_type", "gkd", "--train_type", "lora", "--lmbda", "1", "--teacher_model", "qwen3-14b"]
    held = _plan(tmp_path, *words, "--teacher_as_role", "true", "--parallel.dp_shard", "8")
    assert _of(held, "teacher: weights") == pytest.approx(2 * 14.8e9 / 8, rel=0.02)
    engine = _plan(tmp_path, *words)
    assert _of(engine, "teacher") == pytest.approx(2 * 14.8e9, rel=0.02)
