"""A transformers tokenizer under llama.cpp's keys: tokens, merges or scores, special tokens, chat template."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from gguf import GGUFWriter, TokenType

from swift.errors import ExportError

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_CASED = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+%s"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*%s"
)
_ANY_SLASH = r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_GPT2 = "ByteLevel"
PRE_TOKENIZERS: Mapping[tuple[str, ...], str] = {
    (_GPT2,): "gpt-2",
    ("Digits", _GPT2): "smollm",
    (_CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}" + _REST,): "qwen2",
    (_CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}" + _REST,): "llama-bpe",
    (_CASED % ("", "") + r"|\p{N}" + _ANY_SLASH,): "tekken",
    (_CASED % (2 * (_CONTRACTIONS + "?",)) + r"|\p{N}{1,3}" + _ANY_SLASH,): "gpt-4o",
}
"""How a byte-level tokenizer splits text before it merges → llama.cpp's name for that."""
_SPACE = "\u2581"
ROLES = ("bos", "eos", "unk", "pad")


def add_vocabulary(writer: GGUFWriter, tokenizer: Any, size: int) -> None:
    """Write the tokenizer; `size` is the number of rows of the embedding."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    spec = {} if backend is None else json.loads(backend.to_str())
    model = spec.get("model", {})
    steps = _flat(spec.get("pre_tokenizer"), "pretokenizers")
    byte_level = any(step["type"] == "ByteLevel" for step in steps)
    if model.get("type") != "BPE" or not (byte_level or model.get("byte_fallback")):
        raise ExportError(
            f"The tokenizer ({model.get('type') or type(tokenizer).__name__}) cannot be exported to GGUF.",
            hint="Supported: BPE over bytes, and SentencePiece BPE with byte fallback.",
        )
    merges = [each.split(" ", 1) if isinstance(each, str) else each for each in model["merges"]]
    tokens, types = _tokens(tokenizer, byte_level, size)
    writer.add_tokenizer_model("gpt2" if byte_level else "llama")
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    if byte_level:
        writer.add_tokenizer_pre(_pre_tokenizer(steps) if merges else PRE_TOKENIZERS[_GPT2,])
        writer.add_token_merges([" ".join(pair) for pair in merges])
    else:
        writer.add_tokenizer_pre("default")
    if not (byte_level and merges):
        writer.add_token_scores(_scores(tokens, merges))
    for role in ROLES:
        index = getattr(tokenizer, f"{role}_token_id")
        if index is not None:
            getattr(writer, f"add_{role}_token_id")(index)
    writer.add_add_bos_token(adds_bos(tokenizer))
    writer.add_add_eos_token(tokenizer("a")["input_ids"][-1] == tokenizer.eos_token_id)
    first = tokenizer.tokenize("a", add_special_tokens=False)[0]
    writer.add_add_space_prefix(first.startswith(_SPACE))
    if isinstance(tokenizer.chat_template, str):
        writer.add_chat_template(tokenizer.chat_template)


def adds_bos(tokenizer: Any) -> bool:
    """Return whether the tokenizer itself begins every text with its first token."""
    return bool(tokenizer("a")["input_ids"][0] == tokenizer.bos_token_id)


def _tokens(tokenizer: Any, byte_level: bool, size: int) -> tuple[list[str], list[TokenType]]:
    """Return what each row of the embedding stands for, and of which type it is; rows without a token are padding."""
    tokens = [f"[PAD{row}]" for row in range(size)]
    types = [TokenType.UNUSED] * size
    added = tokenizer.added_tokens_decoder
    for token, row in tokenizer.get_vocab().items():
        if row >= size:
            continue  # a placeholder without a row, which core lets pass
        tokens[row], types[row] = token, TokenType.NORMAL
        if row in added:
            types[row] = TokenType.CONTROL if added[row].special else TokenType.USER_DEFINED
            if types[row] is TokenType.USER_DEFINED:
                tokens[row] = token.replace(_SPACE, " ")
        if not byte_level and row == tokenizer.unk_token_id:
            types[row] = TokenType.UNKNOWN
        elif not byte_level and len(token) == 6 and token.startswith("<0x"):
            types[row] = TokenType.BYTE
    return tokens, types


def _scores(tokens: list[str], merges: list[list[str]]) -> list[float]:
    """Return SentencePiece's scores: llama.cpp first merges the pair that makes the token with the highest one."""
    rank: dict[str, float] = {}
    for index, pair in enumerate(merges):
        rank.setdefault("".join(pair), -float(index))
    lowest = -float(len(merges))
    return [rank.get(token, lowest) for token in tokens]


def _pre_tokenizer(steps: list[dict[str, Any]]) -> str:
    """Return llama.cpp's name for how the text is split before merging."""
    key: list[str] = []
    for step in steps:
        if step["type"] == "Split" and step["behavior"] == "Isolated" and not step["invert"]:
            key.append(step["pattern"].get("Regex") or "")
        elif step["type"] == "Digits" and step["individual_digits"]:
            key.append("Digits")
        elif step["type"] != "ByteLevel" or step["add_prefix_space"]:
            key.append(step["type"] + " with other settings")
        elif step["use_regex"]:
            key.append(_GPT2)
    found = PRE_TOKENIZERS.get(tuple(key))
    if found is None:
        raise ExportError(
            f"llama.cpp's name for how this tokenizer splits text is unknown: {', '.join(key) or 'not at all'}.",
            hint="Export --to hf, then convert the folder with llama.cpp's convert_hf_to_gguf.py.",
        )
    return found


def _flat(step: dict[str, Any] | None, key: str) -> list[dict[str, Any]]:
    if step is None:
        return []
    return [part for each in step[key] for part in _flat(each, key)] if step["type"] == "Sequence" else [step]
