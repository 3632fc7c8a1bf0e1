"""Where transformers cuts texts otherwise than `tokenizer.json` says, the user hears of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from swift.config.sections import ModelSection
from swift.models.source import open_source
from swift_testing.subjects import write_model

MERGES = [
    ("h", "e"),
    ("l", "l"),
    ("he", "ll"),
    ("hell", "o"),
    ("1", "2"),
    ("12", "3"),
    ("o", "w"),
    ("Ġ", "b"),
]


def write_tokenizer(folder: Path, **config: Any) -> None:
    """A tokenizer of bytes and a few merges that keeps numbers and blanks together, as GPT-2's does."""
    vocabulary = {letter: index for index, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    for token in ("<s>", "</s>", "<unk>"):
        vocabulary[token] = len(vocabulary)
    for left, right in MERGES:
        vocabulary[left + right] = len(vocabulary)
    tokenizer: Any = Tokenizer(models.BPE(vocab=vocabulary, merges=MERGES))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "</s>", **config}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def opened(folder: Path) -> tuple[Any, list[str]]:
    said: list[str] = []
    source = open_source(ModelSection(path=str(folder)), say=said.append)
    return source.tokenizer, [line for line in said if "tokenizes differently from" in line]


@pytest.mark.parametrize(
    ("architecture", "kind"), [("Llama", "LlamaTokenizerFast"), ("Qwen2", "PreTrainedTokenizerFast")]
)
def test_different_tokenizer_class_is_named_once(tmp_path: Path, architecture: str, kind: str) -> None:
    """A class of transformers that cuts otherwise is named once."""
    folder = write_model(tmp_path / "model", architecture=architecture, vocab_size=320)
    write_tokenizer(folder, tokenizer_class=kind)
    tokenizer, said = opened(folder)
    plain: Any = Tokenizer.from_file(str(folder / "tokenizer.json"))
    assert tokenizer.encode("hello 123", add_special_tokens=False) != plain.encode("hello 123").ids
    assert len(said) == 1
    assert type(tokenizer).__name__ in said[0]
    assert "TokenizersBackend" in said[0]
    assert opened(folder)[1] == []


def test_suggested_line_makes_tokenizer_file_count(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model", architecture="Llama", vocab_size=320)
    write_tokenizer(folder, tokenizer_class="TokenizersBackend")
    tokenizer, said = opened(folder)
    plain: Any = Tokenizer.from_file(str(folder / "tokenizer.json"))
    assert tokenizer.encode("hello 123", add_special_tokens=False) == plain.encode("hello 123").ids
    assert said == []


@pytest.mark.parametrize("architecture", ["Qwen3", "Llama", "GPT2"])
def test_matching_tokenizer_file_prints_nothing(tmp_path: Path, architecture: str) -> None:
    assert opened(write_model(tmp_path / "model", architecture=architecture))[1] == []


def test_padding_in_tokenizer_file_is_no_difference(tmp_path: Path) -> None:
    """Files of sentence encoders pad to a fixed length."""
    folder = write_model(tmp_path / "model", architecture="GPT2", vocab_size=320)
    write_tokenizer(folder, tokenizer_class="GPT2Tokenizer")
    file = str(folder / "tokenizer.json")
    padded: Any = Tokenizer.from_file(file)
    padded.enable_padding(length=128)
    padded.save(file)
    assert opened(folder)[1] == []
