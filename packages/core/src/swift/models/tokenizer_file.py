"""Compares the tokenizer that transformers builds with the rules of `tokenizer.json`.

For some types of models transformers makes a tokenizer of a class of its own, which takes the vocabulary and the
merges from the file, and not how the file cuts a text into words before they are merged. Where the two differ, the
model sees other tokens than it was trained with. What transformers makes is kept: whoever serves the result, vLLM
for one, asks transformers too, and would otherwise see tokens that swift did not train on. But it is said.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

FILE = "tokenizer.json"
SAMPLES = (
    "The quick brown fox isn't over 1,234,567 lazy dogs: it's 3.14 km away!",
    "In 2024-12-31T23:59:59 it was 1234567890, 12345.678 and 0x1234 of 100 %.",
    "def f(x):\n    return x ** 2  # comment\n\n\n\tprint(f'{f(10)}')",
    " Leading,  double   and trailing spaces \n \n",
    "Größe, naïve café, Ελληνικά, Русский, العربية, हिन्दी, 한국어, 日本語のテキスト、中文。",
    "THEY'LL HTTPServer2024 αβγ_x2 -- 👩‍👩‍👧 ½ ²",
)
"""Words, numbers, code, blanks, letters with marks, and other scripts: where rules for words differ."""


def tell_difference(tokenizer: Any, folder: Path, say: Callable[[str], None]) -> None:
    """Say, once in a process, where the tokenizer cuts texts otherwise than the folder's `tokenizer.json`."""
    if _takes_file_as_it_is(type(tokenizer)):
        return
    path = folder / FILE
    try:
        stat = path.stat()
    except OSError:
        return
    theirs = _by_file(path, stat.st_mtime_ns, stat.st_size)
    for text, expected in zip(SAMPLES, theirs, strict=False):
        if tokenizer.encode(text, add_special_tokens=False) != list(expected):
            _say_once(path, type(tokenizer).__name__, tokenizer, text, expected, say)
            return


def _takes_file_as_it_is(kind: type) -> bool:
    """Return whether transformers reads the whole file: for its general class, and for those that add nothing to it."""
    from transformers import TokenizersBackend

    if not issubclass(kind, TokenizersBackend):
        return False
    return kind is TokenizersBackend or "__init__" not in kind.__dict__


@cache
def _by_file(path: Path, _modified: int, _size: int) -> tuple[tuple[int, ...], ...]:
    """Return the samples' tokens by the file alone; nothing where it cannot be read, which loading has said already."""
    from tokenizers import Tokenizer

    try:
        read = Tokenizer.from_file(str(path))
        read.no_truncation()
        read.no_padding()  # which files of sentence encoders ask for
        return tuple(tuple(read.encode(text, add_special_tokens=False).ids) for text in SAMPLES)
    except Exception:  # what the library raises is of no class of its own
        return ()


_reported: set[tuple[Path, str]] = set()


def _say_once(
    path: Path, kind: str, tokenizer: Any, text: str, expected: tuple[int, ...], say: Callable[[str], None]
) -> None:
    if (path, kind) in _reported:
        return
    _reported.add((path, kind))
    found = tokenizer.encode(text, add_special_tokens=False)
    at = next((at for at, (one, other) in enumerate(zip(found, expected, strict=False)) if one != other), None)
    at = min(len(found), len(expected)) if at is None else at
    kept, used = [tokenizer.convert_ids_to_tokens(list(ids[max(0, at - 1) : at + 3])) for ids in (expected, found)]
    say(
        f"Warning: transformers uses {kind} for this model, which tokenizes differently from {path}: {used} instead of "
        f"{kept} (in {text[:24]!r}). Models made before transformers 5 were usually trained with the tokens of the "
        'file. To use the file, set "tokenizer_class": "TokenizersBackend" in tokenizer_config.json. If the warning '
        "stays, the model type forces the class: use another version of transformers."
    )
