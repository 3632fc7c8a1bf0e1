"""Shared parts of `swift infer`, `chat` and `eval`: checks of options, conversations, responses into a file."""

from __future__ import annotations

import importlib
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from swift.errors import UsageError
from swift.models import folder_of
from swift.plugins import TRANSFORMERS
from swift.terminal import IMPORTS, print_note, waiting
from swift_infer.options import (
    InferenceOptions,
    ModelOptions,
    QuestionOptions,
    SamplingOptions,
    check_transformers_options,
    is_address,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from swift.contracts import Sampling
    from swift_infer.batch import LineOf
    from swift_infer.questions import Question


def check_model(command: str, options: ModelOptions) -> None:
    """Raise `UsageError` if no model is named, or the engine lacks an option."""
    if options.model is None and not is_address(options.engine):
        raise UsageError(
            f"swift {command} needs a model.", hint=f"For example: swift {command} output/my-model/v0-20260101-120000"
        )
    if options.model is not None and not is_address(options.engine):
        folder_of(options.model)  # refuse a path that does not exist before anything is imported
    if options.engine == TRANSFORMERS:
        check_transformers_options(options.engine_options)


def returns_scores(options: AnyTaskOptions) -> bool:
    """Return whether the model returns scores or vectors, by its files or --task_type, instead of text."""
    if options.model is None or is_address(options.engine):
        if options.task_type is not None:
            raise UsageError(
                f"--task_type does not apply to the server {options.engine}, which generates text.",
                hint="Remove it, or name a model instead of a server.",
            )
        return False
    from swift.checkpoint import find_weights
    from swift.parsing.tasks import CAUSAL_LM, returns
    from swift_infer.scoring import scoring_objective

    location = find_weights(options.model, adapter=options.adapters, trust_remote_code=options.trust_remote_code)
    task = location.weights.task
    if options.task_type is not None and task != CAUSAL_LM:
        raise UsageError(
            f"--task_type {options.task_type} needs a language model, but {options.model} returns {returns(task)}.",
            hint="Remove --task_type.",
        )
    return task != CAUSAL_LM or scoring_objective(location, options.task_type) is not None


def check_scoring(options: AnyTaskOptions, *unused: str) -> None:
    """Raise `UsageError` for flags that do not apply to a model that returns scores or vectors."""
    passed = [name for name in (*SamplingOptions.model_fields, *unused) if name in options.model_fields_set]
    if passed:
        where = " To get the score of each row: swift infer MODEL --dataset FILE" if passed[0] == "result_path" else ""
        raise UsageError(
            f"--{passed[0]} applies to models that generate text, but {options.model} returns scores or vectors.",
            hint=f"Remove it.{where}",
        )
    if options.engine != TRANSFORMERS:
        raise UsageError(
            f"{options.model} returns scores or vectors, which swift computes with the engine transformers only.",
            hint=f"Remove --engine {options.engine}, or start a server: swift serve MODEL",
        )


def check_result(result: Path | None) -> None:
    """Raise `UsageError` if the folder of --result_path is missing, before a model is loaded."""
    if result is not None and not result.parent.is_dir():
        raise UsageError(
            f"The folder {result.parent} of --result_path does not exist.", hint=f"Create it: mkdir -p {result.parent}"
        )


def quiet_libraries(options: ModelOptions) -> None:
    """Import torch and transformers without their warnings, unless a server is used."""
    if not is_address(options.engine):
        with waiting(IMPORTS):
            from swift.models.quiet import quiet_libraries

            quiet_libraries()
            importlib.import_module("swift_infer.local")


def talk(options: ModelOptions, sampling: Sampling) -> int:
    """Hold a conversation on the terminal; return the exit code."""
    from swift_infer.chat import converse
    from swift_infer.chat_engine import open_chat_engine

    with closing(open_chat_engine(options, say=print_note)) as chat_engine:
        converse(chat_engine, sampling)
    return 0


class AnyTaskOptions(QuestionOptions, InferenceOptions):
    """Options of a command for models of any task."""


def write_responses_to(
    result: Path,
    options: InferenceOptions,
    sampling: Sampling,
    questions: Sequence[Question],
    *,
    further: Mapping[str, Any] | None = None,
    line: LineOf | None = None,
) -> None:
    """Write the responses that a file still lacks; load no model if it is complete.

    Raise `DataError` if the file was made with other settings, `further` ones (a metric) included. `line` makes the
    line of a response.
    """
    from swift_infer.batch import write_responses
    from swift_infer.chat_engine import find_model, open_chat_engine
    from swift_infer.resume_file import ResumeFile

    found = None if is_address(options.engine) else find_model(options, say=print_note)
    facts = {"engine": "a server", "model": options.model}
    if found is not None:
        facts = {"engine": options.engine, **found.facts(), "dtype": options.dtype}
    settings = {
        **facts,
        "system": options.system,
        "max_new_tokens": sampling.max_new_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "seed": sampling.seed,
        **_further(options, sampling),
        **(further or {}),
    }
    with ResumeFile(result, questions, settings, overwrite=options.overwrite) as file:
        left = len(file.left())
        if left < len(questions):
            print_note(f"{result} already has {len(questions) - left} of {len(questions)} responses")
        if not left:
            return
        opened = open_chat_engine(options, batch_size=options.batch_size, say=print_note, found=found)
        with closing(opened) as chat_engine:
            try:
                cut = write_responses(chat_engine, questions, sampling, file, line=line)
            except KeyboardInterrupt:
                print_note(
                    f"Stopped. {result} has {len(questions) - len(file.left())} of {len(questions)} responses; "
                    "run the same command to continue."
                )
                raise
    ending = f"; {cut} cut off at --max_new_tokens {sampling.max_new_tokens}" if cut else ""
    print_note(f"Wrote {left} {'response' if left == 1 else 'responses'} to {result}{ending}")


def _further(options: InferenceOptions, sampling: Sampling) -> dict[str, Any]:
    """Return the settings that differ from their defaults, so that files made without them are resumed."""
    settings = {
        "top_k": sampling.top_k,
        "repetition_penalty": sampling.repetition_penalty,
        "stop": list(sampling.stop),
        "chat_template_kwargs": options.template_arguments,
    }
    return {name: value for name, value in settings.items() if value not in (0, 1, [], {})}
