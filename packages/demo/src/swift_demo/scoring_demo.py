"""`swift demo --task ...`: a model that scores, evaluated before and after training."""

from __future__ import annotations

import json
import time
from pathlib import Path

from swift.terminal import print_line
from swift_demo.steps import logged, print_title, train_with


def demo_scoring(task: str, out: Path) -> int:
    """Train the model of a task, and evaluate it on held-out rows before and after; return the exit code."""
    started = time.monotonic()
    from swift_demo.model import write_model
    from swift_demo.scoring import DEMOS
    from swift_demo.task import write_rows

    demo = DEMOS[task]
    print_title(f"1. A tiny model with random weights, and a task: {demo.task}")
    learned, held_out = demo.rows()
    model = write_model(out / "model", spread=demo.spread)
    train_file, test_file = write_rows(out / "train.jsonl", learned), write_rows(out / "test.jsonl", held_out)
    print_line(f"  {train_file}: {len(learned)} rows to learn from; {test_file}: {len(held_out)} others to evaluate on")
    print_line(f"  {json.dumps(held_out[0])}")

    command = (
        f"{demo.command} --model {model} --dataset {train_file} --val_dataset {test_file} {demo.flags} "
        f"--train_type full --max_length 256 --warmup_ratio 0.1 --eval_on_start true --eval_strategy steps "
        f"--eval_steps 50 --logging_steps 25 --backend.cpu_threads 1 --output_dir {out / 'runs'}"
    )
    print_title(f"2. Evaluate it, train it, and evaluate it again\n   $ swift {command}")
    checkpoint = train_with(command)

    found = logged(checkpoint.parent, f"eval_{demo.metric}")[-1]
    print_line(f"\n{demo.metric} on held-out rows: {found:.2f}. Total time: {time.monotonic() - started:.0f} s.")
    if found < demo.goal:
        print_line(f"The demo failed: it should reach {demo.goal}.")
        return 1
    print_line(f"Next: swift export {checkpoint} --to hf --out {out / 'exported'}")
    return 0
