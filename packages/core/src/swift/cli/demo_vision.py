"""`swift demo --task vision`: a tiny model learns to read images that the demo draws."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

from swift.terminal import print_line

if TYPE_CHECKING:
    from collections.abc import Callable

    from swift.infer.answers import ChatEngine
    from swift.infer.questions import Question

STEPS = 300
DRAWINGS = 8
"""Of each number to learn from."""
GOAL, CHANCE = 0.95, 0.05
"""Answers that must be right, and that may be right where each image is another one's."""


def demo_vision(out: Path, title: Callable[[str], None]) -> int:
    """Train a model with a tower on drawn numbers, export it, and ask about others; return the exit code."""
    started = time.monotonic()
    from swift.demo.images import shuffled, write_image_rows, write_lines
    from swift.demo.vision_model import write_vision_model

    title("1. A tiny model of Qwen2.5-VL's architecture, and images: read the number aloud")
    model = write_vision_model(out / "model")
    learned, asked = write_image_rows(out / "images", drawings=DRAWINGS)
    train_file, test_file = write_lines(out / "train.jsonl", learned), write_lines(out / "test.jsonl", asked)
    shuffled_file = write_lines(out / "shuffled.jsonl", shuffled(asked))
    print_line(f"  {model}: random weights, tower and all")
    print_line(f"  {train_file}: {len(learned)} images of 800 numbers; {test_file}: {len(asked)} other numbers")
    print_line(f"  {train_file.read_text(encoding='utf-8').splitlines()[0]}")

    command = (
        f"sft --model {model} --dataset {train_file} --train_type full --freeze_vit false --freeze_aligner false "
        f"--max_length 128 --per_device_train_batch_size 32 --max_steps {STEPS} --learning_rate 1e-3 --adam_beta2 0.99 "
        f"--weight_decay 0 --logging_steps 50 --backend.cpu_threads 1 --output_dir {out / 'runs'}"
    )
    title(f"2. Train all of it\n   $ swift {command}")
    checkpoint = _train(command)

    exported = out / "exported"
    title(
        "3. Export, and compare what was written with what was trained\n"
        f"   $ swift export {checkpoint} --to hf --out {exported}"
    )
    _export(checkpoint, exported)

    title(f"4. Show it images that it has never seen\n   $ swift eval {exported} --dataset {test_file}")
    chat_engine = _chat_engine(exported)
    try:
        right = _ask(chat_engine, test_file, shown=5)
        title(
            f"5. The same questions, each with the image of another one\n"
            f"   $ swift eval {exported} --dataset {shuffled_file}"
        )
        blind = _ask(chat_engine, shuffled_file, shown=0)
    finally:
        chat_engine.close()

    print_line(
        f"\nAccuracy on held-out images: {right:.0%}; with images shuffled: {blind:.0%}. "
        f"All of it took {time.monotonic() - started:.0f} s."
    )
    if right < GOAL or blind > CHANCE:
        print_line(f"This demo should reach {GOAL:.0%}, and at most {CHANCE:.0%} with images shuffled.")
        return 1
    print_line(f"Curves of the run: {checkpoint.parent / 'report.html'}")
    print_line("\nNext:")
    print_line(f"  swift chat {exported}      and in it: /image {out / 'images' / Path(asked[0]['images'][0]).name}")
    print_line("  swift sft --model Qwen/Qwen2.5-VL-3B-Instruct --dataset your_pictures.jsonl --max_pixels 401408")
    return 0


def _train(command: str) -> Path:
    """Return the last checkpoint of a run."""
    from swift.config.parse import parse
    from swift.train.loop import train

    command_name, *words = command.split()
    done = train(parse(words, command_name))
    assert done.last_checkpoint is not None
    return done.last_checkpoint


def _export(checkpoint: Path, exported: Path) -> None:
    from swift.config.sections import ExportSection
    from swift.export.run import export_checkpoint

    export_checkpoint(checkpoint, to="hf", options=ExportSection(to="hf", out=exported), say=_indented)


def _chat_engine(exported: Path) -> ChatEngine:
    from swift.infer.chat_engine import open_chat_engine
    from swift.infer.options import ModelOptions

    return open_chat_engine(ModelOptions(model=str(exported)), batch_size=50, say=_indented)


def _ask(chat_engine: ChatEngine, file: Path, *, shown: int) -> float:
    """Return the part of a file's questions that are answered rightly."""
    from swift.contracts import Sampling
    from swift.infer.batch import answers
    from swift.infer.questions import read_questions

    questions = read_questions([str(file)], {})
    texts = answers(chat_engine, questions, Sampling(max_new_tokens=48))
    for asked, text in list(zip(questions, texts, strict=True))[:shown]:
        print_line(f"  {_image_of(asked)}  →  {text}")
    right = sum(text == asked.expected for asked, text in zip(questions, texts, strict=True))
    print_line(f"  {right} of {len(questions)} are right")
    return right / len(questions)


def _image_of(asked: Question) -> str:
    from swift.data.conversation import medium_in, parts_of

    (image,) = (held for part in parts_of(asked.messages[-1]) if (held := medium_in(part)) is not None)
    return Path(image.path).name


def _indented(line: str) -> None:
    print_line(f"  {line}")
