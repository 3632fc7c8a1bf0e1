"""`swift infer | chat | eval`. Torch is imported when the flags are known to be right."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from swift.cli.app import run_app
from swift.errors import UsageError
from swift.models.quiet import quiet_libraries

if TYPE_CHECKING:
    from swift.infer.generate import Sampling
    from swift.infer.load import Speaker


def run(verb: str, args: list[str]) -> int:
    """The verbs."""
    functions: dict[str, Callable[..., int]] = {"infer": infer, "chat": chat, "eval": evaluate}
    return run_app(f"swift {verb}", functions[verb], args)


Model = Annotated[str | None, typer.Argument(metavar="MODEL", help="Run, checkpoint, adapter, model folder or hub id")]
ModelFlag = Annotated[str | None, typer.Option("--model", "--ckpt_dir", "--ckpt-dir", help="The same as a flag")]
Adapters = Annotated[Path | None, typer.Option("--adapters", "--adapter", help="Adapter on top of --model")]
DataSet = Annotated[
    list[str] | None, typer.Option("--dataset", "--val_dataset", "--val-dataset", help="Questions, one per row")
]
Columns = Annotated[str, typer.Option("--columns", help='Renames columns, as JSON: {"question": "query"}')]
System = Annotated[str | None, typer.Option("--system", help="System message where there is none")]
Tokens = Annotated[int, typer.Option("--max_new_tokens", "--max-new-tokens", min=1, help="Longest answer")]
Temperature = Annotated[float, typer.Option("--temperature", min=0.0, help="0 takes the most likely token, always")]
TopP = Annotated[float, typer.Option("--top_p", "--top-p", min=0.0, max=1.0, help="Nucleus sampling")]
Seed = Annotated[int, typer.Option("--seed", help="Decides what is drawn at a temperature above 0")]
Batch = Annotated[int, typer.Option("--batch_size", "--batch-size", min=1, help="Questions at a time")]
Dtype = Annotated[str, typer.Option("--torch_dtype", "--torch-dtype", "--dtype", help="auto, float32, bfloat16, ...")]
Device = Annotated[str | None, typer.Option("--device", help="cpu or cuda; default: a GPU if there is one")]


def infer(
    model: Model = None,
    model_flag: ModelFlag = None,
    adapters: Adapters = None,
    prompt: Annotated[list[str] | None, typer.Option("--prompt", "--query", help="A question; may be repeated")] = None,
    dataset: DataSet = None,
    result: Annotated[
        Path | None, typer.Option("--result_path", "--result-path", help="Write answers here, as JSONL")
    ] = None,
    columns: Columns = "{}",
    system: System = None,
    max_new_tokens: Tokens = 512,
    temperature: Temperature = 0.0,
    top_p: TopP = 1.0,
    seed: Seed = 0,
    batch_size: Batch = 8,
    dtype: Dtype = "auto",
    device: Device = None,
) -> int:
    """Answer prompts, or the questions of a data set; without either, read questions from the keyboard."""
    name = _named("infer", model, model_flag)
    if prompt and dataset:
        raise UsageError("--prompt and --dataset are two sources of questions.", hint="Give one of them.")
    if not prompt and not dataset:
        return chat(name, None, adapters, system, max_new_tokens, temperature, top_p, seed, dtype, device)
    renames = _columns(columns)
    if result is not None and not result.parent.is_dir():
        raise UsageError(
            f"There is no folder {result.parent} for --result_path.", hint=f"Type: mkdir -p {result.parent}"
        )
    quiet_libraries()
    from swift.infer.batch import answer_prompts, answer_questions
    from swift.infer.questions import read_questions

    questions = read_questions(dataset, renames, system=system) if dataset else []
    speaker, sampling = _prepared(name, adapters, system, max_new_tokens, temperature, top_p, seed, dtype, device)
    if prompt:
        answer_prompts(speaker, prompt, sampling, batch=batch_size, result=result)
    else:
        answer_questions(speaker, questions, sampling, batch=batch_size, result=result)
    return 0


def chat(
    model: Model = None,
    model_flag: ModelFlag = None,
    adapters: Adapters = None,
    system: System = None,
    max_new_tokens: Tokens = 512,
    temperature: Temperature = 0.0,
    top_p: TopP = 1.0,
    seed: Seed = 0,
    dtype: Dtype = "auto",
    device: Device = None,
) -> int:
    """Talk to a model; it remembers what was said. /clear forgets, /exit or Ctrl-D leaves."""
    name = _named("chat", model, model_flag)
    quiet_libraries()
    from swift.infer.chat import converse

    speaker, sampling = _prepared(name, adapters, system, max_new_tokens, temperature, top_p, seed, dtype, device)
    converse(speaker, sampling)
    return 0


def evaluate(
    model: Model = None,
    model_flag: ModelFlag = None,
    adapters: Adapters = None,
    dataset: DataSet = None,
    metric: Annotated[str, typer.Option("--metric", help="accuracy (the whole answer is right) or loss")] = "accuracy",
    result: Annotated[
        Path | None, typer.Option("--result_path", "--result-path", help="Write every answer here, as JSONL")
    ] = None,
    columns: Columns = "{}",
    system: System = None,
    max_new_tokens: Tokens = 512,
    batch_size: Batch = 8,
    dtype: Dtype = "auto",
    device: Device = None,
) -> int:
    """Score a model on a data set with answers."""
    name = _named("eval", model, model_flag)
    if not dataset:
        raise UsageError(
            "swift eval needs questions with answers.", hint=f"Type: swift eval {name} --dataset test.jsonl"
        )
    if metric not in ("accuracy", "loss"):
        raise UsageError(f"--metric is accuracy or loss, not {metric!r}.")
    renames = _columns(columns)
    quiet_libraries()
    from swift.infer.batch import score_accuracy, score_loss
    from swift.infer.questions import read_questions

    questions = read_questions(dataset, renames, system=system)
    speaker, sampling = _prepared(name, adapters, system, max_new_tokens, 0.0, 1.0, 0, dtype, device)
    if metric == "loss":
        scores = score_loss(speaker, dataset, renames, batch=batch_size)
    else:
        scores = score_accuracy(speaker, questions, sampling, batch=batch_size, result=result)
    sys.stdout.write(json.dumps(scores) + "\n")
    return 0


def _named(verb: str, model: str | None, flag: str | None) -> str:
    name = model or flag
    if name is None:
        raise UsageError(
            f"swift {verb} needs a model.", hint=f"For example: swift {verb} output/my-model/v0-20260101-120000"
        )
    return name


def _columns(text: str) -> dict[str, str]:
    try:
        columns: Any = json.loads(text)
    except ValueError:
        columns = None
    if not isinstance(columns, dict):
        raise UsageError(
            f"--columns is not a JSON object: {text}", hint='For example: --columns \'{"question": "query"}\''
        )
    return {str(key): str(value) for key, value in columns.items()}


def _prepared(
    name: str,
    adapters: Path | None,
    system: str | None,
    max_new_tokens: int,
    temperature: float,
    top_p: float,
    seed: int,
    dtype: str,
    device: str | None,
) -> tuple[Speaker, Sampling]:
    from swift.infer.generate import Sampling
    from swift.infer.load import load_speaker

    speaker = load_speaker(name, adapter=adapters, dtype=dtype, device=device, say=_say)
    speaker.system = system or speaker.system
    return speaker, Sampling(max_new_tokens, temperature, top_p, seed)


def _say(line: str) -> None:
    sys.stderr.write(f"{line}\n")
