"""Names of ms-swift and the Trainer, imported from swift: an error that says what to write instead."""

from __future__ import annotations

import pytest


@pytest.mark.parametrize("name", ["TrainingArguments", "Seq2SeqTrainer", "sft_main", "PtEngine", "get_model_tokenizer"])
def test_third_party_names_have_replacements(name: str) -> None:
    with pytest.raises(ImportError, match=rf"swift has no {name}\. .*(Trainer|swift infer)"):
        exec(f"from swift import {name}")


def test_ms_swift_import_names_replacement() -> None:
    with pytest.raises(ImportError, match="from swift import Swift, TrainerConfig"):
        import swift.llm  # noqa: F401
