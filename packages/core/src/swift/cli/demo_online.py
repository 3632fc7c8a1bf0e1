"""`swift demo --task grpo`: a model learns from a reward, before the user's eyes."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING

from swift.terminal import print_line

if TYPE_CHECKING:
    from collections.abc import Callable

GOAL = 0.9
_REWARD = '''def digits(completions, **columns):
    """The part of each answer that is digits."""
    return [sum(letter.isdigit() for letter in text) / max(1, len(text)) for text in completions]
'''
_LETTERS = "abcdefghijklmnopqrstuvwxyz"


def demo_online(out: Path, title: Callable[[str], None]) -> int:
    """Let a model of random weights answer prompts, reward what is asked for, and return the exit code."""
    started = time.monotonic()
    from swift.config.parse import parse
    from swift.demo.model import write_model
    from swift.train.loop import train

    title("1. A tiny model with random weights, prompts, and a reward: an answer of nothing but digits")
    model = write_model(out / "model", hidden=64)
    reward, prompts, held_out = out / "reward.py", out / "prompts.jsonl", out / "held_out.jsonl"
    reward.write_text(_REWARD, encoding="utf-8")
    pairs = [one + other for one in _LETTERS for other in _LETTERS]
    for file, chosen in ((prompts, pairs[::2]), (held_out, pairs[1:100:2])):
        rows = [{"messages": [{"role": "user", "content": f"Say {pair} in digits."}]} for pair in chosen]
        file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    print_line("\n".join(f"  {line}" for line in _REWARD.splitlines()))

    command = (
        f"rlhf --rlhf_type grpo --model {model} --dataset {prompts} --val_dataset {held_out} "
        f"--reward_funcs {reward}:digits --num_generations 8 --max_completion_length 12 --train_type full "
        "--per_device_train_batch_size 64 --max_steps 30 --learning_rate 6e-3 --warmup_steps 2 --eval_on_start true "
        f"--eval_strategy steps --eval_steps 15 --eval_temperature 1 --logging_steps 5 --backend.cpu_threads 1 "
        f"--output_dir {out / 'runs'}"
    )
    title(f"2. Answer, reward, learn, and answer again\n   $ swift {command}")
    verb, *words = command.split()
    done = train(parse(words, verb))
    assert done.last_checkpoint is not None
    folder = done.last_checkpoint.parent

    title("3. What it said at first, and at last")
    rounds = sorted((folder / "rollouts").glob("round-*.jsonl"))
    for name, file in (("first", rounds[0]), ("last", rounds[-1])):
        texts = [json.loads(line)["text"] for line in file.read_text(encoding="utf-8").splitlines()[1:4]]
        print_line(f"  {name}: {'   '.join(map(repr, texts))}")
    lines = map(json.loads, (folder / "logging.jsonl").read_text(encoding="utf-8").splitlines())
    found = [float(line["eval_reward"]) for line in lines if "eval_reward" in line]
    print_line(
        f"\nReward on held-out prompts: {found[0]:.2f} before, {found[-1]:.2f} after. "
        f"All of it took {time.monotonic() - started:.0f} s."
    )
    if found[-1] < GOAL:
        print_line(f"That is less than the {GOAL} that this demo should reach.")
        return 1
    print_line(f"Every answer with its reward: {folder / 'rollouts' / 'round-000000.html'}")
    return 0
