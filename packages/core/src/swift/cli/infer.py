"""`swift infer | chat | eval`. Torch is imported when the flags are known to be right."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from swift.cli.app import TrustRemoteCode, run_app
from swift.contracts import Sampling
from swift.errors import UsageError
from swift.infer.options import Wanted, is_address
from swift.untrusted import check_unicode, shown

if TYPE_CHECKING:
    from swift.infer.answers import Speaker
    from swift.infer.batch import Asked, LineOf
    from swift.infer.speaker import FoundModel


def run(verb: str, args: list[str]) -> int:
    """The verbs."""
    functions: dict[str, Callable[..., int]] = {"infer": infer, "chat": chat, "eval": evaluate}
    return run_app(f"swift {verb}", functions[verb], args)


Model = Annotated[
    str | None,
    typer.Argument(metavar="MODEL", help="Run, checkpoint, adapter, model folder or hub id; of a server, its name"),
]
ModelFlag = Annotated[str | None, typer.Option("--model", "--ckpt_dir", "--ckpt-dir", help="The same as a flag")]
Engine = Annotated[
    str,
    typer.Option("--engine", "--infer_backend", help="transformers, vllm, another plugin, or http://HOST:PORT"),
]
EngineOptions = Annotated[
    str,
    typer.Option("--engine_options", "--engine-options", help='The engine\'s own, as JSON: {"max_num_seqs": 64}'),
]
ApiKey = Annotated[
    str | None,
    typer.Option("--api_key", "--api-key", help="For a server; default: SWIFT_API_KEY or OPENAI_API_KEY is looked at"),
]
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
Batch = Annotated[
    int | None,
    typer.Option("--batch_size", "--batch-size", min=1, help="Questions at a time; default: the engine decides"),
]
Length = Annotated[
    int | None,
    typer.Option("--max_length", "--max-length", "--max_model_len", min=1, help="Longest question and answer together"),
]
Overwrite = Annotated[
    bool, typer.Option("--overwrite", help="Begin anew instead of going on with what is in --result_path")
]
Dtype = Annotated[str, typer.Option("--torch_dtype", "--torch-dtype", "--dtype", help="auto, float32, bfloat16, ...")]
Device = Annotated[str | None, typer.Option("--device", help="cpu or cuda; default: a GPU if there is one")]


def infer(
    model: Model = None,
    model_flag: ModelFlag = None,
    engine: Engine = "transformers",
    adapters: Adapters = None,
    prompt: Annotated[list[str] | None, typer.Option("--prompt", "--query", help="A question; may be repeated")] = None,
    dataset: DataSet = None,
    result: Annotated[
        Path | None, typer.Option("--result_path", "--result-path", help="Write answers here, as JSONL")
    ] = None,
    overwrite: Overwrite = False,
    columns: Columns = "{}",
    system: System = None,
    max_new_tokens: Tokens = 512,
    temperature: Temperature = 0.0,
    top_p: TopP = 1.0,
    seed: Seed = 0,
    batch_size: Batch = None,
    max_length: Length = None,
    dtype: Dtype = "auto",
    device: Device = None,
    engine_options: EngineOptions = "{}",
    api_key: ApiKey = None,
    trust_remote_code: TrustRemoteCode = False,
) -> int:
    """Answer prompts, or the questions of a data set; without either, read questions from the keyboard.

    Answers are in --result_path as soon as they are made: after an interruption the same command goes on.
    """
    name = _named("infer", model, model_flag, engine)
    if prompt and dataset:
        raise UsageError("--prompt and --dataset are two sources of questions.", hint="Give one of them.")
    renames = _renames(columns)
    for each in prompt or ():
        check_unicode(each, "--prompt", UsageError)
    _check_result(result)
    wanted = _wanted(
        engine, adapters, system, dtype, device, batch_size, max_length, engine_options, api_key, trust_remote_code
    )
    sampling = Sampling(max_new_tokens, temperature, top_p, seed)
    _quiet_libraries(engine)
    if not prompt and not dataset:
        return _converse(name, wanted, sampling)
    from swift.infer.batch import print_answers
    from swift.infer.questions import Question, read_questions
    from swift.infer.speaker import open_speaker

    questions: Asked
    if dataset:
        questions = read_questions(dataset, renames, system=system)
    else:
        questions = [Question([{"role": "user", "content": each}]) for each in prompt or ()]
    if result is not None:
        _answer_into(result, name, wanted, sampling, questions, overwrite=overwrite)
        return 0
    speaker = open_speaker(name, wanted, say=_say)
    try:
        print_answers(speaker, questions, sampling)
    finally:
        speaker.close()
    return 0


def chat(
    model: Model = None,
    model_flag: ModelFlag = None,
    engine: Engine = "transformers",
    adapters: Adapters = None,
    system: System = None,
    max_new_tokens: Tokens = 512,
    temperature: Temperature = 0.0,
    top_p: TopP = 1.0,
    seed: Seed = 0,
    max_length: Length = None,
    dtype: Dtype = "auto",
    device: Device = None,
    engine_options: EngineOptions = "{}",
    api_key: ApiKey = None,
    trust_remote_code: TrustRemoteCode = False,
) -> int:
    """Talk to a model; it remembers what was said. /clear forgets, /exit or Ctrl-D leaves."""
    name = _named("chat", model, model_flag, engine)
    wanted = _wanted(
        engine, adapters, system, dtype, device, None, max_length, engine_options, api_key, trust_remote_code
    )
    _quiet_libraries(engine)
    return _converse(name, wanted, Sampling(max_new_tokens, temperature, top_p, seed))


def evaluate(
    model: Model = None,
    model_flag: ModelFlag = None,
    engine: Engine = "transformers",
    adapters: Adapters = None,
    dataset: DataSet = None,
    metric: Annotated[str, typer.Option("--metric", help="accuracy (the whole answer is right) or loss")] = "accuracy",
    tasks: Annotated[
        str | None, typer.Option("--tasks", help="Tasks of lm-evaluation-harness instead of --dataset: arc_easy,gsm8k")
    ] = None,
    tasks_dir: Annotated[
        Path | None, typer.Option("--tasks_dir", "--tasks-dir", help="A folder with task files of your own")
    ] = None,
    shots: Annotated[
        int | None, typer.Option("--num_fewshot", "--num-fewshot", min=0, help="Examples in front, for --tasks")
    ] = None,
    limit: Annotated[int | None, typer.Option("--limit", min=1, help="Questions of each task, for --tasks")] = None,
    template: Annotated[
        bool, typer.Option("--chat_template", "--chat-template", help="Ask --tasks through the chat template")
    ] = False,
    result: Annotated[
        Path | None, typer.Option("--result_path", "--result-path", help="Write every answer here, as JSONL")
    ] = None,
    overwrite: Overwrite = False,
    columns: Columns = "{}",
    system: System = None,
    max_new_tokens: Tokens = 512,
    batch_size: Batch = None,
    max_length: Length = None,
    dtype: Dtype = "auto",
    device: Device = None,
    engine_options: EngineOptions = "{}",
    api_key: ApiKey = None,
    trust_remote_code: TrustRemoteCode = False,
) -> int:
    """Score a model: on a data set with answers, or on tasks of lm-evaluation-harness."""
    name = _named("eval", model, model_flag, engine)
    if not dataset and not tasks:
        raise UsageError(
            "swift eval needs questions with answers.",
            hint=f"Type: swift eval {name or f'--engine {engine}'} --dataset test.jsonl",
        )
    if dataset and tasks:
        raise UsageError("--dataset and --tasks are two sources of questions.", hint="Give one of them.")
    if metric not in ("accuracy", "loss"):
        raise UsageError(f"--metric is accuracy or loss, not {metric!r}.")
    _check_result(result)
    if metric == "loss" and result is not None and not tasks:
        raise UsageError("--result_path takes answers, and --metric loss asks for none.", hint="Leave it out.")
    remote = is_address(engine)
    if remote and (metric == "loss" or tasks):
        raise UsageError(
            f"{'--tasks' if tasks else '--metric loss'} needs log-probabilities of tokens, which a server is not "
            "asked for: its template and its tokenizer are its own.",
            hint="Load the model instead: --engine vllm or --engine transformers, and MODEL.",
        )
    renames = _renames(columns)
    wanted = _wanted(
        engine, adapters, system, dtype, device, batch_size, max_length, engine_options, api_key, trust_remote_code
    )
    _quiet_libraries(engine)
    if tasks:
        from swift.infer.harness import run_tasks

        scores: Any = run_tasks(
            tasks.split(","),
            str(name),
            wanted,
            folder=tasks_dir,
            shots=shots,
            limit=limit,
            chat=template,
            result=result,
            say=_say,
        )
    else:
        scores = _scores(
            name, wanted, dataset or [], renames, metric, Sampling(max_new_tokens), result, overwrite=overwrite
        )
    sys.stdout.write(json.dumps(scores) + "\n")
    return 0


def _scores(
    name: str | None,
    wanted: Wanted,
    dataset: list[str],
    renames: dict[str, str],
    metric: str,
    sampling: Sampling,
    result: Path | None,
    *,
    overwrite: bool,
) -> dict[str, float]:
    from swift.infer.batch import answered
    from swift.infer.evaluate import accuracy_of, judged, score_loss, with_answers
    from swift.infer.journal import read_lines
    from swift.infer.questions import read_questions
    from swift.infer.speaker import EngineSpeaker, open_speaker

    questions = read_questions(dataset, renames, system=wanted.system)
    if metric == "accuracy" and result is not None:
        compared = with_answers(questions)
        _answer_into(result, name, wanted, sampling, compared, overwrite=overwrite, metric=metric, line=judged)
        return accuracy_of(read_lines(result))
    speaker = open_speaker(name, wanted, say=_say)
    try:
        if metric == "accuracy":
            compared = with_answers(questions)
            return accuracy_of(
                judged(question, answer) for _, question, answer in answered(speaker, compared, sampling)
            )
        assert isinstance(speaker, EngineSpeaker)
        return score_loss(speaker, dataset, renames)
    finally:
        speaker.close()


def _answer_into(
    result: Path,
    name: str | None,
    wanted: Wanted,
    sampling: Sampling,
    questions: Asked,
    *,
    overwrite: bool,
    metric: str | None = None,
    line: LineOf | None = None,
) -> None:
    """What the file holds already is not asked again; where nothing is left, no model is loaded.

    Files in which answers are judged by a `metric`, each on a `line`, are not mixed with others.
    """
    from swift.infer.batch import write_answers
    from swift.infer.journal import Journal
    from swift.infer.speaker import find_model, open_local, open_speaker

    found: FoundModel | None = None
    if is_address(wanted.engine):
        facts = {"engine": "a server", "model": name}
    else:
        found = find_model(str(name), wanted, say=_say)
        facts = {"engine": wanted.engine, **found.facts(), "dtype": wanted.dtype}
    settings = {
        **facts,
        "system": wanted.system,
        "max_new_tokens": sampling.max_new_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "seed": sampling.seed,
        **({} if metric is None else {"metric": metric}),
    }
    with Journal(result, questions, settings, overwrite=overwrite) as journal:
        left = len(journal.left())
        if left < len(questions):
            _say(f"{len(questions) - left} of {len(questions)} questions are answered in {result}")
        if not left:
            return
        speaker: Speaker = (
            open_speaker(name, wanted, say=_say) if found is None else open_local(found, wanted, say=_say)
        )
        try:
            cut = write_answers(speaker, questions, sampling, journal, line=line)
        except KeyboardInterrupt:
            _say(
                f"Stopped; {len(questions) - len(journal.left())} of {len(questions)} questions are answered in "
                f"{result}. The same command goes on."
            )
            raise
        finally:
            speaker.close()
    ending = f"; {cut} cut off after --max_new_tokens {sampling.max_new_tokens}" if cut else ""
    _say(f"{left} {'answer' if left == 1 else 'answers'} written to {result}{ending}")


def _converse(name: str | None, wanted: Wanted, sampling: Sampling) -> int:
    from swift.infer.chat import converse
    from swift.infer.speaker import open_speaker

    speaker = open_speaker(name, wanted, say=_say)
    try:
        converse(speaker, sampling)
    finally:
        speaker.close()
    return 0


def _quiet_libraries(engine: str) -> None:
    """Only those that are imported: whoever asks a server needs neither torch nor transformers."""
    if not is_address(engine):
        from swift.models.quiet import quiet_libraries

        quiet_libraries()


def _named(verb: str, model: str | None, flag: str | None, engine: str) -> str | None:
    name = model or flag
    if name is None and not is_address(engine):
        raise UsageError(
            f"swift {verb} needs a model.", hint=f"For example: swift {verb} output/my-model/v0-20260101-120000"
        )
    return name


def _check_result(result: Path | None) -> None:
    if result is not None and not result.parent.is_dir():
        raise UsageError(
            f"There is no folder {result.parent} for --result_path.", hint=f"Type: mkdir -p {result.parent}"
        )


def _renames(text: str) -> dict[str, str]:
    example = '{"question": "query"}'
    renames = _mapping("--columns", text, example)
    if not all(isinstance(name, str) for name in renames.values()):
        raise UsageError(
            f"--columns gives each column another name, and {shown(text)} does not.",
            hint=f"For example: --columns '{example}'",
        )
    return renames


def _mapping(flag: str, text: str, example: str) -> dict[str, Any]:
    try:
        value: Any = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise UsageError(f"{flag} is not a JSON object: {shown(text)}", hint=f"For example: {flag} '{example}'")
    return value


def _wanted(
    engine: str,
    adapters: Path | None,
    system: str | None,
    dtype: str,
    device: str | None,
    batch_size: int | None,
    max_length: int | None,
    options: str,
    api_key: str | None,
    trust_remote_code: bool,
) -> Wanted:
    if system is not None:
        check_unicode(system, "--system", UsageError)
    own = _mapping("--engine_options", options, '{"max_num_seqs": 64}')
    return Wanted(engine, adapters, system, dtype, device, batch_size, max_length, own, api_key, trust_remote_code)


def _say(line: str) -> None:
    sys.stderr.write(f"{line}\n")
