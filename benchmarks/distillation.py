"""Distillation beside TRL's GKDTrainer: the same student, teacher and rows, step by step in turn.

On the data's answers both learn from the same tokens: over the whole vocabulary, as TRL does it, their losses are
compared, and over the teacher's 64 likeliest tokens, as swift comes, the speed. A step is data, teacher and student.
The chat template ends with the answer, so that nothing behind it is learned by either.

Where they learn from the student's own answers (λ = 1), the answers are drawn in the step too. Each side draws its own:
a model with random weights hardly ever ends one, so that all have the same length, and the tokens are as many.
"""

from __future__ import annotations

import json
import subprocess
import sys
from importlib import metadata
from statistics import median
from typing import Any

from benchmarks.commands import ROWS
from benchmarks.facts import Figure
from benchmarks.inputs import CHATS, MODEL, ensure
from benchmarks.peer_in_turn import ORDER
from benchmarks.scoring import FLAT, LEARNING_RATE, PADDED, note
from benchmarks.turns import Turn, loss_difference, ratios, summary, turns

STUDENT, TEACHER = MODEL.with_name(f"{MODEL.name}-student"), MODEL.with_name(f"{MODEL.name}-teacher")
BETA = 0.5
TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' }}"
    "{% if not loop.last or add_generation_prompt %}{{ '\\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
CLOSE = 1e-4
"""Of losses of all steps, relative: both sum in fp32, in another order."""
LONGEST = 64
"""Tokens of an answer of the student's own."""
WHOLE, LIKELIEST = "whole vocabulary", "64 likeliest tokens"
SETTINGS = {
    WHOLE: ("--gkd_logits_topk", "0"),
    LIKELIEST: ("--gkd_logits_topk", "64"),
}
GIVEN, OWN = "the data's answers", "the student's own"
SHARES = {GIVEN: 0.0, OWN: 1.0}
"""λ: how many of the answers are the student's."""

LAYOUTS = {PADDED: ("--padding_free", "false"), FLAT: ("--padding_free", "true")}
SIDES = ((GIVEN, WHOLE, PADDED), (GIVEN, LIKELIEST, FLAT), (OWN, WHOLE, PADDED), (OWN, LIKELIEST, FLAT))


def measure(quick: bool) -> tuple[list[Figure], dict[str, Any]]:
    """Figures, and what they were made of."""
    ensure()
    if not TEACHER.exists():
        subprocess.run([sys.executable, "-m", "benchmarks.distillation"], check=True)
    steps = 15 if quick else 25
    runs = {f"{answers}, {kind}, {layout}": _taken(answers, kind, layout, steps) for answers, kind, layout in SIDES}
    figures = []
    for title, run in runs.items():
        for clock, unit in (("cpu", "CPU second"), ("seconds", "second")):
            speed = median(ratios(run, clock))
            figures.append(Figure(f"{title}: tokens per {unit} over TRL's", speed, at_least=_least(title)))
    apart = max(loss_difference(run) for title, run in runs.items() if title.startswith(f"{GIVEN}, {WHOLE}"))
    details = {
        "TRL": metadata.version("trl"),
        **{"steps": steps, "rows_of_a_step": ROWS, "beta": BETA, "tokens_of_an_own_answer": LONGEST},
        **{title: summary(run) for title, run in runs.items()},
        "notes": [note()],
    }
    return [
        *figures,
        Figure(f"{WHOLE}: largest relative difference of the loss", apart, unit="", at_most=CLOSE),
    ], details


def _least(title: str) -> float | None:
    """Return the goal: no less than TRL's where both compute the same, and more where padding is left out."""
    return 1.3 if title.endswith(FLAT) else 1.0 if WHOLE in title else None


def _taken(answers: str, kind: str, layout: str, steps: int) -> list[Turn]:
    """Return the steps of both in turn."""
    order = {
        "python": sys.executable,
        "objective": "gkd",
        "model": str(STUDENT),
        "teacher": str(TEACHER),
        "data": str(CHATS),
        "rows": ROWS,
        "learning_rate": LEARNING_RATE,
        "recompute": False,
        **{"lmbda": SHARES[answers], "beta": BETA, "longest": LONGEST},
    }
    run = turns(
        f"gkd-{answers}-{kind}-{layout}".replace(" ", "-").replace("'", ""),
        steps,
        *("--objective", "gkd", "--teacher_model", str(TEACHER), "--objective.beta", str(BETA)),
        *("--lmbda", str(SHARES[answers]), *(("--max_completion_length", str(LONGEST)) if answers == OWN else ())),
        *SETTINGS[kind],
        *LAYOUTS[layout],
        *("--data.shuffle", "false", "--per_device_train_batch_size", str(ROWS), "--max_length", "1024"),
        observer="peer-in-turn",
        model=STUDENT,
        data=CHATS,
        variables={ORDER: json.dumps(order), "OMP_NUM_THREADS": "1"},
        verb="train",
    )
    if answers == GIVEN and any(turn["swift"]["tokens"] != turn["other"]["tokens"] for turn in run):
        sys.exit("distillation: the two did not train on the same tokens")
    print(f"  {answers}, {kind}, {layout}: done", flush=True)
    return run


def make() -> None:
    """Write student and teacher: the benchmarks' model, and another of its shape that is surer of what it says."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    tokenizer.chat_template = TEMPLATE
    student = AutoModelForCausalLM.from_pretrained(MODEL)
    torch.manual_seed(1)
    teacher = AutoModelForCausalLM.from_config(student.config)
    with torch.no_grad():
        for parameter in teacher.parameters():
            if parameter.ndim > 1:
                parameter.mul_(3)
    for folder, model in ((STUDENT, student), (TEACHER, teacher)):
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)


if __name__ == "__main__":
    make()
