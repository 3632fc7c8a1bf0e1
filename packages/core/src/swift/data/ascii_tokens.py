"""Tokens of plain ASCII text, looked up word by word: several times as fast as the tokenizers library.

A byte-level tokenizer cuts a text at its special tokens and then into words by a pattern, and turns each word into
tokens without looking at the others. So a table of the words seen before gives the same tokens. Only patterns whose
meaning for ASCII is known are handled, and only text that is ASCII throughout: there nothing depends on tables of
Unicode, and normalising changes nothing.
"""

from __future__ import annotations

import json
import re
from array import array
from collections.abc import Callable
from itertools import chain
from typing import Any

import numpy as np

_LIKE_GPT_2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LIKE_QWEN_2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_LIKE_QWEN_3_5 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_ASCII_OF_QWEN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\nA-Za-z0-9]?[A-Za-z]+|[0-9]| ?[^\sA-Za-z0-9]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_ASCII = {
    _LIKE_GPT_2: r"'s|'t|'re|'ve|'m|'ll|'d| ?[A-Za-z]+| ?[0-9]+| ?[^\sA-Za-z0-9]+|\s+(?!\S)|\s+",
    _LIKE_QWEN_2: _ASCII_OF_QWEN,
    _LIKE_QWEN_3_5: _ASCII_OF_QWEN,
    _LIKE_QWEN_2.replace(r"\p{N}|", r"\p{N}{1,3}|"): _ASCII_OF_QWEN.replace("[0-9]|", "[0-9]{1,3}|"),
}
"""Patterns of words (GPT-2, Qwen 2 and 3, Qwen 3.5, Llama 3), and what they come to where all text is ASCII."""
_UNCHANGING = ("NFC", "NFD", "NFKC", "NFKD")
"""Normalisers that leave ASCII as it is."""
_MOST = 1 << 16
"""Words in the table."""
_LONGEST = 32
"""Characters of a word that is worth keeping."""


class WordTable:
    """Tokens of ASCII strings, without the tokens that begin or end a text."""

    def __init__(self, tokenizer: Any, pattern: str) -> None:
        from tokenizers.pre_tokenizers import ByteLevel

        self._model = tokenizer.backend_tokenizer.model
        added = {
            token.content: index for index, token in tokenizer.backend_tokenizer.get_added_tokens_decoder().items()
        }
        longest_first = sorted(filter(None, added), key=len, reverse=True)
        self._added = {text: _packed([index]) for text, index in added.items()}
        self._split = re.compile(f"({'|'.join(map(re.escape, longest_first))})") if longest_first else None
        self._pieces = re.compile(pattern, re.ASCII).findall
        letters = ByteLevel(add_prefix_space=False, use_regex=False)
        self._letters = {code: letters.pre_tokenize_str(chr(code))[0][0] for code in range(128)}
        self._bytes = _bytes_of(tokenizer)
        self._tokens_of = _Known(self._tokenised).__getitem__

    def ids(self, text: str) -> np.ndarray | None:
        """Return the tokens of a text for which `isascii()` holds, which put together are the text again.

        None where they aren't, as with a vocabulary that lacks a letter.
        """
        pieces, tokens_of = self._pieces, self._tokens_of
        found: list[bytes] = []
        try:
            for at, part in enumerate(self._split.split(text) if self._split else [text]):
                if at % 2:
                    found.append(self._added[part])
                elif part:
                    found += map(tokens_of, pieces(part))
        except _OtherBytes:
            return None
        return np.frombuffer(b"".join(found), dtype=np.int32)

    def _tokenised(self, word: str) -> bytes:
        ids = [token.id for token in self._model.tokenize(word.translate(self._letters))]
        if b"".join(map(self._bytes.__getitem__, ids)) != word.encode():
            raise _OtherBytes(word)
        return _packed(ids)


class _OtherBytes(Exception):
    """A word whose tokens stand for other bytes."""


class _Known(dict[str, bytes]):
    """Tokens of the words seen before; those of others are made and kept when they are looked up.

    They are kept as the bytes of an int32 array: those of a text are these joined, without a Python number for each.
    """

    def __init__(self, make: Callable[[str], bytes]) -> None:
        super().__init__()
        self._make = make

    def __missing__(self, word: str) -> bytes:
        ids = self._make(word)
        if len(word) <= _LONGEST:
            if len(self) >= _MOST:
                self.clear()
            self[word] = ids
        return ids


def _packed(ids: list[int]) -> bytes:
    return array("i", ids).tobytes()


def word_table(tokenizer: Any) -> WordTable | None:
    """Return a table for the tokenizer; None where it might make other tokens than the tokenizers library."""
    backend = tokenizer.backend_tokenizer
    pattern = _ASCII.get(_pattern(state_of(backend.pre_tokenizer)) or "")
    if pattern is None or backend.encode_special_tokens or tokenizer.split_special_tokens:
        return None
    if backend.normalizer is not None and state_of(backend.normalizer).get("type") not in _UNCHANGING:
        return None
    added = backend.get_added_tokens_decoder().values()
    if any(token.lstrip or token.rstrip or token.single_word for token in added):
        return None
    # Tokens that are looked for before and after normalising are found one kind after the other.
    if len({token.normalized for token in added}) > 1 or getattr(backend.model, "dropout", None):
        return None
    return WordTable(tokenizer, pattern)


def bytes_of_tokens(tokenizer: Any) -> list[bytes] | None:
    """Return what each token stands for, by its number; None unless tokens are bytes of the text, as offsets say."""
    backend = tokenizer.backend_tokenizer
    steps = _steps(state_of(backend.pre_tokenizer))
    # Trimmed offsets leave out the spaces of a word.
    if not any(step.get("type") == "ByteLevel" for step in steps) or _trims(state_of(backend.post_processor)):
        return None
    return _bytes_of(tokenizer)


def _bytes_of(tokenizer: Any) -> list[bytes]:
    """Return what each token of a byte-level tokenizer stands for, by its number."""
    backend = tokenizer.backend_tokenizer
    letters = {letter: bytes([code]) for code, letter in enumerate(_alphabet())}
    token_bytes = [b""] * (max(backend.get_vocab(with_added_tokens=True).values(), default=-1) + 1)
    for token, index in backend.get_vocab(with_added_tokens=False).items():
        token_bytes[index] = b"".join(letters.get(letter, b"\0" * 99) for letter in token)
    for index, added in backend.get_added_tokens_decoder().items():
        token_bytes[index] = added.content.encode("utf-8", "surrogatepass")
    return token_bytes


def _alphabet() -> list[str]:
    """Return the letters in which byte-level tokenizers write bytes: the printable ones as they are."""
    printable = {*chain(range(33, 127), range(161, 173), range(174, 256))}
    spare = (chr(256 + number) for number in range(256))
    return [chr(code) if code in printable else next(spare) for code in range(256)]


def state_of(part: Any) -> dict[str, Any]:
    """Return the settings of a part of a tokenizer, as they stand in its JSON."""
    state: dict[str, Any] = {} if part is None else json.loads(part.__getstate__())
    return state


def _trims(state: object) -> bool:
    """Return whether any of these processors trims offsets."""
    if isinstance(state, dict):
        return state.get("trim_offsets") is True or any(map(_trims, state.values()))
    return isinstance(state, list) and any(map(_trims, state))


def _steps(state: dict[str, Any]) -> list[dict[str, Any]]:
    steps: list[dict[str, Any]] = state["pretokenizers"] if state.get("type") == "Sequence" else [state]
    return steps


def _pattern(state: dict[str, Any]) -> str | None:
    """Return the pattern by which a byte-level pre-tokenizer finds words, if it does so in one of the usual ways."""
    match _steps(state):
        case [{"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}]:
            return _LIKE_GPT_2
        case [
            {"type": "Split", "pattern": {"Regex": str(pattern)}, "behavior": "Isolated", "invert": False},
            {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False},
        ]:
            return pattern
    return None
