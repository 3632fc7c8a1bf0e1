"""A toy task that takes minutes, beside a control in which there is nothing to be learned: `make conformance`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from commands import typed
from kit_cases import WHOLE_KIT

from swift.cli import demo_online

pytestmark = pytest.mark.skipif(not WHOLE_KIT, reason="takes minutes: make conformance")

CONTROL = '''

def noise(completions, **columns):
    """0 or 1 by the letters of an answer, whatever was asked."""
    return [sum(map(ord, text)) % 2 for text in completions]


digits.batched = noise.batched = True
'''
PPO = (
    "--critic shared --vf_coef 0.5 --kl_coef 0 --num_ppo_epochs 2 --max_completion_length 32 --train_type full "
    "--per_device_train_batch_size 128 --padding_free true --weight_decay 0 --learning_rate 5e-4 "
    "--lr_scheduler_type cosine --eval_on_start true --eval_strategy steps --eval_steps 25 --eval_temperature 1 "
    "--num_generations_eval 4 --backend.cpu_threads 1"
)


@pytest.fixture(scope="module")
def talker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of `swift demo --task grpo`, whose model goes on talking after the number seven times in ten."""
    out = tmp_path_factory.mktemp("demo")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(demo_online, "REWARD_STEPS", 1)
        patch.setattr(demo_online, "GOAL", 0.0)
        ended = typed(["demo", "--task", "grpo", "--out", str(out / "demo")], out)
    assert ended.code == 0, ended.output
    file = out / "demo" / "reward.py"
    file.write_text(file.read_text() + CONTROL)
    return out / "demo"


@pytest.mark.full
@pytest.mark.parametrize(("reward", "steps", "least", "most"), [("digits", 50, 0.9, 1.0), ("noise", 25, 0.0, 0.5)])
def test_ppo_says_numbers_it_was_never_rewarded_for_and_learns_none_from_noise(
    talker: Path, tmp_path: Path, reward: str, steps: int, least: float, most: float
) -> None:
    (learned,) = (talker / "runs").glob(f"*/examples/checkpoint-{demo_online.EXAMPLE_STEPS}")
    told = (
        f"ppo --model {learned} --dataset {talker}/prompts.jsonl --val_dataset {talker}/held_out.jsonl --reward_funcs "
        f"{talker}/reward.py:digits {talker}/reward.py:noise --reward_weights {int(reward == 'digits')} "
        f"{int(reward == 'noise')} --max_steps {steps} --output_dir {tmp_path} --run_name {reward} {PPO}"
    )
    ended = typed(told.split(), tmp_path)
    assert ended.code == 0, ended.output
    (file,) = tmp_path.glob(f"*/{reward}/logging.jsonl")
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    right = [line["eval_rewards/digits"] for line in lines if "eval_reward" in line]
    assert 0.2 < right[0] < 0.4
    assert least <= right[-1] <= most
