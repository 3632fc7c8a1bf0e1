"""`swift infer` for models that return scores or vectors: a line of JSON for each row of a data set."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from swift.config.sections import DataSection
from swift.data import DatasetPart, Pair, joined_pairs, open_parts, prompt_only
from swift.data.encodings import Conversation, RowReader, Unusable
from swift.data.rendering import render_prompt
from swift.errors import DataError
from swift.models import is_encoder, renders_pairs, stored_prompts
from swift.parsing.tasks import EMBEDDING, task_of
from swift.terminal import progress
from swift.untrusted import json_kind
from swift_infer.batch import WINDOW
from swift_infer.chat_engine import image_writer, no_images
from swift_infer.image_messages import has_images, written
from swift_infer.questions import Question, Questions, read_row, with_system
from swift_infer.resume_file import ResumeFile
from swift_infer.scorer import Outputs, Scorer, Tokens
from swift_infer.scoring import RowScores
from swift_objectives import pair_of, pair_text, prompt_text_of, prompted, whole_text

if TYPE_CHECKING:
    from swift.contracts import Objective
    from swift.data import RowData, Text
    from swift.data.encodings import ConversationEncoder
    from swift_infer.chat_engine import FoundModel
    from swift_infer.commands.common import AnyTaskOptions
    from swift_infer.image_prompts import ImagePromptWriter
    from swift_infer.response import Messages

TEXT = "text"
"""The role of a plain text."""
PAIR = ("query", "document")
_TEXT_COLUMNS = (TEXT, "query", "document", "anchor", "sentence")
"""Columns of plain text to embed, also its roles."""
_RANKED = ("positive", "negative")
"""Columns of documents that rerankers are trained on, and measured with."""
_QUERIES = ("query", "anchor")
"""Those that get the model's query prompt."""


class TextRows(Questions):
    """The rows of some data sets as plain text, pairs of a query and a document, or whole conversations."""

    def __init__(
        self,
        parts: Sequence[DatasetPart],
        system: str | None,
        task: str,
        *,
        objective: Objective | None = None,
        images: bool = False,
    ) -> None:
        super().__init__(parts, system)
        self._columns = _TEXT_COLUMNS if task == EMBEDDING else (TEXT,)
        self._objective = objective
        """The only columns that can be scored are those that it asks for."""
        self._images = images
        """Whether rows may hold images."""

    def of(self, part: DatasetPart, index: int) -> Question:
        """Return one row."""
        row, source = read_row(part, index), part.rows.location(index)
        choices = [(name,) for name in self._columns] + [PAIR] if self._objective is None else [self._objective.asks]
        for columns in choices:
            if all(isinstance(row.get(name), str) for name in columns):
                return self._messages(part, row, columns, source)
        documents = [name for name in (PAIR[1], *_RANKED) if name in row]
        if PAIR in choices and isinstance(row.get(PAIR[0]), str) and documents:
            wrong = f"is {json_kind(row[documents[0]])}, not a string" if documents[0] == PAIR[1] else "is not scored"
            raise DataError(
                f"{source}: the column {documents[0]!r} {wrong}.",
                hint="Write one row per document, with the columns query and document. To measure rankings: swift eval",
            )
        if self._objective is not None:
            asks = self._objective.asks
            raise DataError(
                f"{source}: the objective {self._objective.name} needs the columns {' and '.join(asks)}, as strings.",
                hint=f'To rename columns: --columns \'{{"yours": "{asks[-1]}"}}\'',
            )
        question = super().of(part, index)
        if question.expected is None:
            return question
        whole = [*question.messages, {"role": "assistant", "content": question.expected}]
        return Question(whole, tools=question.tools, extras=question.extras, source=question.source)

    def _messages(self, part: DatasetPart, row: RowData, columns: Sequence[str], source: str) -> Question:
        """Return some columns as messages, with the row's images if the model reads any."""
        conversations, extras = [prompt_only(row[name]) for name in columns], _without(row, *columns)
        if self._images:
            reader = RowReader(row, source, part.tags, part.root)
            try:
                conversations = reader.with_media_in_turn(conversations)
            except Unusable as unusable:
                raise DataError(f"{source}: {unusable.reason}: {unusable.detail}.", hint="Fix the row.") from None
            extras = _without(extras, *reader.used)
        messages = [{**each.messages[0], "role": name} for name, each in zip(columns, conversations, strict=True)]
        for message in messages if len(messages) > 1 else ():
            if isinstance(message["content"], str) and not message["content"].strip():
                raise DataError(f"{source}: the {message['role']} is empty.", hint="Remove the row.")
        return Question(messages, extras=extras, source=source)


def read_rows(options: AnyTaskOptions, found: FoundModel, objective: Objective | None) -> TextRows:
    """Return the rows to score."""
    section = DataSection(train=options.dataset, columns=options.columns)
    parts, sees = open_parts(section.train, section), found.source.processor is not None
    return TextRows(parts, options.system, task_of(found.source), objective=objective, images=sees)


class RowScorer:
    """Writes or prints a line of JSON for each row of a data set."""

    def __init__(
        self,
        found: FoundModel,
        options: AnyTaskOptions,
        rows: Sequence[Question],
        objective: Objective | None,
        *,
        say: Callable[[str], None],
    ) -> None:
        self._found, self._options, self._rows, self._say = found, options, rows, say
        section = DataSection(system=options.system or found.location.system, **options.pixels(found.location.pixels))
        config = found.source.config.get_text_config()
        longest = options.max_length or getattr(config, "max_position_embeddings", None)
        if longest is not None:
            section = section.model_copy(update={"max_length": longest})
        self._scores = None if objective is None else RowScores(objective, found.source, section)

    def write(self, result: Path) -> None:
        """Write the lines into a file; skip rows that it already has."""
        options, count = self._options, len(self._rows)
        settings: dict[str, Any] = {"engine": options.engine, **self._found.facts(), "dtype": options.dtype}
        settings["system"] = options.system
        if self._scores is not None:
            objective = self._scores.objective
            settings["objective"] = {"name": objective.name, **objective.options.model_dump(mode="json")}
        with ResumeFile(result, self._rows, settings, overwrite=options.overwrite) as file:
            left = file.left()
            if len(left) < count:
                self._say(f"{result} already has {count - len(left)} of {count} lines")
            for row, line in self._scored(left) if left else ():
                file.write(row, line)
        self._say(f"Wrote {len(left)} {'line' if len(left) == 1 else 'lines'} to {result}")

    def print(self) -> None:
        """Print the lines in order."""
        lines = dict(self._scored(range(len(self._rows))))
        for row in range(len(self._rows)):
            sys.stdout.write(json.dumps(lines[row], ensure_ascii=False, default=str) + "\n")

    def _scored(self, chosen: Sequence[int]) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield (row, line) of these rows, with a progress bar."""
        found, options = self._found, self._options
        scorer = Scorer(found, options, batch_size=options.batch_size, say=self._say, scores=self._scores)
        writer = None if found.source.processor is None else image_writer(found, options)
        try:
            yield from progress(self._lines(scorer, writer, chosen), "scoring", total=len(chosen))
        finally:
            if writer is not None:
                writer.close()

    def _lines(
        self, scorer: Scorer, writer: ImagePromptWriter | None, chosen: Sequence[int]
    ) -> Iterator[tuple[int, dict[str, Any]]]:
        for start in range(0, len(chosen), WINDOW):
            window = chosen[start : start + WINDOW]
            questions = [self._rows[row] for row in window]
            tokens = [_non_empty_tokens(question, self._found, self._scores, writer) for question in questions]
            for question, each in zip(questions, tokens, strict=True):
                scorer.check_length(len(each), question.source or "The text")
            for index, outputs in scorer.outputs(tokens):
                question = questions[index]
                messages = written(question.messages)
                columns = {TEXT: messages[0]["content"]} if _is_text(messages) else {"messages": messages}
                found = line_of_outputs(outputs, self._found)
                own = [
                    question.extras[name]
                    for name in ("label", "labels", "score")
                    if name in found.keys() & question.extras
                ]
                expected = {"expected": own[0]} if own else {}
                yield window[index], {**question.extras, **columns, **found, **expected}


def _non_empty_tokens(
    question: Question, found: FoundModel, scores: RowScores | None, writer: ImagePromptWriter | None
) -> Tokens:
    """Return the tokens of a row; raise `DataError` if there are none."""
    tokens = tokens_of(question, found, scores, writer)
    if not len(tokens):
        raise DataError(f"{question.source or 'The prompt'}: the text is empty.", hint="Remove it.")
    return tokens


def tokens_of(
    question: Question,
    found: FoundModel,
    scores: RowScores | None = None,
    writer: ImagePromptWriter | None = None,
) -> Tokens:
    """Return the tokens of a plain text, of a query with a document, or of a whole conversation.

    `writer` renders those with images.
    """
    if scores is not None:
        return scores.segment([message["content"] for message in question.messages], question.source or "The prompt")
    if has_images(question.messages):
        if writer is None:
            raise no_images(found.name)
        return writer.tokens(partial(_image_text, question, found), question.source)
    tokenizer, messages = found.source.tokenizer, question.messages
    roles = [message["role"] for message in messages]
    if roles == list(PAIR) and is_encoder(found.source.config):
        return joined_pairs(tokenizer, [Pair(*(str(message["content"]) for message in messages))])[0]
    if roles == list(PAIR) and not renders_pairs(str(tokenizer.chat_template)):
        query, document = (str(message["content"]) for message in messages)
        text = pair_text(query, document, found.location.objective.get("instruction"))
        ids = list(tokenizer(text)["input_ids"])
        end = tokenizer.eos_token_id
        return ids if end is None or ids[-1:] == [end] else [*ids, end]
    if _is_text(messages):
        return list(tokenizer(_prompt(roles[0], found) + messages[0]["content"])["input_ids"])
    if tokenizer.chat_template is None:
        return list(tokenizer("".join(message["content"] for message in messages))["input_ids"])
    if roles != ["query", "document"]:
        messages = with_system(messages, found.location.system)
    text = render_prompt(tokenizer, messages, location=question.source, tools=question.tools or None)
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])


def _image_text(question: Question, found: FoundModel, encoder: ConversationEncoder) -> Text:
    """Return a text, a pair or a conversation with images, rendered as in training."""
    messages, source = question.messages, question.source
    roles = [message["role"] for message in messages]
    if roles == list(PAIR):
        query, document = (prompt_only(message["content"]) for message in messages)
        return prompt_text_of(pair_of(query, document, found.location.objective.get("instruction")), source, encoder)
    if _is_text(messages):
        return prompt_text_of(prompted(_prompt(roles[0], found), prompt_only(messages[0]["content"])), source, encoder)
    messages = with_system(messages, found.location.system)
    whole = Conversation(tuple(messages), (1.0,) * len(messages), tuple(question.tools))
    write = prompt_text_of if task_of(found.source) == EMBEDDING else whole_text
    return write(whole, source, encoder)


def _is_text(messages: Messages) -> bool:
    """Return whether this is a plain text, not a conversation or a pair."""
    return len(messages) == 1 and messages[0]["role"] in _TEXT_COLUMNS


def _prompt(column: str, found: FoundModel) -> str:
    """Return an embedding model's prompt for this column."""
    if task_of(found.source) != EMBEDDING or column not in (*_QUERIES, "document"):
        return ""
    query, document = prompts_of(found)
    return query if column in _QUERIES else document


def prompts_of(found: FoundModel) -> tuple[str, str]:
    """Return the query prompt and the document prompt of an embedding model."""
    objective, kept = found.location.objective, stored_prompts(found.source.folder)
    names = ("query", "document")
    query, document = (str(objective.get(f"{name}_prompt") or kept.get(name, "")) for name in names)
    return query, document


def line_of_outputs(outputs: Outputs, found: FoundModel) -> dict[str, Any]:
    """Return the columns of a row: a normalized vector, a score, or labels with all scores."""
    if task_of(found.source) == EMBEDDING:
        return {"vector": (outputs / max(float(np.linalg.norm(outputs)), 1e-12)).tolist()}
    if len(outputs) == 1:
        return {"score": float(outputs[0])}
    names: Mapping[int, str] = found.source.config.id2label
    if found.problem_type == "multi_label_classification":
        return {"labels": [names[int(label)] for label in np.flatnonzero(outputs > 0)], "scores": outputs.tolist()}
    return {"label": names[int(outputs.argmax())], "scores": outputs.tolist()}


def _without(row: Mapping[str, Any], *columns: str) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name not in columns}
