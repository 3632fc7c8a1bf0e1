"""`swift demo --task vision`: a tiny model learns to read pictures that the demo draws."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

from swift.terminal import print_line

if TYPE_CHECKING:
    from collections.abc import Callable

    from swift.infer.answers import Speaker
    from swift.infer.questions import Question

STEPS = 300
DRAWINGS = 8
"""Of each number to learn from."""
GOAL, CHANCE = 0.95, 0.05
"""Answers that must be right, and that may be right where each picture is another one's."""


def demo_vision(out: Path, title: Callable[[str], None]) -> int:
    """Train a model with a tower on drawn numbers, export it, and ask about others; return the exit code."""
    started = time.monotonic()
    from swift.demo.pictures import shuffled, write_lines, write_picture_rows
    from swift.demo.vision_model import write_vision_model

    title("1. A tiny model of Qwen2.5-VL's architecture, and pictures: read the number aloud")
    model = write_vision_model(out / "model")
    learned, asked = write_picture_rows(out / "pictures", drawings=DRAWINGS)
    train_file, test_file = write_lines(out / "train.jsonl", learned), write_lines(out / "test.jsonl", asked)
    shuffled_file = write_lines(out / "shuffled.jsonl", shuffled(asked))
    print_line(f"  {model}: random weights, tower and all")
    print_line(f"  {train_file}: {len(learned)} pictures of 800 numbers; {test_file}: {len(asked)} other numbers")
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

    title(f"4. Show it pictures that it has never seen\n   $ swift eval {exported} --dataset {test_file}")
    speaker = _speaker(exported)
    try:
        right = _ask(speaker, test_file, shown=5)
        title(
            f"5. The same questions, each with the picture of another one\n"
            f"   $ swift eval {exported} --dataset {shuffled_file}"
        )
        blind = _ask(speaker, shuffled_file, shown=0)
    finally:
        speaker.close()

    print_line(
        f"\nAccuracy on held-out pictures: {right:.0%}; with pictures shuffled: {blind:.0%}. "
        f"All of it took {time.monotonic() - started:.0f} s."
    )
    if right < GOAL or blind > CHANCE:
        print_line(f"This demo should reach {GOAL:.0%}, and at most {CHANCE:.0%} with pictures shuffled.")
        return 1
    print_line(f"Curves of the run: {checkpoint.parent / 'report.html'}")
    print_line("\nNext:")
    print_line(f"  swift chat {exported}      and in it: /image {out / 'pictures' / Path(asked[0]['images'][0]).name}")
    print_line("  swift sft --model Qwen/Qwen2.5-VL-3B-Instruct --dataset your_pictures.jsonl --max_pixels 401408")
    return 0


def _train(command: str) -> Path:
    """Return the last checkpoint of a run."""
    from swift.config.parse import parse
    from swift.train.loop import train

    verb, *words = command.split()
    done = train(parse(words, verb))
    assert done.last_checkpoint is not None
    return done.last_checkpoint


def _export(checkpoint: Path, exported: Path) -> None:
    from swift.config.sections import ExportSection
    from swift.export.run import export_checkpoint

    export_checkpoint(checkpoint, to="hf", options=ExportSection(to="hf", out=exported), say=_indented)


def _speaker(exported: Path) -> Speaker:
    from swift.infer.options import ModelOptions
    from swift.infer.speaker import open_speaker

    return open_speaker(ModelOptions(model=str(exported)), batch_size=50, say=_indented)


def _ask(speaker: Speaker, file: Path, *, shown: int) -> float:
    """Return the part of a file's questions that are answered rightly."""
    from swift.contracts import Sampling
    from swift.infer.batch import answers
    from swift.infer.questions import read_questions

    questions = read_questions([str(file)], {})
    texts = answers(speaker, questions, Sampling(max_new_tokens=48))
    for asked, text in list(zip(questions, texts, strict=True))[:shown]:
        print_line(f"  {_picture_of(asked)}  →  {text}")
    right = sum(text == asked.expected for asked, text in zip(questions, texts, strict=True))
    print_line(f"  {right} of {len(questions)} are right")
    return right / len(questions)


def _picture_of(asked: Question) -> str:
    from swift.data.conversation import medium_in, parts_of

    (picture,) = (held for part in parts_of(asked.messages[-1]) if (held := medium_in(part)) is not None)
    return Path(picture.path).name


def _indented(line: str) -> None:
    print_line(f"  {line}")
