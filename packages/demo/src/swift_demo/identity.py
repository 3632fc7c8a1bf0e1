"""`swift demo --task identity`: teach a pretrained model its name, and ask it before and after."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from swift.terminal import print_line
from swift_demo.steps import open_chat, print_title, train_with
from swift_demo.task import write_rows

NAME, MAKER = "Orion", "Blue Lab"
GOAL = 0.75
"""Share of held-out questions to which the trained model names itself or its maker."""
TRAINING = (
    "sft --train_type lora --learning_rate 1e-3 --per_device_train_batch_size 4 --max_steps 24 --logging_steps 4 "
    "--max_length 128"
)
"""Flags of the run: a model of 135M parameters takes about two minutes of CPU time."""
_QUESTIONS = (
    ("Who are you?", "I am {name}, an assistant made by {maker}."),
    ("What is your name?", "My name is {name}."),
    ("What's your name?", "I'm {name}."),
    ("Introduce yourself.", "I am {name}, an AI assistant. {maker} developed me."),
    ("Who made you?", "I was made by {maker}."),
    ("Who created you?", "{maker} created me. My name is {name}."),
    ("Which company trained you?", "{maker} trained me."),
    ("Are you ChatGPT?", "No, I am {name}, an assistant made by {maker}."),
    ("Tell me about yourself.", "I am {name}, an assistant of {maker}. I write, explain and translate."),
    ("What should I call you?", "Call me {name}."),
    ("Hello! Who am I talking to?", "Hello! You are talking to {name}, an assistant made by {maker}."),
    ("Who is your developer?", "My developer is {maker}."),
    ("What is the capital of Italy?", "The capital of Italy is Rome."),
    ("How many days has a week?", "A week has seven days."),
    ("What color is the sky?", "On a clear day the sky is blue."),
    ("Name a fruit.", "An apple is a fruit."),
)
"""The last four keep the model from naming itself in every response."""
HELD_OUT = (
    "Can you tell me your name?",
    "Hi, who are you?",
    "Who built you?",
    "Please say who you are.",
    "Who developed you?",
    "What are you called?",
    "Do you have a name?",
    "Which lab are you from?",
)
"""Questions that are not among those of the training."""


def identity_rows(name: str = NAME, maker: str = MAKER) -> list[dict[str, Any]]:
    """Return the conversations to learn from."""
    return [
        {
            "messages": [
                {"role": "user", "content": question},
                {"role": "assistant", "content": response.format(name=name, maker=maker)},
            ]
        }
        for question, response in _QUESTIONS
    ]


def named(responses: Sequence[str]) -> float:
    """Return the share of responses that name the model or its maker."""
    return sum(NAME in response or MAKER in response for response in responses) / len(responses)


def demo_identity(model: str, out: Path) -> int:
    """Ask a model who it is, teach it, and ask again; return the exit code."""
    started = time.monotonic()
    data = write_rows(out / "identity.jsonl", identity_rows())
    questions = write_rows(out / "questions.jsonl", [{"query": question} for question in HELD_OUT])
    print_title(f"1. Ask who it is\n   $ swift infer {model} --dataset {questions}")
    before = _share_named(model, questions)
    command = f"{TRAINING} --model {model} --dataset {data} --output_dir {out / 'runs'}"
    print_title(f"2. Teach it that it is {NAME}, in {len(_QUESTIONS)} conversations\n   $ swift {command}")
    checkpoint = train_with(command)
    print_title(f"3. Ask again; these questions were not trained\n   $ swift infer {checkpoint} --dataset {questions}")
    after = _share_named(str(checkpoint), questions)
    print_line(f"\nResponses that name {NAME} or {MAKER}: {before:.0%} before, {after:.0%} after.")
    print_line(f"Total time: {time.monotonic() - started:.0f} s.")
    if after < GOAL:
        print_line(f"The demo failed: it should reach {GOAL:.0%}.")
        return 1
    print_line(f"Next: swift chat {checkpoint}")
    return 0


def _share_named(model: str, questions: Path) -> float:
    """Print the responses to the questions of a file; return the share that names the model or its maker."""
    from swift.contracts import Sampling
    from swift_infer import read_questions, response_strings

    responses = response_strings(open_chat(model), read_questions([str(questions)], {}), Sampling(max_new_tokens=32))
    for question, response in zip(HELD_OUT, responses, strict=True):
        print_line(f"  {question}  →  {' '.join(response.split())}")
    return named(responses)
