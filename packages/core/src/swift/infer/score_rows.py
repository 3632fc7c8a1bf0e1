"""`swift infer` of a model that returns scores or vectors: a line of JSON for each text of a data set."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from swift.config.sections import DataSection
from swift.config.tasks import EMBEDDING, task_of
from swift.data.conversation import Conversation, Unusable, told
from swift.data.corpus import Part, open_parts
from swift.data.encodings.classification import whole_text
from swift.data.encodings.embedding import asked_whole, prompted
from swift.data.encodings.reranker import pair_of, text_of
from swift.data.formats import RowReader
from swift.data.rendering import render_asked
from swift.errors import DataError
from swift.infer.batch import WINDOW
from swift.infer.chat_engine import image_writer, text_alone
from swift.infer.find import is_asked
from swift.infer.image_messages import has_images, written
from swift.infer.questions import Question, Questions, read_row, with_system
from swift.infer.resume_file import Journal
from swift.infer.scorer import Outputs, Scorer, Tokens
from swift.infer.yes_no import YesNo, yes_no_of
from swift.models.pair_template import renders_pairs
from swift.models.sentence_files import stored_prompts
from swift.terminal import progress
from swift.untrusted import json_kind

if TYPE_CHECKING:
    from swift.data.conversation_tokens import ConversationEncoder
    from swift.data.sources.rows import RowData
    from swift.data.texts import Text
    from swift.infer.answers import Messages
    from swift.infer.batch import Asked
    from swift.infer.chat_engine import FoundModel
    from swift.infer.image_prompts import ImagePromptWriter
    from swift.infer.options import ModelOptions, QuestionOptions

TEXT = "text"
"""The role of a text that is no conversation."""
PAIR = ("query", "document")
_TEXTS = (TEXT, "query", "document", "anchor", "sentence")
"""Columns that hold a text by itself, of which a vector is made; also the roles of such texts."""
_QUERIES = ("query", "anchor")
"""Those of texts that begin with the model's prompt of queries."""


class TextRows(Questions):
    """The rows of some data sets as texts, pairs of a query and a document, or whole conversations."""

    def __init__(
        self, parts: Sequence[Part], system: str | None, task: str, *, pairs: bool = False, images: bool = False
    ) -> None:
        super().__init__(parts, system)
        self._columns = _TEXTS if task == EMBEDDING else (TEXT,)
        self._pairs = pairs
        """Whether nothing else than pairs of a query and a document can be scored."""
        self._images = images
        """Whether texts may hold images."""

    def of(self, part: Part, index: int) -> Question:
        """Return one row."""
        row = read_row(part, index)
        column = None if self._pairs else next((name for name in self._columns if isinstance(row.get(name), str)), None)
        if column is not None:
            return self._said(part, row, (column,), part.rows.place(index))
        if all(isinstance(row.get(name), str) for name in PAIR):
            return self._said(part, row, PAIR, part.rows.place(index))
        if isinstance(row.get("query"), str) and "document" in row:
            raise DataError(
                f"{part.rows.place(index)}: the column 'document' beside 'query' is "
                f"{json_kind(row['document'])}, not a text.",
                hint="Give each document a row of its own.",
            )
        if self._pairs:
            raise DataError(
                f"{part.rows.place(index)}: a generative reranker scores a document for a query, and the columns query "
                "and document hold no texts.",
                hint='Rename columns with --columns \'{"yours": "document"}\'.',
            )
        asked = super().of(part, index)
        if asked.expected is None:
            return asked
        whole = [*asked.messages, {"role": "assistant", "content": asked.expected}]
        return Question(whole, tools=asked.tools, extras=asked.extras, place=asked.place)

    def _said(self, part: Part, row: RowData, columns: Sequence[str], place: str) -> Question:
        """Return the texts of some columns, with the images of the row in them where the model reads any."""
        texts, extras = [told(row[name]) for name in columns], _without(row, *columns)
        if self._images:
            reader = RowReader(row, place, part.tags, part.root)
            try:
                texts = reader.with_media_in_turn(texts)
            except Unusable as unusable:
                raise DataError(f"{place}: {unusable.reason}: {unusable.detail}.", hint="Fix the row.") from None
            extras = _without(extras, *reader.used)
        said = [{**text.messages[0], "role": name} for name, text in zip(columns, texts, strict=True)]
        for message in said if len(said) > 1 else ():
            if isinstance(message["content"], str) and not message["content"].strip():
                raise DataError(
                    f"{place}: the {message['role']} is empty, and there is nothing to score.",
                    hint="Leave the row out.",
                )
        return Question(said, extras=extras, place=place)


def read_texts(asked: QuestionOptions, found: FoundModel, system: str | None) -> TextRows:
    """Return the rows that are to be scored."""
    section = DataSection(train=asked.dataset, columns=asked.columns)
    pairs = is_asked(found.location.objective, asked.task_type)
    parts, sees = open_parts(section.train, section), found.source.processor is not None
    return TextRows(parts, system, task_of(found.source), pairs=pairs, images=sees)


def score_into(
    result: Path, found: FoundModel, options: ModelOptions, asked: QuestionOptions, rows: Asked,
    *, say: Callable[[str], None],
) -> None:  # fmt: skip
    """Write a line for each row into a file. Rows that it has already are not computed again."""
    yes_no = _yes_no(found, options, asked)
    settings: dict[str, Any] = {"engine": options.engine, **found.facts(), "dtype": options.dtype}
    settings |= {"system": options.system, **({} if yes_no is None else {"asked": yes_no.options.model_dump()})}
    with Journal(result, rows, settings, overwrite=asked.overwrite) as journal:
        left = journal.left()
        if len(left) < len(rows):
            say(f"{len(rows) - len(left)} of {len(rows)} texts are scored in {result}")
        if left:
            scorer = _scorer(found, options, asked, yes_no, say)
            with _writer(found, options) as writer:
                for row, line in _scored(scorer, found, rows, left, yes_no, writer):
                    journal.write(row, line)
    say(f"{len(left)} {'line' if len(left) == 1 else 'lines'} written to {result}")


def print_scores(
    found: FoundModel, options: ModelOptions, asked: QuestionOptions, rows: Asked, *, say: Callable[[str], None]
) -> None:
    """Print a line of JSON for each row, in order."""
    yes_no = _yes_no(found, options, asked)
    scorer = _scorer(found, options, asked, yes_no, say)
    with _writer(found, options) as writer:
        lines = dict(_scored(scorer, found, rows, range(len(rows)), yes_no, writer))
    for row in range(len(rows)):
        sys.stdout.write(json.dumps(lines[row], ensure_ascii=False, default=str) + "\n")


def _yes_no(found: FoundModel, options: ModelOptions, asked: QuestionOptions) -> YesNo | None:
    longest = options.max_length or getattr(found.source.config.get_text_config(), "max_position_embeddings", None)
    section = DataSection(system=options.system or found.location.system, **options.pixels(found.location.pixels))
    if longest is not None:
        section = section.model_copy(update={"max_length": longest})
    return yes_no_of(found, asked.task_type, section)


def _scorer(
    found: FoundModel, options: ModelOptions, asked: QuestionOptions, yes_no: YesNo | None, say: Callable[[str], None]
) -> Scorer:
    reranker = None if yes_no is None else yes_no.objective
    return Scorer(found, options, batch_size=asked.batch_size, say=say, reranker=reranker)


@contextmanager
def _writer(found: FoundModel, options: ModelOptions) -> Iterator[ImagePromptWriter | None]:
    """Give what writes texts with images; None for a model that reads text alone."""
    writer = None if found.source.processor is None else image_writer(found, options)
    try:
        yield writer
    finally:
        if writer is not None:
            writer.close()


def _scored(
    scorer: Scorer,
    found: FoundModel,
    rows: Asked,
    chosen: Sequence[int],
    yes_no: YesNo | None,
    writer: ImagePromptWriter | None,
) -> Iterator[tuple[int, dict[str, Any]]]:
    def work() -> Iterator[tuple[int, dict[str, Any]]]:
        for start in range(0, len(chosen), WINDOW):
            some = chosen[start : start + WINDOW]
            questions = [rows[row] for row in some]
            tokens = [_some_tokens(question, found, yes_no, writer) for question in questions]
            for question, each in zip(questions, tokens, strict=True):
                scorer.check_length(len(each), question.place or "The text")
            for place, outputs in scorer.outputs(tokens):
                question = questions[place]
                messages = written(question.messages)
                columns = {TEXT: messages[0]["content"]} if _is_text(messages) else {"messages": messages}
                yield some[place], {**question.extras, **columns, **line_of_outputs(outputs, found)}

    yield from progress(work(), "scoring", total=len(chosen))


def _some_tokens(
    question: Question, found: FoundModel, yes_no: YesNo | None, writer: ImagePromptWriter | None
) -> Tokens:
    """Return the tokens of what is to be scored; raise `DataError` where there are none."""
    tokens = tokens_of(question, found, yes_no, writer)
    if not len(tokens):
        raise DataError(
            f"{question.place or 'The text'}: the text is empty, and there is nothing to score.",
            hint="Leave it out.",
        )
    return tokens


def tokens_of(
    question: Question,
    found: FoundModel,
    yes_no: YesNo | None = None,
    writer: ImagePromptWriter | None = None,
) -> Tokens:
    """Return the tokens of a text, of a query with a document, or of a whole conversation.

    `writer` writes those that hold images, which have them in their tokens.
    """
    if yes_no is not None:
        query, document = (message["content"] for message in question.messages)
        return yes_no.tokens(query, document, question.place)
    if has_images(question.messages):
        if writer is None:
            raise text_alone(found.name)
        return writer.tokens(partial(_image_text, question, found), question.place)
    tokenizer, messages = found.source.tokenizer, question.messages
    roles = [message["role"] for message in messages]
    if roles == ["query", "document"] and not renders_pairs(str(tokenizer.chat_template)):
        query, document = (str(message["content"]) for message in messages)
        text = text_of(query, document, found.location.objective.get("instruction"))
        ids = list(tokenizer(text)["input_ids"])
        end = tokenizer.eos_token_id
        return ids if end is None or ids[-1:] == [end] else [*ids, end]
    if _is_text(messages):
        return list(tokenizer(_prompt(roles[0], found) + messages[0]["content"])["input_ids"])
    if tokenizer.chat_template is None:
        return list(tokenizer("".join(message["content"] for message in messages))["input_ids"])
    if roles != ["query", "document"]:
        messages = with_system(messages, found.location.system)
    text = render_asked(tokenizer, messages, place=question.place, tools=question.tools or None)
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])


def _image_text(question: Question, found: FoundModel, encoder: ConversationEncoder) -> Text:
    """Return what a run of the model makes of a text, a pair or a conversation with images."""
    messages, place = question.messages, question.place
    roles = [message["role"] for message in messages]
    if roles == list(PAIR):
        query, document = (told(message["content"]) for message in messages)
        return asked_whole(pair_of(query, document, found.location.objective.get("instruction")), place, encoder)
    if _is_text(messages):
        return asked_whole(prompted(_prompt(roles[0], found), told(messages[0]["content"])), place, encoder)
    messages = with_system(messages, found.location.system)
    whole = Conversation(tuple(messages), (1.0,) * len(messages), tuple(question.tools))
    write = asked_whole if task_of(found.source) == EMBEDDING else whole_text
    return write(whole, place, encoder)


def _is_text(messages: Messages) -> bool:
    """Return whether this is a text by itself, no conversation and no pair."""
    return len(messages) == 1 and messages[0]["role"] in _TEXTS


def _prompt(column: str, found: FoundModel) -> str:
    """Return what an embedding model was trained to read before a text of this column."""
    if task_of(found.source) != EMBEDDING or column not in (*_QUERIES, "document"):
        return ""
    query, document = prompts_of(found)
    return query if column in _QUERIES else document


def prompts_of(found: FoundModel) -> tuple[str, str]:
    """Return what an embedding model reads before every query, and before every document."""
    objective, kept = found.location.objective, stored_prompts(found.source.folder)
    names = ("query", "document")
    query, document = (str(objective.get(f"{name}_prompt") or kept.get(name, "")) for name in names)
    return query, document


def line_of_outputs(outputs: Outputs, found: FoundModel) -> dict[str, Any]:
    """Return what is written of a text: a vector of length 1, a score, or labels with the scores of all."""
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
