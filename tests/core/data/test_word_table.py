"""Tokens looked up word by word, and places of tokens by their lengths, are those of the tokenizers library."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import mask_cases
import numpy as np
import pytest

from swift.data.ascii_tokens import bytes_of_tokens, word_table
from swift.data.offsets import TextEncoder
from swift.data.text import Rendered, Span

GOLDEN = Path(__file__).parent / "golden" / "masks.npz.xz"
TOKENIZERS, _ = mask_cases.golden(GOLDEN)


def tokenizer_of(name: str) -> Any:
    return mask_cases.TOKENIZERS[name](TOKENIZERS.get(name, ""))


def ascii_texts(count: int) -> list[str]:
    source = random.Random(1)
    letters = (
        [chr(code) for code in range(128)] + list("  \n\n''abcstreveml019..") + ["<|im_end|>", "'ll", "'S", "\r\n"]
    )
    texts = ["".join(source.choices(letters, k=source.randint(0, 40))) for _ in range(count)]
    return ["", *(chr(one) + chr(other) for one in range(128) for other in (32, 10, 39, 65, 48, 46)), *texts]


def listed(ids: np.ndarray | None) -> list[int]:
    assert ids is not None
    numbers: list[int] = ids.tolist()
    return numbers


@pytest.mark.parametrize("name", ["bpe", "bpe-trim", "qwen", "llama3"])
def test_word_table_matches_tokenizer_on_ascii(name: str) -> None:
    """Words looked up are the tokenizer's tokens for any ASCII text."""
    tokenizer = tokenizer_of(name)
    table = word_table(tokenizer)
    assert table is not None
    texts = ascii_texts(1500)
    expected = tokenizer.backend_tokenizer.encode_batch(texts, add_special_tokens=False)
    for text, encoding in zip(texts, expected, strict=True):
        assert listed(table.ids(text)) == encoding.ids, repr(text)
        assert listed(table.ids(text)) == encoding.ids, repr(text)  # now from the table


def test_the_pattern_of_qwen_3_5_means_the_same_for_ascii() -> None:
    from tokenizers import Regex, Tokenizer, pre_tokenizers

    from swift.data import ascii_tokens as words

    backend = tokenizer_of("qwen").backend_tokenizer
    split = pre_tokenizers.Split(Regex(words._LIKE_QWEN_3_5), behavior="isolated")
    last = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    other = Tokenizer.from_str(backend.to_str())
    other.pre_tokenizer = pre_tokenizers.Sequence([split, last])
    tokenizer = mask_cases._fast(other)
    table = word_table(tokenizer)
    assert table is not None
    for text in ascii_texts(500):
        assert listed(table.ids(text)) == other.encode(text, add_special_tokens=False).ids, repr(text)


def test_unencodable_word_falls_back_to_tokenizer() -> None:
    """A word that the vocabulary cannot write is left to the library."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    vocabulary = {letter: index for index, letter in enumerate([*"abc", chr(0x120)])}
    backend = Tokenizer(models.BPE(vocabulary, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer = mask_cases._fast(backend)
    table = word_table(tokenizer)
    assert table is not None
    assert listed(table.ids("ab c")) == backend.encode("ab c", add_special_tokens=False).ids
    assert table.ids("abxc a") is None  # the library leaves the x out
    (segment,) = TextEncoder(tokenizer).segments([Rendered("abxc a", (Span(3, 6, 1.0),))])
    assert segment.input_ids.tolist() == backend.encode("abxc a", add_special_tokens=False).ids == [0, 1, 2, 3, 0]


@pytest.mark.parametrize("name", ["bytes", "bpe-added", "metaspace", "unigram", "wordpiece"])
def test_context_dependent_tokenizers_have_no_word_table(name: str) -> None:
    assert word_table(tokenizer_of(name)) is None


def test_a_tokenizer_that_splits_special_tokens_has_no_table() -> None:
    tokenizer = tokenizer_of("bpe")
    tokenizer.split_special_tokens = True
    assert word_table(tokenizer) is None


@pytest.mark.parametrize("name", ["bpe-trim", "metaspace", "unigram", "wordpiece"])
def test_non_byte_tokens_use_tokenizer_offsets(name: str) -> None:
    """Tokens that are not bytes of the text take the tokenizer's offsets."""
    assert bytes_of_tokens(tokenizer_of(name)) is None


@pytest.mark.parametrize("name", ["bytes", "bpe", "bpe-added", "qwen", "llama3"])
def test_offsets_by_length_match_tokenizer_masks(name: str) -> None:
    tokenizer = tokenizer_of(name)
    by_length, by_offsets = TextEncoder(tokenizer), TextEncoder(tokenizer)
    assert by_length._bytes is not None
    by_offsets._bytes = None
    source = random.Random(2)
    texts = []
    for _ in range(400):
        text = "".join(source.choices([*mask_cases.TEXTS, *"aé你🎉 \n"], k=source.randint(0, 6)))
        edges = sorted(source.randint(0, len(text)) for _ in range(2 * source.randint(0, 3)))
        pairs = zip(edges[::2], edges[1::2], strict=True)
        texts.append(Rendered(text, tuple(Span(start, end, source.choice([0.5, 1.0])) for start, end in pairs)))
    for one, other in zip(by_length.segments(texts), by_offsets.segments(texts), strict=True):
        np.testing.assert_array_equal(one.input_ids, other.input_ids)
        np.testing.assert_array_equal(one.weights, other.weights)
