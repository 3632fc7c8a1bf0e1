"""Tokenizers with merges, learned from a few lines, in the manner of those that GGUF files hold."""

from __future__ import annotations

import json

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from swift_export_gguf.vocabulary import PRE_TOKENIZERS
from swift_testing.tokenizer import CHAT_TEMPLATE, SPECIAL_TOKENS

_STRINGS = ["The quick brown fox doesn't jump over 384,400 dogs.", "def area(width):\n    return  width * 2\n"] * 3
_BYTES = [f"<0x{byte:02X}>" for byte in range(256)]


def byte_level_bpe(split: str) -> PreTrainedTokenizerFast:
    """Return a tokenizer that splits text as llama.cpp does under the name `split`."""
    (pattern,) = next(key for key, name in PRE_TOKENIZERS.items() if name == split)
    tokenizer = Tokenizer(models.BPE(ignore_merges=split == "llama-bpe"))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    _learn(tokenizer, list(SPECIAL_TOKENS), initial_alphabet=alphabet)
    return _wrapped(tokenizer)


def sentence_piece_bpe(*, prefix: bool) -> PreTrainedTokenizerFast:
    """Return a tokenizer with byte fallback; with `prefix` a text begins with a space, as in Llama 2."""
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    spaces = normalizers.Replace(" ", "▁")
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), spaces]) if prefix else spaces
    _learn(tokenizer, ["<unk>", "<s>", *SPECIAL_TOKENS, *_BYTES])
    content = json.loads(tokenizer.to_str())
    content["added_tokens"] = [each for each in content["added_tokens"] if each["content"] not in _BYTES]
    tokenizer = Tokenizer.from_str(json.dumps(content))
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    return _wrapped(tokenizer, unk_token="<unk>", bos_token="<s>")


def _learn(tokenizer: Tokenizer, special: list[str], **more: list[str]) -> None:
    trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=special, show_progress=False, **more)
    tokenizer.train_from_iterator(_STRINGS, trainer)


def _wrapped(tokenizer: Tokenizer, **roles: str) -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
        **roles,
    )
