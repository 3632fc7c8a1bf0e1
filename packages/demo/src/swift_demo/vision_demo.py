"""`swift demo --task vision`: a tiny model that learns to read numbers in generated images."""

from __future__ import annotations

import time
from pathlib import Path

from swift.terminal import print_line
from swift_demo.steps import accuracy, export, open_chat, print_title, train_with

STEPS = 300
DRAWINGS = 8
"""Images of each number to learn from."""

GOAL, CHANCE = 0.95, 0.05
"""Minimum accuracy, and maximum accuracy with shuffled images."""


def demo_vision(out: Path) -> int:
    """Train a vision-language model on images of numbers, export it, and evaluate it; return the exit code."""
    started = time.monotonic()
    from swift_demo.images import shuffled, write_image_rows
    from swift_demo.task import write_rows
    from swift_demo.vision_model import write_vision_model

    print_title("1. A tiny model of Qwen2.5-VL's architecture, and images: read the number aloud")
    model = write_vision_model(out / "model")
    learned, held_out = write_image_rows(out / "images", variants=DRAWINGS)
    train_file, test_file = write_rows(out / "train.jsonl", learned), write_rows(out / "test.jsonl", held_out)
    shuffled_file = write_rows(out / "shuffled.jsonl", shuffled(held_out))
    print_line(f"  {model}: random weights, including the vision encoder")
    print_line(f"  {train_file}: {len(learned)} images of 800 numbers; {test_file}: {len(held_out)} other numbers")
    print_line(f"  {train_file.read_text(encoding='utf-8').splitlines()[0]}")

    command = (
        f"sft --model {model} --dataset {train_file} --train_type full --freeze_vit false --freeze_aligner false "
        f"--max_length 128 --per_device_train_batch_size 32 --max_steps {STEPS} --learning_rate 1e-3 --adam_beta2 0.99 "
        f"--weight_decay 0 --logging_steps 50 --backend.cpu_threads 1 --output_dir {out / 'runs'}"
    )
    print_title(f"2. Train all of it\n   $ swift {command}")
    checkpoint = train_with(command)

    exported = out / "exported"
    print_title(
        "3. Export, and compare what was written with what was trained\n"
        f"   $ swift export {checkpoint} --to hf --out {exported}"
    )
    export(checkpoint, exported)

    print_title(f"4. Evaluate on images that it has never seen\n   $ swift eval {exported} --dataset {test_file}")
    chat_engine = open_chat(str(exported))
    try:
        right = accuracy(chat_engine, test_file, [Path(row["images"][0]).name for row in held_out[:5]])
        print_title(f"5. Evaluate with shuffled images\n   $ swift eval {exported} --dataset {shuffled_file}")
        blind = accuracy(chat_engine, shuffled_file)
    finally:
        chat_engine.close()

    print_line(
        f"\nAccuracy on held-out images: {right:.0%}; with images shuffled: {blind:.0%}. "
        f"Total time: {time.monotonic() - started:.0f} s."
    )
    if right < GOAL or blind > CHANCE:
        print_line(f"The demo failed: it should reach {GOAL:.0%}, and at most {CHANCE:.0%} with shuffled images.")
        return 1
    print_line(f"Curves of the run: {checkpoint.parent / 'report.html'}")
    print_line("\nNext:")
    print_line(f"  swift chat {exported}      and in it: /image {out / 'images' / Path(held_out[0]['images'][0]).name}")
    print_line("  swift sft --model Qwen/Qwen2.5-VL-3B-Instruct --dataset your_images.jsonl --max_pixels 401408")
    return 0
