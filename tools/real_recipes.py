"""The recipes of `make real`: for each a pretrained model, its data, commands, and the score before and after.

The data are written or generated here, or are functions of Python's own standard library, so that no recipe needs the
network. Models are those that `make setup` installs into `.venv/real`; the commands name them by their hub ids.
"""

from __future__ import annotations

import ast
import json
import random
import sysconfig
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from swift_demo.identity import HELD_OUT, identity_rows, named

LANGUAGE_MODEL, ENCODER = "HuggingFaceTB/SmolLM2-135M-Instruct", "sentence-transformers/all-MiniLM-L6-v2"
RUN = "runs/model/run"
"""The folder of a recipe's run: `runs/MODEL/NAME`."""
Rows = list[dict[str, Any]]
Score = Callable[[Path], tuple[float, float]]


@dataclass(frozen=True)
class Recipe:
    """One thing to do with a pretrained model."""

    title: str
    model: str
    data: str
    """A sentence about the data."""
    rows: Callable[[], dict[str, Rows]]
    """Returns the rows of each file."""
    commands: tuple[str, ...]
    """What is typed in the recipe's folder; the second of them is the run, unless there is only one."""
    measure: str
    """What the score is."""
    score: Score
    """Returns it before and after, from the recipe's folder."""


def logged(metric: str) -> Score:
    """Return a score that the run itself evaluates, before its first step and after its last."""

    def read(folder: Path) -> tuple[float, float]:
        lines = [json.loads(line) for line in (folder / RUN / "logging.jsonl").read_text().splitlines()]
        found = [line[f"eval_{metric}"] for line in lines if f"eval_{metric}" in line]
        return found[0], found[-1]

    return read


def answered(folder: Path) -> tuple[float, float]:
    """Return the share of responses that name the model or its maker."""
    before, after = (
        named([json.loads(line)["messages"][-1]["content"] for line in (folder / name).read_text().splitlines()])
        for name in ("before.jsonl", "after.jsonl")
    )
    return before, after


def quantized(folder: Path) -> tuple[float, float]:
    """Return the loss of the original and of its quantized export."""
    loss = json.loads((folder / "quantized" / "quantisation.json").read_text())["loss"]
    return loss["before"], loss["after"]


def identity() -> dict[str, Rows]:
    return {"identity": identity_rows(), "questions": [{"query": question} for question in HELD_OUT]}


def additions(seed: int = 0) -> Iterator[tuple[str, int]]:
    """Yield questions of short arithmetic with their results, each once."""
    pairs = [(left, right) for left in range(2, 30) for right in range(2, 30)]
    random.Random(seed).shuffle(pairs)
    for left, right in pairs:
        yield f"What is {left} + {right}?", left + right


def preferences() -> dict[str, Rows]:
    """Return pairs in which the result alone is better than a sentence around it."""
    rows = [
        {
            "messages": [{"role": "user", "content": question}, {"role": "assistant", "content": str(result)}],
            "rejected_response": f"The result of your addition is {result}.",
        }
        for question, result in additions()
    ]
    return {"pairs": rows[:96], "held_out": rows[96:108]}


def prompts() -> dict[str, Rows]:
    rows = [{"query": f"{question} Answer with the number.", "solution": str(sum_)} for question, sum_ in additions()]
    return {"prompts": rows[:256], "held_out": rows[256:288]}


@cache
def functions() -> list[tuple[str, str]]:
    """Return (first line of the docstring, code without docstring and name) of functions of the standard library."""
    found: dict[str, str] = {}
    for file in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py")):
        source = file.read_text(encoding="utf-8", errors="replace")
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.FunctionDef) and (text := ast.get_docstring(node)) and len(node.body) > 1:
                line = text.splitlines()[0].strip()
                code = ast.unparse(ast.Module([*node.body[1:]], []))
                if 20 < len(line) < 120 and len(code) > 80:
                    found.setdefault(line, f"def function({ast.unparse(node.args)}):\n{code}"[:400])
    pairs = sorted(found.items())
    random.Random(0).shuffle(pairs)
    return pairs


def code_search() -> dict[str, Rows]:
    rows = [{"anchor": line, "positive": code} for line, code in functions()]
    return {"pairs": rows[:800], "held_out": rows[800:1000]}


def ranked_code() -> dict[str, Rows]:
    pairs = functions()
    codes = [code for _, code in pairs]
    rng = random.Random(1)

    def row(line: str, code: str, others: int) -> dict[str, Any]:
        negatives = rng.sample([each for each in codes if each != code], others)
        return {"query": line, "positive": [code], "negative": negatives}

    return {"groups": [row(*pair, 3) for pair in pairs[:400]], "held_out": [row(*pair, 7) for pair in pairs[800:832]]}


def documents() -> dict[str, Rows]:
    rows = [{"text": f"{code}\n"} for _, code in functions()]
    return {"corpus": rows[:200], "held_out": rows[800:812]}


_EVALUATED = "--eval_on_start true --eval_strategy steps --save_strategy no --output_dir runs --run_name run"
RECIPES = {
    "identity": Recipe(
        "Teach a model its name",
        LANGUAGE_MODEL,
        "16 conversations: twelve about the name and the maker, four about other things.",
        identity,
        (
            f"swift infer {LANGUAGE_MODEL} --dataset questions.jsonl --max_new_tokens 32 --result_path before.jsonl",
            f"swift sft --model {LANGUAGE_MODEL} --dataset identity.jsonl --learning_rate 1e-3 --max_length 128 "
            "--per_device_train_batch_size 4 --max_steps 24 --logging_steps 4 --output_dir runs --run_name run",
            "swift infer runs/model/run --dataset questions.jsonl --max_new_tokens 32 --result_path after.jsonl",
        ),
        "share of responses to 8 other questions that name the model or its maker",
        answered,
    ),
    "pretraining": Recipe(
        "Continue pre-training on your documents",
        LANGUAGE_MODEL,
        "200 functions of Python's standard library; 12 others are held out.",
        documents,
        (
            f"swift pt --model {LANGUAGE_MODEL} --dataset corpus.jsonl --val_dataset held_out.jsonl --train_type full "
            f"--learning_rate 5e-5 --max_length 128 --truncation_strategy right --per_device_train_batch_size 4 "
            f"--max_steps 8 --eval_steps 8 --logging_steps 2 {_EVALUATED}",
        ),
        "loss per token on the held-out functions (lower is better)",
        logged("loss"),
    ),
    "dpo": Recipe(
        "Prefer short responses, with DPO",
        LANGUAGE_MODEL,
        "96 additions: the number alone is preferred to a sentence around it; 12 others are held out.",
        preferences,
        (
            f"swift rlhf --rlhf_type dpo --model {LANGUAGE_MODEL} --dataset pairs.jsonl --val_dataset held_out.jsonl "
            f"--learning_rate 2e-4 --max_length 96 --per_device_train_batch_size 4 --max_steps 8 --eval_steps 8 "
            f"--logging_steps 2 {_EVALUATED}",
        ),
        "margin between the rewards of preferred and rejected responses on the held-out additions",
        logged("reward_margin"),
    ),
    "grpo": Recipe(
        "Learn short arithmetic from rewards, with GRPO",
        LANGUAGE_MODEL,
        "256 additions with their results; 32 others are held out.",
        prompts,
        (
            f"swift rlhf --rlhf_type grpo --model {LANGUAGE_MODEL} --dataset prompts.jsonl "
            "--val_dataset held_out.jsonl --reward_funcs exact_match --num_generations 8 "
            "--max_completion_length 16 --learning_rate 2e-4 "
            f"--per_device_train_batch_size 16 --max_steps 20 --eval_steps 20 --logging_steps 2 {_EVALUATED}",
        ),
        "mean reward on the held-out additions",
        logged("reward"),
    ),
    "embedding": Recipe(
        "Search code with an embedding model",
        ENCODER,
        "800 functions of Python's standard library, each with the first line of its docstring as the query; 200 "
        "others are held out.",
        code_search,
        (
            f"swift sft --task_type embedding --model {ENCODER} --dataset pairs.jsonl --val_dataset held_out.jsonl "
            "--train_type full --learning_rate 1e-4 --objective.temperature 0.05 --max_length 96 "
            "--truncation_strategy right --per_device_train_batch_size 32 --per_device_eval_batch_size 200 "
            f"--max_steps 50 --eval_steps 50 --logging_steps 10 {_EVALUATED}",
        ),
        "share of held-out queries whose function is the nearest of 200 (recall at 1)",
        logged("recall_at_1"),
    ),
    "reranker": Recipe(
        "Rerank search results",
        ENCODER,
        "400 queries, each with its function and three others; 32 queries with seven others are held out.",
        ranked_code,
        (
            f"swift sft --task_type reranker --loss_type listwise --model {ENCODER} --dataset groups.jsonl "
            "--val_dataset held_out.jsonl --train_type full --learning_rate 2e-4 --max_length 96 "
            f"--truncation_strategy right --per_device_train_batch_size 4 --max_steps 40 --eval_steps 40 "
            f"--logging_steps 10 {_EVALUATED}",
        ),
        "mean reciprocal rank of the right function among eight",
        logged("mrr"),
    ),
    "quantize": Recipe(
        "Quantize a model",
        LANGUAGE_MODEL,
        "16 conversations for the calibration.",
        identity,
        (
            f"swift eval {LANGUAGE_MODEL} --dataset identity.jsonl --metric loss",
            f"swift export {LANGUAGE_MODEL} --to vllm --quant w8a8 --calibration-dataset identity.jsonl "
            "--calibration-samples 16 --quant-tolerance 0.2 --out quantized",
        ),
        "loss per token on the calibration samples, of the model and of its export",
        quantized,
    ),
}
