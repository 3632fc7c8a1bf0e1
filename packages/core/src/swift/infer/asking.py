"""Shared parts of commands that ask a model: checks of options, a conversation, answers into a file."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING

from swift.errors import UsageError
from swift.infer.options import AnsweringOptions, ModelOptions, QuestionOptions, SamplingOptions, is_address
from swift.plugins.known import ENGINE, ENGINE_TITLE, TRANSFORMERS, TRANSFORMERS_OPTIONS
from swift.terminal import IMPORTS, print_note, waiting

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from swift.contracts import Sampling
    from swift.infer.answers import ChatEngine
    from swift.infer.batch import Asked, LineOf
    from swift.infer.chat_engine import FoundModel


def check_model(command: str, options: ModelOptions) -> None:
    """Raise `UsageError` where nobody is named who could answer, or the engine has no such setting."""
    if options.model is None and not is_address(options.engine):
        raise UsageError(
            f"swift {command} needs a model.", hint=f"For example: swift {command} output/my-model/v0-20260101-120000"
        )
    if options.engine == TRANSFORMERS:
        for name in options.engine_options:
            if name not in TRANSFORMERS_OPTIONS:
                raise UsageError(
                    f"The engine transformers has no setting {name!r}.",
                    hint=f"Add --engine {ENGINE} for a setting of {ENGINE_TITLE}, or leave it out.",
                )


def returns_scores(options: AskingOptions) -> bool:
    """Return whether scores or vectors are asked of the model instead of text: by its files, or by the user."""
    if options.model is None or is_address(options.engine):
        if options.task_type is not None:
            raise UsageError(
                f"--task_type is about a model that is loaded here, and {options.engine} is asked for text.",
                hint="Leave it out, or name a model instead of --engine.",
            )
        return False
    from swift.config.tasks import CAUSAL_LM, returns
    from swift.infer.find import find_weights, is_asked

    place = find_weights(options.model, adapter=options.adapters, trust_remote_code=options.trust_remote_code)
    task = place.weights.task
    if options.task_type is not None and task != CAUSAL_LM:
        raise UsageError(
            f"--task_type {options.task_type} asks a language model, and {options.model} returns {returns(task)}.",
            hint="Leave it out.",
        )
    return task != CAUSAL_LM or is_asked(place.objective, options.task_type)


def check_scoring(options: AskingOptions, *unused: str) -> None:
    """Raise `UsageError` for flags that do not apply to a model that returns scores or vectors."""
    asked = [name for name in (*SamplingOptions.model_fields, *unused) if name in options.model_fields_set]
    if asked:
        where = " The scores of each text: swift infer MODEL --dataset FILE" if asked[0] == "result_path" else ""
        raise UsageError(
            f"{options.model} returns scores or vectors, and --{asked[0]} is for models that generate text.",
            hint=f"Leave it out.{where}",
        )
    if options.engine != TRANSFORMERS:
        raise UsageError(
            f"{options.model} returns scores or vectors, which --engine {options.engine} is not asked for here.",
            hint="Leave --engine out, or start a server: swift serve MODEL",
        )


def check_result(result: Path | None) -> None:
    """Raise `UsageError` where answers could not be written, before a model is loaded."""
    if result is not None and not result.parent.is_dir():
        raise UsageError(
            f"There is no folder {result.parent} for --result_path.", hint=f"Type: mkdir -p {result.parent}"
        )


def quiet_libraries(options: ModelOptions) -> None:
    """Silence torch and transformers where they are needed: whoever asks a server does without them."""
    if not is_address(options.engine):
        with waiting(IMPORTS):
            from swift.models.quiet import quiet_libraries

            quiet_libraries()
            importlib.import_module("swift.infer.local")


def talk(options: ModelOptions, sampling: Sampling) -> int:
    """Hold a conversation on the terminal; returns the exit code."""
    from swift.infer.chat import converse
    from swift.infer.chat_engine import open_chat_engine

    chat_engine = open_chat_engine(options, say=print_note)
    try:
        converse(chat_engine, sampling)
    finally:
        chat_engine.close()
    return 0


class AskingOptions(QuestionOptions, AnsweringOptions):
    """Options of a command that asks many questions, or scores many texts."""


def answer_into(
    result: Path,
    options: AnsweringOptions,
    sampling: Sampling,
    questions: Asked,
    *,
    further: Mapping[str, Any] | None = None,
    line: LineOf | None = None,
) -> None:
    """Answer into a file. Questions that it answers already are not asked again; with none left, no model is loaded.

    Files of other `further` settings, the metric by which answers are judged say, are not mixed; `line` makes what is
    written of an answer.
    """
    from swift.infer.batch import write_answers
    from swift.infer.chat_engine import find_model, open_chat_engine, open_local
    from swift.infer.resume_file import Journal

    found: FoundModel | None = None
    if is_address(options.engine):
        facts = {"engine": "a server", "model": options.model}
    else:
        found = find_model(options, say=print_note)
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
    with Journal(result, questions, settings, overwrite=options.overwrite) as journal:
        left = len(journal.left())
        if left < len(questions):
            print_note(f"{len(questions) - left} of {len(questions)} questions are answered in {result}")
        if not left:
            return
        size = options.batch_size
        chat_engine: ChatEngine = (
            open_chat_engine(options, batch_size=size, say=print_note)
            if found is None
            else open_local(found, options, batch_size=size, say=print_note)
        )
        try:
            cut = write_answers(chat_engine, questions, sampling, journal, line=line)
        except KeyboardInterrupt:
            print_note(
                f"Stopped; {len(questions) - len(journal.left())} of {len(questions)} questions are answered in "
                f"{result}. The same command continues."
            )
            raise
        finally:
            chat_engine.close()
    ending = f"; {cut} cut off after --max_new_tokens {sampling.max_new_tokens}" if cut else ""
    print_note(f"{left} {'answer' if left == 1 else 'answers'} written to {result}{ending}")


def _further(options: AnsweringOptions, sampling: Sampling) -> dict[str, Any]:
    """Return the settings that say something; files of answers that were made without them are continued."""
    settings = {
        "top_k": sampling.top_k,
        "repetition_penalty": sampling.repetition_penalty,
        "stop": list(sampling.stop),
        "chat_template_kwargs": options.template_arguments,
    }
    return {name: value for name, value in settings.items() if value not in (0, 1, [], {})}
