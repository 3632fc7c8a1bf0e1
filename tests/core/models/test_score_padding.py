"""Models that score: the padding token by which transformers finds the last token of a text."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tiny_runs import run_training
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from swift.config.sections import ExportOptions
from swift.export.run import export_checkpoint
from swift.models.score_padding import padding_of_scores, with_padding
from swift_testing.subjects import write_model
from swift_testing.tokenizer import byte_tokenizer

END = "<|im_end|>"
TEXTS = ["ab", f"cd{END}", "a longer text", f"{END}{END}"]
ROWS = [{"text": text, "label": index % 2} for index, text in enumerate(TEXTS)]


def config_of(**values: Any) -> Any:
    text = SimpleNamespace(**{"eos_token_id": None, "pad_token_id": None, "vocab_size": 264, **values})
    return SimpleNamespace(get_text_config=lambda: text)


def id_of(tokenizer: Any, token: str) -> int:
    return int(tokenizer.convert_tokens_to_ids(token))


def test_batch_scores_are_those_of_single_texts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In plain transformers, of an export whose base pads with the token that ends texts; swift has the same scores."""
    model = write_model(tmp_path / "model")
    settings = {"objective.name": "seq_cls", "model.num_labels": 2, "train.max_steps": 2, "optim.lr": 1e-2}
    run = run_training(model, tmp_path, ROWS, settings)
    assert f"{END} is both the padding and the end-of-sequence token" in capsys.readouterr().out
    options = ExportOptions(out=tmp_path / "out", verify="transformers")
    export_checkpoint(run.folder, to="hf", options=options, say=lambda _: None)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    assert tokenizer.pad_token not in (END, None)
    scorer = AutoModelForSequenceClassification.from_pretrained(tmp_path / "out").eval()
    with torch.no_grad():
        together = scorer(**tokenizer(TEXTS, return_tensors="pt", padding=True)).logits
        alone = torch.cat([scorer(**tokenizer([text], return_tensors="pt")).logits for text in TEXTS])
        scorer.config.pad_token_id = None  # then transformers takes the last token, whatever it is
        last = torch.cat([scorer(**tokenizer([text], return_tensors="pt")).logits for text in TEXTS])
    torch.testing.assert_close(together, last)
    torch.testing.assert_close(alone, last)


def test_token_that_ends_no_text_stays_the_padding(tmp_path: Path) -> None:
    tokenizer = byte_tokenizer()
    assert tokenizer.pad_token != tokenizer.eos_token
    assert padding_of_scores(tokenizer, config_of(), tmp_path) == tokenizer.pad_token_id
    assert padding_of_scores(tokenizer, config_of(pad_token_id=7), tmp_path) == tokenizer.pad_token_id
    tokenizer.pad_token = END
    assert padding_of_scores(tokenizer, config_of(pad_token_id=7), tmp_path) == 7


def test_other_padding_stands_in_no_text(tmp_path: Path) -> None:
    """It is no token of the template, none that any file calls an end, and the likeliest by its name."""
    tokenizer = byte_tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": ["<file>", "<|reserved_0|>", "<|my_pad|>"]})
    tokenizer.pad_token = END
    assert padding_of_scores(tokenizer, config_of(vocab_size=300), tmp_path) == id_of(tokenizer, "<|my_pad|>")
    ends = [id_of(tokenizer, "<|my_pad|>")]
    reserved = id_of(tokenizer, "<|reserved_0|>")
    assert padding_of_scores(tokenizer, config_of(vocab_size=300, eos_token_id=ends), tmp_path) == reserved
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [*ends, reserved]}))
    assert padding_of_scores(tokenizer, config_of(vocab_size=300), tmp_path) in {
        id_of(tokenizer, "<file>"),
        id_of(tokenizer, "<|endoftext|>"),
    }
    assert padding_of_scores(tokenizer, config_of(vocab_size=200), tmp_path) is None


def test_with_padding_sets_every_config() -> None:
    assert with_padding({"a": 1}, 3) == {"a": 1, "pad_token_id": 3}
    assert with_padding({"text_config": {"pad_token_id": 1}}, None) == {
        "pad_token_id": None,
        "text_config": {"pad_token_id": None},
    }
