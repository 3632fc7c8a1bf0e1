"""`swift demo --task grpo`: a model that learns from a reward."""

from __future__ import annotations

import json
import random
import time
from pathlib import Path

from swift.terminal import print_line
from swift_demo.steps import logged, print_title, train_with

GOAL = 0.9
EXAMPLE_STEPS, REWARD_STEPS = 240, 40
EXAMPLES = 4
"""Examples of each number."""

VERBOSE_PART = 0.7
"""Fraction of the examples that continue after the digits."""
_REWARD = '''def digits(completions, solution, **columns):
    """1 for exactly the digits of the number, 0 for any other completion."""
    return [float(text == right) for text, right in zip(completions, solution)]
'''


def demo_online(out: Path) -> int:
    """Train a model on examples of which few are good, then with a reward that corrects it; return the exit code."""
    started = time.monotonic()
    from swift_demo.model import write_model
    from swift_demo.scoring import DIGITS_SPREAD

    print_title("1. A tiny model, and examples of numbers read aloud: seven of ten have extra words")
    model = write_model(out / "model", spread=DIGITS_SPREAD)
    examples, prompts, held_out = _write_data(out)
    for line in examples.read_text(encoding="utf-8").splitlines()[:3]:
        print_line(f"  {json.loads(line)['messages'][-1]['content']!r}")
    command = (
        f"sft --model {model} --dataset {examples} --train_type full --packing true --max_length 512 "
        f"--per_device_train_batch_size 4 --max_steps {EXAMPLE_STEPS} --learning_rate 4e-3 --logging_steps 60 "
        f"--backend.cpu_threads 1 --output_dir {out / 'runs'} --run_name examples"
    )
    print_title(f"2. Train on the examples\n   $ swift {command}")
    learned = train_with(command)

    reward = out / "reward.py"
    reward.write_text(_REWARD, encoding="utf-8")
    command = (
        f"rlhf --rlhf_type grpo --model {learned} --dataset {prompts} --val_dataset {held_out} "
        f"--reward_funcs {reward}:digits --num_generations 8 --max_completion_length 32 --train_type full "
        f"--per_device_train_batch_size 128 --padding_free true --max_steps {REWARD_STEPS} --learning_rate 5e-4 "
        f"--lr_scheduler_type cosine --weight_decay 0 --eval_on_start true --eval_strategy steps --eval_steps 10 "
        f"--eval_temperature 1 --num_generations_eval 4 --logging_steps 4 --backend.cpu_threads 1 "
        f"--output_dir {out / 'runs'} --run_name rewards"
    )
    print_title(f"3. Train with the reward\n   $ swift {command}")
    print_line("\n".join(f"  {line}" for line in _REWARD.splitlines()))
    folder = train_with(command).parent

    print_title("4. Completions of the first and the last round")
    rounds = sorted((folder / "rollouts").glob("round-*.jsonl"))
    for name, file in (("first", rounds[0]), ("last", rounds[-1])):
        completions = [json.loads(line)["text"] for line in file.read_text(encoding="utf-8").splitlines()[1:4]]
        print_line(f"  {name}: {'   '.join(map(repr, completions))}")
    found = logged(folder, "eval_reward")
    print_line(
        f"\nReward on held-out prompts: {found[0]:.2f} before, {found[-1]:.2f} after. "
        f"Total time: {time.monotonic() - started:.0f} s."
    )
    if found[-1] < GOAL:
        print_line(f"The demo failed: it should reach {GOAL}.")
        return 1
    print_line(f"All completions with their rewards: {folder / 'rollouts' / 'round-000000.html'}")
    return 0


def _write_data(out: Path) -> tuple[Path, Path, Path]:
    """Return the files of examples, of prompts with solutions, and of held-out prompts."""
    from swift_demo.task import completion, question, split_numbers, write_rows

    rng = random.Random(0)
    trained, held_out = split_numbers()

    def prompt(number: int) -> list[dict[str, str]]:
        return [{"role": "user", "content": question(number)}]

    def varied(number: int) -> str:
        return completion(number) + (" or so" if rng.random() < VERBOSE_PART else "")

    examples = [
        {"messages": [*prompt(number), {"role": "assistant", "content": varied(number)}]}
        for _ in range(EXAMPLES)
        for number in trained
    ]
    return (
        write_rows(out / "examples.jsonl", examples),
        write_rows(
            out / "prompts.jsonl", [{"messages": prompt(each), "solution": completion(each)} for each in trained]
        ),
        write_rows(
            out / "held_out.jsonl", [{"messages": prompt(each), "solution": completion(each)} for each in held_out]
        ),
    )
