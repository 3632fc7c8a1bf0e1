"""The padding token of models that score texts.

transformers scores the last token that is not the padding token of config.json, also where that token is part of a
text. swift and vLLM score the last token of a text. Both are the same where the padding token ends no text.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from swift.errors import ModelError
from swift.untrusted import read_json_object

_GENERATION = "generation_config.json"
_LIKELY = ("pad", "reserved", "unused", "extra")
"""Parts of the names of tokens that stand in no text, the best first."""


def padding_of_scores(tokenizer: Any, config: Any, folder: Path) -> int | None:
    """Return a padding token that ends no text: the tokenizer's own, or another special one; None if there is none."""
    text = config.get_text_config()
    ends = {*_ids(tokenizer.eos_token_id), *_ids(text.eos_token_id)}
    if (folder / _GENERATION).is_file():
        ends |= {*_ids(read_json_object(folder / _GENERATION, ModelError).get("eos_token_id"))}
    for given in (tokenizer.pad_token_id, text.pad_token_id):
        if given is not None and given not in ends:
            return int(given)
    written = str(tokenizer.chat_template)
    free = [
        (_rank(token.content), number)
        for number, token in tokenizer.added_tokens_decoder.items()
        if token.special
        and number not in ends
        and number not in (tokenizer.bos_token_id, tokenizer.unk_token_id)
        and number < text.vocab_size
        and token.content not in written
    ]
    return min(free)[1] if free else None


def set_padding(folder: Path, token: str) -> None:
    """Name the padding token in the files of a tokenizer, where it is another one."""
    for name in ("tokenizer_config.json", "special_tokens_map.json"):
        file = folder / name
        if file.is_file():
            content = read_json_object(file, ModelError)
            if content.get("pad_token") != token:
                content["pad_token"] = token
                file.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def with_padding(config: Mapping[str, Any], padding: int | None) -> dict[str, Any]:
    """Return the content of a config.json with another padding token, in each place where it may stand."""
    changed = {**config, "pad_token_id": padding}
    if isinstance(text := config.get("text_config"), dict):
        changed["text_config"] = {**text, "pad_token_id": padding}
    return changed


def _rank(name: str) -> int:
    return next((index for index, part in enumerate(_LIKELY) if part in name.lower()), len(_LIKELY))


def _ids(value: Any) -> list[int]:
    return [each for each in (value if isinstance(value, list) else [value]) if isinstance(each, int)]
