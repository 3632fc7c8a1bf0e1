"""Whether teacher and student mean the same by the number of a token."""

from __future__ import annotations

from typing import TYPE_CHECKING

from swift.errors import ConfigError

if TYPE_CHECKING:
    from swift.contracts import ModelSource


def size_of(source: ModelSource) -> int:
    """Return how many tokens the output layer of a model has, with those that no text is made of."""
    return int(source.config.get_text_config().vocab_size)


def check_vocabularies(teacher: ModelSource, student: ModelSource, name: str) -> None:
    """Refuse a teacher whose tokens are others than the student's.

    Output layers may be padded to different sizes, and either tokenizer may have tokens beyond the end of the other's.
    """
    theirs, ours = ({at: token for token, at in each.tokenizer.get_vocab().items()} for each in (teacher, student))
    differing = sorted(at for at in theirs.keys() & ours.keys() if theirs[at] != ours[at])
    if differing:
        first = differing[0]
        raise ConfigError(
            f"The teacher {name} has another vocabulary than the student, of {len(theirs)} and {len(ours)} tokens: "
            f"{len(differing)} numbers mean different tokens, {first} is {theirs[first]!r} and {ours[first]!r}.",
            hint="Choose a teacher with the student's tokenizer, or learn its answers as text: swift infer TEACHER "
            "--dataset FILE --result_path answers.jsonl, and swift sft",
        )
