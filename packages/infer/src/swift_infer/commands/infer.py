"""`swift infer MODEL` and `swift chat MODEL`: generate responses to prompts, to a data set, or in a conversation."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from typing import Annotated

from pydantic import Field

from swift.config.limits import FilePath
from swift.config.media import LIMITS, NAMES
from swift.config.options import Aliases, Verbatim
from swift.errors import UsageError
from swift.terminal import print_note
from swift_infer.commands.common import (
    AnyTaskOptions,
    check_model,
    check_result,
    check_scoring,
    quiet_libraries,
    returns_scores,
    talk,
    write_responses_to,
)
from swift_infer.options import ModelOptions, SamplingOptions


class InferOptions(SamplingOptions, AnyTaskOptions):
    """Responds to --prompt or --dataset; without either, starts a conversation.

    Responses are written to --result_path as soon as they are complete; after an interruption the same command
    continues.
    """

    examples = (
        "swift infer output/my-model/v0-20260101-120000 --prompt 'Hello!'",
        "swift infer qwen3-0.6b --dataset questions.jsonl --result_path responses.jsonl",
    )
    prompt: Annotated[tuple[str, ...], Aliases("query"), Verbatim()] = Field((), description="Prompt; may be repeated")
    image: Annotated[tuple[FilePath, ...], Aliases("images")] = Field(
        (), description="Image for --prompt, at its tag <image> or before it; may be repeated"
    )
    video: Annotated[tuple[FilePath, ...], Aliases("videos")] = Field(
        (), description="Video for --prompt, at its tag <video> or before it; may be repeated"
    )
    audio: Annotated[tuple[FilePath, ...], Aliases("audios")] = Field(
        (), description="Audio file for --prompt, at its tag <audio> or before it; may be repeated"
    )
    stream: bool | None = Field(
        None, description="Print responses to --prompt while they are generated; conversations always do"
    )


class InferCommand:
    """Implements `swift.contracts.Command`."""

    summary = "Generate responses to prompts from a file or the keyboard"
    group = "Use the result"
    options_model = InferOptions

    def run(self, options: InferOptions) -> int:
        """Respond to prompts or a data set; without either, start a conversation. Return the exit code."""
        check_model("infer", options)
        scoring = returns_scores(options)
        for kind in NAMES:
            if getattr(options, kind) and not options.prompt:
                raise UsageError(
                    f"--{kind} needs --prompt.",
                    hint="Add --prompt TEXT. Rows of a data set contain their own; in a conversation type /image FILE.",
                )
        if scoring:
            return _score(options)
        if options.prompt and options.dataset:
            raise UsageError("--prompt and --dataset cannot be used together.", hint="Keep one of them.")
        _check_stream(options)
        check_result(options.result_path)
        quiet_libraries(options)
        if not options.prompt and not options.dataset:
            return talk(options, options.sampling)
        from swift_infer.batch import print_responses, stream_responses
        from swift_infer.chat_engine import open_chat_engine
        from swift_infer.image_messages import question_of
        from swift_infer.questions import Question, read_questions

        questions: Sequence[Question]
        if options.dataset:
            questions = read_questions(options.dataset, options.columns, system=options.system)
        else:
            held = {kind: getattr(options, kind) for kind in NAMES}
            questions = [Question([question_of(each, held)]) for each in options.prompt]
        if options.result_path is not None:
            write_responses_to(options.result_path, options, options.sampling, questions)
            return 0
        with closing(open_chat_engine(options, batch_size=options.batch_size, say=print_note)) as chat_engine:
            respond = stream_responses if options.stream else print_responses
            respond(chat_engine, questions, options.sampling)
        return 0


class ChatOptions(SamplingOptions, ModelOptions):
    """The model sees the whole conversation. /help lists the commands; /exit or Ctrl-D quits."""

    examples = ("swift chat output/my-model/v0-20260101-120000", "swift chat --engine http://127.0.0.1:8000")


class ChatCommand:
    """Implements `swift.contracts.Command`."""

    summary = "Chat with a model"
    group = "Use the result"
    options_model = ChatOptions

    def run(self, options: ChatOptions) -> int:
        """Chat with a model until the user quits; return the exit code."""
        check_model("chat", options)
        quiet_libraries(options)
        return talk(options, options.sampling)


def _score(options: InferOptions) -> int:
    """Write scores or vectors."""
    check_scoring(options, "stream")
    if bool(options.prompt) == bool(options.dataset):
        raise UsageError(
            f"{options.model} returns scores or vectors, and needs either --dataset or --prompt.",
            hint="Keep one of them." if options.prompt else "Type --dataset FILE, or --prompt TEXT.",
        )
    check_result(options.result_path)
    quiet_libraries(options)
    from swift_infer.chat_engine import find_model
    from swift_infer.image_messages import question_of
    from swift_infer.questions import Question
    from swift_infer.score_rows import TEXT, RowScorer, read_rows
    from swift_infer.scoring import scoring_objective

    found = find_model(options, generates=False, say=print_note)
    found.check_scores_sequences()
    if found.source.processor is None:
        check_scoring(options, *NAMES, *LIMITS)
    objective = scoring_objective(found.location, options.task_type)
    if options.prompt and objective is not None and len(objective.asks) > 1:
        columns = " and ".join(objective.asks)
        raise UsageError(
            f"{options.model} scores pairs of {columns}, and cannot score a --prompt.",
            hint=f"Type --dataset FILE with the columns {columns}. To chat with it type swift chat MODEL",
        )
    held = {kind: getattr(options, kind) for kind in NAMES}
    rows: Sequence[Question] = [Question([{**question_of(text, held), "role": TEXT}]) for text in options.prompt]
    if options.dataset:
        rows = read_rows(options, found, objective)
    scorer = RowScorer(found, options, rows, objective, say=print_note)
    if options.result_path is not None:
        scorer.write(options.result_path)
    else:
        scorer.print()
    return 0


def _check_stream(options: InferOptions) -> None:
    """Raise `UsageError` where --stream does not apply."""
    if options.stream and (options.dataset or options.result_path is not None):
        raise UsageError(
            "--stream cannot be used with --dataset or --result_path: their prompts are generated in batches.",
            hint="Leave --stream out.",
        )
    if options.stream is False and not options.prompt and not options.dataset:
        raise UsageError(
            "--stream false needs --prompt: conversations always stream.",
            hint="Leave --stream out, or add --prompt TEXT.",
        )
