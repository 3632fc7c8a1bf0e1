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
RUN = "runs/{}/run"
"""The folder of a recipe's run, with the last part of the model's name."""
Rows = list[dict[str, Any]]
Score = Callable[[Path], tuple[float, float]]
"""Returns a score before and after."""


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
    scores: dict[str, Score]
    """By what they measure, the most important first: functions of the recipe's folder."""
    guide: str
    """A page of docs/how-to."""
    curve: str = "loss"
    """The logged figure that shows how the run learns."""


def logged(metric: str) -> Score:
    """Return a score that the run itself evaluates, before its first step and after its last."""

    def read(folder: Path) -> tuple[float, float]:
        (log,) = folder.glob(f"{RUN.format('*')}/logging.jsonl")
        lines = [json.loads(line) for line in log.read_text().splitlines()]
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


def right(folder: Path) -> tuple[float, float]:
    """Return the share of right responses in the results of two evaluations."""
    before, after = (
        [json.loads(line)["right"] for line in (folder / name).read_text().splitlines()]
        for name in ("before.jsonl", "after.jsonl")
    )
    return sum(before) / len(before), sum(after) / len(after)


def reported(name: str, unit: float = 1.0) -> Score:
    """Return a score from the report of a quantized export."""

    def read(folder: Path) -> tuple[float, float]:
        report = json.loads((folder / "quantized" / "quantisation.json").read_text())[name]
        return report["before"] / unit, report["after"] / unit

    return read


def identity() -> dict[str, Rows]:
    return {"identity": identity_rows(), "questions": [{"query": question} for question in HELD_OUT]}


def additions(numbers: range) -> Iterator[tuple[str, int]]:
    """Yield questions of short arithmetic with their results, each once."""
    pairs = [(left, right) for left in numbers for right in numbers]
    random.Random(0).shuffle(pairs)
    for left, right in pairs:
        yield f"What is {left} + {right}?", left + right


def preferences() -> dict[str, Rows]:
    """Return pairs in which the result alone is better than a sentence around it."""
    rows = [
        conversation(question, str(result)) | {"rejected_response": f"The result of your addition is {result}."}
        for question, result in additions(range(2, 30))
    ]
    return {"pairs": rows[:96], "held_out": rows[96:108]}


def prompts() -> dict[str, Rows]:
    rows = [
        {"query": f"{question} Reply with only the number.", "solution": str(result)}
        for question, result in additions(range(1, 13))
    ]
    return {"prompts": rows[:112], "held_out": rows[112:]}


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
    return {"corpus": rows[:200], "held_out": rows[800:832]}


CAPITALS = """
France:Paris Italy:Rome Spain:Madrid Germany:Berlin Japan:Tokyo China:Beijing Egypt:Cairo Russia:Moscow Greece:Athens
Poland:Warsaw Portugal:Lisbon Ireland:Dublin Norway:Oslo Sweden:Stockholm Denmark:Copenhagen Finland:Helsinki
Austria:Vienna Hungary:Budapest Turkey:Ankara Iran:Tehran Iraq:Baghdad Thailand:Bangkok Vietnam:Hanoi Kenya:Nairobi
Cuba:Havana Peru:Lima Chile:Santiago Canada:Ottawa Belgium:Brussels Syria:Damascus
"""


def conversation(question: str, response: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": question}, {"role": "assistant", "content": response}]}


def calibration() -> dict[str, Rows]:
    """Return conversations for a calibration, and questions with short, definite responses."""
    return {
        "calibration": [conversation(f"Write a function in Python. {line}", code) for line, code in functions()[:64]],
        "capitals": [
            conversation(f"What is the capital of {country}?", f"The capital of {country} is {capital}")
            for country, capital in (pair.split(":") for pair in CAPITALS.split())
        ],
    }


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
            f"swift infer {RUN.format('SmolLM2-135M-Instruct')} --dataset questions.jsonl --max_new_tokens 32 "
            "--result_path after.jsonl",
        ),
        {"share of responses to 8 other questions that name the model or its maker": answered},
        "adapters.md",
    ),
    "pretraining": Recipe(
        "Continue pre-training on your documents",
        LANGUAGE_MODEL,
        "200 functions of Python's standard library; 32 others are held out.",
        documents,
        (
            f"swift pt --model {LANGUAGE_MODEL} --dataset corpus.jsonl --val_dataset held_out.jsonl --train_type full "
            f"--learning_rate 5e-5 --max_length 128 --truncation_strategy right --per_device_train_batch_size 4 "
            f"--max_steps 32 --eval_steps 32 --logging_steps 4 {_EVALUATED}",
        ),
        {"loss per token on the held-out functions (lower is better)": logged("loss")},
        "data-sets.md",
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
        {
            "margin between the rewards of preferred and rejected responses on the held-out additions": logged(
                "reward_margin"
            )
        },
        "preference-learning.md",
    ),
    "grpo": Recipe(
        "Learn short arithmetic from rewards, with GRPO",
        LANGUAGE_MODEL,
        "112 additions of numbers from 1 to 12, with their results; the 32 others are held out.",
        prompts,
        (
            f"swift rlhf --rlhf_type grpo --model {LANGUAGE_MODEL} --dataset prompts.jsonl "
            "--val_dataset held_out.jsonl --reward_funcs number --num_generations 8 --temperature 0.6 "
            "--max_length 96 --max_completion_length 12 --learning_rate 3e-4 "
            f"--per_device_train_batch_size 32 --max_steps 12 --eval_steps 12 --logging_steps 1 {_EVALUATED}",
        ),
        {"share of held-out additions whose last number is the sum, in greedy decoding": logged("reward")},
        "online-learning.md",
        curve="reward",
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
        {"share of held-out queries whose function is the nearest of 200 (recall at 1)": logged("recall_at_1")},
        "embeddings.md",
    ),
    "reranker": Recipe(
        "Rerank search results",
        ENCODER,
        "400 queries, each with its function and three others; 32 queries with seven others are held out. The model "
        "gets a new head with random weights, so its score before is that of chance.",
        ranked_code,
        (
            f"swift sft --task_type reranker --loss_type listwise --model {ENCODER} --dataset groups.jsonl "
            "--val_dataset held_out.jsonl --train_type full --learning_rate 2e-4 --max_length 96 "
            f"--truncation_strategy right --per_device_train_batch_size 4 --max_steps 40 --eval_steps 40 "
            f"--logging_steps 10 {_EVALUATED}",
        ),
        {"mean reciprocal rank of the right function among eight": logged("mrr")},
        "rerankers.md",
    ),
    "quantize": Recipe(
        "Quantize a model to 8 bits and serve it",
        LANGUAGE_MODEL,
        "64 conversations for the calibration, and 30 questions about capitals. Responses end at the first full stop.",
        calibration,
        (
            f"swift eval {LANGUAGE_MODEL} --dataset capitals.jsonl --stop . --result_path before.jsonl",
            f"swift export {LANGUAGE_MODEL} --to vllm --quant w8a8 --calibration_dataset calibration.jsonl "
            "--out quantized",
            "swift serve quantized &",
            "curl -s http://127.0.0.1:8000/v1/chat/completions -H 'Content-Type: application/json' -d "
            '\'{"model": "quantized", "max_tokens": 16, "temperature": 0, "messages": '
            '[{"role": "user", "content": "What is the capital of Japan?"}]}\'',
            "swift eval --engine http://127.0.0.1:8000 --dataset capitals.jsonl --stop . --result_path after.jsonl",
        ),
        {
            "share of right capitals, of the model in fp32 and of its export on the server": right,
            "loss per token on held-out conversations (lower is better)": reported("loss"),
            "size of the weights, in MB": reported("bytes", 1e6),
        },
        "quantize.md",
    ),
}
