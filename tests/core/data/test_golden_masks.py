"""Tokens and weights are those that tokenising row by row, rendering by rendering, has always made."""

from __future__ import annotations

import unicodedata
from pathlib import Path
from typing import Any

import mask_cases
import numpy as np
import pytest
from encode_row import encode_row, encoder_of
from named_encodings import encoding_of

from swift_testing.tokenizer import CHAT_TEMPLATE

GOLDEN = Path(__file__).parent / "golden" / "masks.npz.xz"


@pytest.fixture(scope="module")
def golden() -> tuple[dict[str, str], list[Any]]:
    tokenizers, each = mask_cases.golden(GOLDEN)
    return tokenizers, list(each)


QUICK = ("bpe", "metaspace")


@pytest.mark.parametrize(
    "tokenizer",
    [pytest.param(name, marks=() if name in QUICK else pytest.mark.full) for name in mask_cases.TOKENIZERS],
)
def test_ids_and_weights_match_golden_file(tokenizer: str, golden: tuple[dict[str, str], list[Any]]) -> None:
    """Ids and weights are bit equal to those of the golden file."""
    tokenizers, each = golden
    for case, arrays, report in each:
        if case.tokenizer != tokenizer:
            continue
        made, said = mask_cases.made_of(case, tokenizers)
        for name, expected in arrays.items():
            assert made[name].dtype == expected.dtype
            np.testing.assert_array_equal(made[name], expected, err_msg=f"{case.name}: {name}")
        assert [row for row, _, _ in said["rejected"]] == [row for row, _, _ in report["rejected"]], case.name
        assert [row for row, _ in said["errors"]] == [row for row, _ in report["errors"]], case.name
        assert said["turn_by_turn"] == report["turn_by_turn"], case.name


def test_single_and_batched_rows_are_equal(golden: tuple[dict[str, str], list[Any]]) -> None:
    """Rows of a case that are encoded all at once are what the golden file has of each by itself."""
    tokenizers, each = golden
    for case, arrays, report in each[::7]:
        if report["errors"]:
            continue
        using = mask_cases.encoder(case, tokenizers)
        corpus = mask_cases.corpus_of(mask_cases.rows(case), "rows", using.section, encoding_of(case.encoding))
        made, found = mask_cases.encode_rows(corpus, using, range(len(corpus)))
        for name, expected in arrays.items():
            np.testing.assert_array_equal(mask_cases.array_of(made, name), expected, err_msg=f"{case.name}: {name}")
        assert found.unusable == len(report["rejected"]), case.name


@pytest.mark.parametrize("name", ["bytes", "bpe", "qwen", "llama3"])
def test_loss_mask_matches_token_prefixes(name: str, golden: tuple[dict[str, str], list[Any]]) -> None:
    """A reference that knows nothing of offsets: token k is learned when it adds bytes of an answer to the text."""
    tokenizers, _ = golden
    tokenizer = mask_cases.TOKENIZERS[name](tokenizers.get(name, ""))
    tokenizer.chat_template = CHAT_TEMPLATE
    encoder = encoder_of(tokenizer, max_length=4096)
    case = mask_cases.Case(name, "chatml")
    checked = 0
    for row in mask_cases.rows(case, 120):
        if "messages" not in row or "tools" in row or any("tool_calls" in each for each in row["messages"]):
            continue
        if any(not unicodedata.is_normalized("NFC", each["content"]) for each in row["messages"]):
            continue  # Qwen's tokenizer writes them otherwise
        messages = [{key: each[key] for key in ("role", "content")} for each in row["messages"]]
        if any(not each["content"].strip() for each in messages if each["role"] != "system"):
            continue
        prompts = [
            tokenizer.apply_chat_template(messages[:at], tokenize=False, add_generation_prompt=True).encode()
            for at, each in enumerate(messages)
            if each["role"] == "assistant"
        ]
        ends = [
            tokenizer.apply_chat_template(messages[: at + 1], tokenize=False).removesuffix("\n").encode()
            for at, each in enumerate(messages)
            if each["role"] == "assistant"
        ]
        (segment,) = encode_row(encoder, {"messages": messages})[0].segments
        before = 0
        for token, weight in zip(segment.input_ids.tolist(), segment.weights.tolist(), strict=True):
            text = tokenizer.convert_ids_to_tokens(token)
            special = token in tokenizer.added_tokens_decoder
            size = len(text.encode()) if special else len(text)  # a letter for each byte
            inside = any(
                before < len(end) and before + size > len(prompt) for prompt, end in zip(prompts, ends, strict=True)
            )
            assert bool(weight) == inside, (row, text)
            before += size
        assert before == len(tokenizer.apply_chat_template(messages, tokenize=False).encode())
        checked += 1
    assert checked > 30
