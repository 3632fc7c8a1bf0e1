"""The preview of an encoded sample."""

from __future__ import annotations

import io
from typing import Any

from encode_row import encode_row, encoder_of
from named_encodings import encoding_of
from rich.console import Console

from swift.data.preview import preview
from swift_testing.tokenizer import byte_tokenizer


def shown(row: dict[str, Any], encoding: str) -> str:
    tokenizer = byte_tokenizer()
    (sample,) = encode_row(encoder_of(tokenizer, encoding), row)
    out = io.StringIO()
    Console(file=out, width=300, force_terminal=False).print(preview(tokenizer, sample, encoding_of(encoding)))
    return out.getvalue()


def test_learned_text_and_both_sides_of_a_pair_are_marked() -> None:
    """Even without colours."""
    text = shown({"prompt": "q [bold]", "completion": "[/x]"}, "chat")
    assert "<|im_start|>user\nq [bold]<|im_end|>\n<|im_start|>assistant\n⟦[/x]<|im_end|>⟧" in text
    assert "learned (in ⟦ ⟧)" in text
    assert "ids: 257 " in text

    text = shown({"prompt": "q", "chosen": "good", "rejected": "bad", "margin": 2}, "preference")
    assert "chosen: " in text
    assert "⟦good<|im_end|>⟧" in text
    assert "rejected: " in text
    assert "⟦bad<|im_end|>⟧" in text
    assert "margin 2" in text
