"""`swift eval MODEL`: evaluate a model on a labeled data set, or on tasks of lm-evaluation-harness."""

from __future__ import annotations

import json
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from swift.config.limits import FilePath, Name, Rows
from swift.config.options import Aliases
from swift.errors import UsageError
from swift.terminal import print_line, print_note
from swift_infer.commands.common import (
    AnyTaskOptions,
    check_model,
    check_result,
    check_scoring,
    quiet_libraries,
    returns_scores,
    write_responses_to,
)
from swift_infer.options import SamplingOptions, is_address

if TYPE_CHECKING:
    from swift.contracts import Sampling


class EvalOptions(SamplingOptions, AnyTaskOptions):
    """Evaluates on a data set whose rows end with an assistant message, or on tasks of lm-evaluation-harness."""

    examples = (
        "swift eval output/my-model/v0-20260101-120000 --dataset test.jsonl",
        "swift eval qwen3-0.6b --tasks arc_easy,gsm8k --limit 200",
    )
    metric: Literal["accuracy", "cer", "iou", "loss"] = Field(
        "accuracy",
        description="accuracy: exact matches; cer: character error rate; iou: overlap of bounding boxes [left, top, "
        "right, bottom]; loss: needs log-probabilities",
    )
    tasks: Name | None = Field(None, description="Tasks of lm-evaluation-harness instead of --dataset: arc_easy,gsm8k")
    tasks_dir: FilePath | None = Field(None, description="Folder with your own task files, for --tasks")
    num_fewshot: Annotated[int, Field(ge=0)] | None = Field(None, description="Few-shot examples, for --tasks")
    limit: Annotated[Rows | None, Aliases("eval_limit")] = Field(
        None, description="Questions of each task, for --tasks; for a data set type --dataset FILE#200"
    )
    chat_template: bool = Field(False, description="Apply the chat template, for --tasks")


class EvalCommand:
    """Implements `swift.contracts.Command`."""

    summary = "Evaluate a model on a labeled data set"
    group = "Use the result"
    options_model = EvalOptions

    def run(self, options: EvalOptions) -> int:
        """Evaluate a model, and print the scores as one line of JSON; return the exit code."""
        _check(options)
        scoring = returns_scores(options)
        if scoring:
            check_scoring(options, "metric", "tasks", "result_path")
        quiet_libraries(options)
        scores: Any
        if scoring:
            from swift_infer.chat_engine import find_model
            from swift_infer.evaluate_scores import evaluate_scores

            found = find_model(options, generates=False, say=print_note)
            found.check_scores_sequences()
            scores = evaluate_scores(found, options, say=print_note)
        elif options.tasks:
            from swift_infer.harness import TaskRequest, run_tasks

            request = TaskRequest(
                tuple(options.tasks.split(",")),
                folder=options.tasks_dir,
                shots=options.num_fewshot,
                limit=options.limit,
                chat=options.chat_template,
                result=options.result_path,
            )
            scores = run_tasks(request, options, batch_size=options.batch_size, say=print_note)
        else:
            scores = _scores(options, options.sampling)
        print_line(json.dumps(scores))
        return 0


def _check(options: EvalOptions) -> None:
    check_model("eval", options)
    if not options.dataset and not options.tasks:
        raise UsageError(
            "swift eval needs --dataset or --tasks.",
            hint=f"Type: swift eval {options.model or f'--engine {options.engine}'} --dataset test.jsonl",
        )
    if options.dataset and options.tasks:
        raise UsageError("--dataset and --tasks cannot be used together.", hint="Keep one of them.")
    _check_sampling(options)
    check_result(options.result_path)
    if options.metric == "loss" and options.result_path is not None and not options.tasks:
        raise UsageError(
            "--result_path cannot be used with --metric loss, which generates no text.", hint="Leave it out."
        )
    if is_address(options.engine) and (options.metric == "loss" or options.tasks):
        raise UsageError(
            f"{'--tasks' if options.tasks else '--metric loss'} needs log-probabilities of tokens, which servers do "
            "not provide.",
            hint="Load the model instead: --engine transformers MODEL",
        )


def _check_sampling(options: EvalOptions) -> None:
    """Raise `UsageError` for options without effect."""
    given = options.model_fields_set
    sampling = [name for name in SamplingOptions.model_fields if name in given]
    if options.tasks and sampling:
        raise UsageError(
            f"--{sampling[0]} does not apply to --tasks: each task has its own sampling settings.", hint="Leave it out."
        )
    for_tasks = [name for name in ("tasks_dir", "num_fewshot", "limit", "chat_template") if name in given]
    if options.dataset and for_tasks:
        some = " For the first 200 rows type --dataset FILE#200" if for_tasks[0] == "limit" else ""
        raise UsageError(f"--{for_tasks[0]} applies to --tasks, not to --dataset.", hint=f"Leave it out.{some}")


def _scores(options: EvalOptions, sampling: Sampling) -> dict[str, float]:
    from swift_infer.batch import generate_responses
    from swift_infer.chat_engine import LocalChatEngine, open_chat_engine
    from swift_infer.evaluate import evaluation_line, score_loss, with_expected
    from swift_infer.questions import read_questions
    from swift_infer.response_metrics import metric_of
    from swift_infer.resume_file import read_lines

    questions = read_questions(options.dataset, options.columns, system=options.system)
    result = options.result_path
    metric = None if options.metric == "loss" else metric_of(options.metric)
    if metric is not None and result is not None:
        compared = with_expected(questions, say=print_note)
        line = partial(evaluation_line, metric=metric)
        write_responses_to(result, options, sampling, compared, further={"metric": options.metric}, line=line)
        return metric.of_lines(read_lines(result))
    with closing(open_chat_engine(options, batch_size=options.batch_size, say=print_note)) as chat_engine:
        if metric is not None:
            compared = with_expected(questions, say=print_note)
            lines = (
                evaluation_line(question, response, metric)
                for _, question, response in generate_responses(chat_engine, compared, sampling)
            )
            return metric.of_lines(lines)
        assert isinstance(chat_engine, LocalChatEngine)
        return score_loss(chat_engine, options.dataset, options.columns, say=print_note)
