"""Seeded conversations for every encoding, tokenizer and chat template, and the tokens and weights made of them.

`tests/core/data/golden/masks.npz.xz` holds what the code of commit d356e2c, which tokenised row by row, made of them:

    git worktree add /tmp/before d356e2c
    PYTHONPATH=/tmp/before/packages/core/src:tests/helpers:tests/core/data python -m mask_cases FILE
"""

from __future__ import annotations

import io
import json
import lzma
import random
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import chat_templates
import numpy as np
from named_encodings import encoding_of

from swift.config.sections import DataSection
from swift.data.corpus import corpus_of
from swift.data.encode import SampleEncoder
from swift.data.encode_corpus import encode_rows
from swift.errors import SwiftError
from swift_testing.tokenizer import CHAT_TEMPLATE, byte_tokenizer

Row = dict[str, Any]

ROWS = 40
"""Rows of each case."""
ARRAYS = ("ids", "weights", "segment_lengths", "segment_counts", "rows", "label", "margin")
NAMES_IN_GOLDEN_FILE = {"kto": "unpaired"}
"""Encodings that had another name when the golden file was made."""
SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
QWEN2_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
LLAMA3_WORDS = QWEN2_WORDS.replace(r"\p{N}|", r"\p{N}{1,3}|")
TEXTS = (
    "the quick brown fox",
    "Jumps over",
    " it's what I'LL say, isn't it?",
    "1234567 and 42",
    "a\n\nb\r\nc\t d",
    "  two ",
    "über naïve façade",
    "e\u0301 decomposed",
    "你好，世界",
    "こんにちは",
    "👩\u200d👩\u200d👧 family 🎉",
    "🇩🇪 flag",
    "мир ½ ² ٣",
    "nb\u00a0sp\u2028line",
    "sſ 'ſ K",
    "\u001c\u001d sep",
    "code: def f(x):\n    return x ** 2  # yes",
    "<|im_end|> inside",
    "<|im_start|>user",
    "<think>",
    "</think>\n\n",
    "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxx",
    "...!?!",
    "\n",
    " ",
    "\u0085 next",
    "ﬁ ligature",
    "don't DON'T",
    "http://a.b/c?d=e&f=1",
    '{"k": [1, 2]}',
    "the the the",
    "new tool",
    "and so on and on",
    "é",
    "\ufeffbom",
    "z\u200dz",
)

GEMMA = (
    "{{ bos_token or '' }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system') }}{% endif %}"
    "{% for message in messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}"
    "{% if message['role'] == 'assistant' %}{% set role = 'model' %}"
    "{% else %}{% set role = message['role'] %}{% endif %}"
    "{{ '<|im_start|>' + role + '\\n' + message['content'] | trim + '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>model\\n' }}{% endif %}"
)
"""A first token, contents trimmed, other names of roles, and an error for roles out of order."""
QWEN2 = (
    "{% if messages[0].role != 'system' %}{{ '<|im_start|>system\\nYou help.<|im_end|>\\n' }}{% endif %}"
    "{% set ns = namespace(count=0) %}{% if tools %}{{ '' }}{% endif %}"
    "{% for message in messages %}{% set ns.count = ns.count + 1 %}{% if loop.first %}{{ ' ' }}{% endif %}"
    "{{ '<|im_start|>' + message.role + '\\n' + message.content ~ ' ' ~ ns.count }}"
    "{% for call in message.tool_calls or [] %}{{ call.function.name }}{% if not loop.last %}{{ ',' }}{% endif %}"
    "{% endfor %}{{ '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
"""A system message where there is none, and numbers that are carried from turn to turn."""
ZEPHYR = (
    "{% for message in messages %}{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' }}"
    "{% if loop.last and add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}{% endfor %}"
)
"""Asks for the answer within the loop."""
STOPS = (
    "{% for message in messages %}{% if 'STOP' in message.content %}{% break %}{% endif %}"
    "{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
"""Leaves the loop before its end."""
LAST_COUNTS = (
    "{% for message in messages %}{% set kept = message.content %}"
    "{{ '<|im_start|>' + message.role + '\\n' + kept + '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}"
    "{% elif messages[-1].content | length > 9 %}{{ '<|endoftext|>' }}{% endif %}"
)
"""Ends in a way that depends on the last message."""
TEMPLATES: dict[str, str | None] = {
    "chatml": CHAT_TEMPLATE,
    "llama3": chat_templates.LLAMA3,
    "qwen3": chat_templates.QWEN3,
    "tools": chat_templates.TOOLS,
    "phi3": chat_templates.PHI3,
    "counting": chat_templates.COUNTING,
    "forced-thinking": chat_templates.FORCED_THINKING,
    "strict": chat_templates.STRICT,
    "no-end": chat_templates.NO_END,
    "gemma": GEMMA,
    "qwen2": QWEN2,
    "zephyr": ZEPHYR,
    "stops": STOPS,
    "last-counts": LAST_COUNTS,
    "none": None,
}


@dataclass(frozen=True)
class Case:
    """Some rows under one tokenizer, chat template, encoding and data section."""

    tokenizer: str
    template: str
    encoding: str = "chat"
    section: Row = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The key of the golden file and the seed of the rows: it keeps the encoding's name of that time."""
        encoding = NAMES_IN_GOLDEN_FILE.get(self.encoding, self.encoding)
        return " ".join([self.tokenizer, self.template, encoding, json.dumps(self.section, sort_keys=True)])


def cases() -> list[Case]:
    """Returns all cases, always the same."""
    found = [Case(tokenizer, template) for tokenizer in TOKENIZERS for template in ("chatml", "qwen3", "no-end")]
    found += [Case("bpe", template) for template in TEMPLATES]
    found += [Case("qwen", template, "preference") for template in ("chatml", "tools", "qwen3", "gemma")]
    for tokenizer in ("qwen", "metaspace", "bytes"):
        found += [
            Case(tokenizer, "chatml", "text"),
            Case(tokenizer, "none", "text", {"truncation": "split", "max_length": 9}),
            Case(tokenizer, "none"),
            Case(tokenizer, "chatml", "kto", {"max_length": 60, "truncation": "right"}),
            Case(tokenizer, "qwen3", "kto"),
            Case(tokenizer, "chatml", "preference", {"max_length": 50, "truncation": "left"}),
            Case(tokenizer, "tools", "chat", {"max_length": 60, "truncation": "left"}),
            Case(tokenizer, "tools", "chat", {"max_length": 60, "truncation": "right", "system": "Be brief."}),
            Case(tokenizer, "llama3", "chat", {"max_length": 80, "truncation": "delete"}),
            Case(tokenizer, "qwen2", "chat", {"loss_on": "all"}),
            Case(tokenizer, "qwen3", "chat", {"loss_on": "last_round"}),
            Case(tokenizer, "qwen3", "chat", {"template_kwargs": {"enable_thinking": False}}),
        ]
    return list({case.name: case for case in found}.values())


def rows(case: Case, count: int = ROWS) -> list[Row]:
    """Returns the rows of a case, drawn from a seed of its own."""
    source = random.Random(case.name)
    kinds: dict[str, Callable[[random.Random], Row]] = {
        "text": _any_text,
        "chat": _chat,
        "preference": _pair,
        "kto": lambda source: {**_chat(source), "label": source.random() < 0.5},
    }
    plain = {"query": "a plain question", "response": "a plain answer"}
    first = {
        "text": {"text": "Once upon a time."},
        "chat": plain,
        "preference": {**plain, "rejected_response": "worse"},
        "kto": {**plain, "label": True},
    }
    return [first[case.encoding], *(kinds[case.encoding](source) for _ in range(count - 1))]


def _text(source: random.Random) -> str:
    return source.choice(["", " ", "\n"]).join(source.choices(TEXTS, k=source.randint(1, 4)))


def _any_text(source: random.Random) -> Row:
    return {"text": _text(source)} if source.random() < 0.6 else _chat(source)


def _chat(source: random.Random) -> Row:
    if source.random() < 0.2:
        return {"prompt": _text(source), "completion": _text(source)}
    messages: list[Row] = []
    if source.random() < 0.3:
        messages.append({"role": "system", "content": _text(source)})
    for _ in range(source.choice([1, 1, 1, 2, 3])):
        messages.append({"role": "user", "content": _text(source)})
        if source.random() < 0.15:
            call = {"type": "function", "function": {"name": "add", "arguments": {"a": source.randint(0, 9)}}}
            messages.append({"role": "assistant", "content": source.choice(["", "calling"]), "tool_calls": [call]})
            messages.append({"role": "tool", "content": _text(source)})
        answer: Row = {"role": "assistant", "content": _text(source)}
        if source.random() < 0.2:
            answer["content"] = f"<think>\n{_text(source)}\n</think>\n\n{answer['content']}"
        if source.random() < 0.2:
            answer["loss"] = source.choice([False, True, 0.5, 2])
        if source.random() < 0.05:
            answer["content"] = source.choice(["", "STOP"])
        messages.append(answer)
    row: Row = {"messages": messages}
    if source.random() < 0.15:
        row["tools"] = [{"name": "add", "description": "adds", "parameters": {"type": "object"}}]
    return row


def _pair(source: random.Random) -> Row:
    row = _chat(source)
    if source.random() < 0.3:
        row["margin"] = source.choice([0.5, 1, "much"])
    return {**row, "rejected_response": _text(source)}


def encoder(case: Case, serialised: dict[str, str]) -> SampleEncoder:
    """Returns the encoder of a case."""
    tokenizer = TOKENIZERS[case.tokenizer](serialised.get(case.tokenizer, ""))
    tokenizer.chat_template = TEMPLATES[case.template]
    return SampleEncoder(tokenizer, DataSection(**case.section), encoding_of(case.encoding))


def made_of(case: Case, serialised: dict[str, str]) -> tuple[dict[str, np.ndarray], Row]:
    """Returns what the encoder makes of a case: arrays, and a report; a row that ends the run is reported alone."""
    each = rows(case)
    using = encoder(case, serialised)
    arrays: dict[str, list[np.ndarray]] = {name: [] for name in ARRAYS}
    report: Row = {"rejected": [], "errors": [], "turn_by_turn": 0}
    corpus = corpus_of(each, "rows", using.section, encoding_of(case.encoding))
    for index in range(len(each)):
        try:
            made, found = encode_rows(corpus, using, range(index, index + 1))
        except SwiftError as error:
            report["errors"].append([index, error.message])
            continue
        report["rejected"] += [[index, reason, each.detail] for reason, each in found.rejected.items()]
        report["turn_by_turn"] += found.turn_by_turn
        for name in ARRAYS:
            arrays[name].append(array_of(made, name))
    return {name: np.concatenate(parts) for name, parts in arrays.items()}, report


def array_of(arrays: dict[str, np.ndarray], name: str) -> np.ndarray:
    """Returns an array of the golden file, which has NaN for numbers that an encoding does not declare."""
    missing = np.full(len(arrays["rows"]), np.nan)
    return arrays.get(name, arrays.get(f"value.{name}", missing))


def _fast(backend: Any) -> Any:
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|im_end|>", pad_token="<|endoftext|>")


def _from_json(serialised: str) -> Any:
    from tokenizers import Tokenizer

    return _fast(Tokenizer.from_str(serialised))


@cache
def _train() -> dict[str, str]:
    """Returns the tokenizers that are trained, as JSON: training may differ between versions of the library."""
    from tokenizers import (
        AddedToken,
        Regex,
        Tokenizer,
        decoders,
        models,
        normalizers,
        pre_tokenizers,
        processors,
        trainers,
    )

    corpus = [*TEXTS, "user assistant system tool model think", *("the quick brown fox jumps over the lazy dog",) * 3]
    special = [AddedToken(token, normalized=False, special=True) for token in SPECIAL_TOKENS]

    def byte_level(words: str | None, size: int = 420) -> Any:
        backend = Tokenizer(models.BPE())
        if words is None:
            backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        else:
            split = pre_tokenizers.Split(Regex(words), behavior="isolated")
            last = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
            backend.pre_tokenizer = pre_tokenizers.Sequence([split, last])
        backend.decoder = decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        backend.train_from_iterator(
            corpus, trainers.BpeTrainer(vocab_size=size, initial_alphabet=alphabet, show_progress=False)
        )
        backend.add_special_tokens(special)
        return backend

    made: dict[str, Any] = {name: byte_level(None) for name in ("bpe", "bpe-trim", "bpe-added")}
    made["bpe-trim"].post_processor = processors.ByteLevel(trim_offsets=True)
    made["bpe-added"].add_tokens(
        [AddedToken("tool", single_word=True), AddedToken("<think>", lstrip=True, rstrip=True)]
    )
    made["qwen"] = byte_level(QWEN2_WORDS)
    made["qwen"].normalizer = normalizers.NFC()
    made["llama3"] = byte_level(LLAMA3_WORDS)
    made["llama3"].add_special_tokens(["<|begin|>"])
    made["llama3"].post_processor = processors.TemplateProcessing(
        single="<|begin|> $A", special_tokens=[("<|begin|>", made["llama3"].token_to_id("<|begin|>"))]
    )
    made["metaspace"] = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    made["metaspace"].pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=True)
    made["metaspace"].decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    fallback = [f"<0x{byte:02X}>" for byte in range(256)]
    made["metaspace"].train_from_iterator(
        corpus[:8], trainers.BpeTrainer(vocab_size=420, special_tokens=["<unk>", *fallback], show_progress=False)
    )
    made["metaspace"].add_special_tokens(special)
    made["unigram"] = Tokenizer(models.Unigram())
    made["unigram"].normalizer = normalizers.NFKC()
    made["unigram"].pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    made["unigram"].decoder = decoders.Metaspace(prepend_scheme="always")
    made["unigram"].train_from_iterator(
        corpus * 3,
        trainers.UnigramTrainer(vocab_size=200, unk_token="<unk>", special_tokens=["<unk>"], show_progress=False),
    )
    made["unigram"].add_special_tokens(special)
    made["wordpiece"] = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    made["wordpiece"].normalizer = normalizers.BertNormalizer(lowercase=True)
    made["wordpiece"].pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made["wordpiece"].decoder = decoders.WordPiece()
    made["wordpiece"].train_from_iterator(
        corpus, trainers.WordPieceTrainer(vocab_size=300, special_tokens=["[UNK]"], show_progress=False)
    )
    made["wordpiece"].add_special_tokens(special)
    return {name: backend.to_str() for name, backend in made.items()}


TOKENIZERS: dict[str, Callable[[str], Any]] = {
    "bytes": lambda _: byte_tokenizer(),
    **dict.fromkeys(
        ("bpe", "bpe-trim", "bpe-added", "qwen", "llama3", "metaspace", "unigram", "wordpiece"), _from_json
    ),
}


def write(path: Path) -> None:
    """Writes the golden file with the code of swift that is imported."""
    serialised = _train()
    arrays: dict[str, np.ndarray] = {}
    reports = {}
    for number, case in enumerate(cases()):
        made, reports[case.name] = made_of(case, serialised)
        arrays |= {f"{number}.{name}": array for name, array in made.items()}
    arrays["text"] = np.frombuffer(json.dumps({"tokenizers": serialised, "reports": reports}).encode(), dtype=np.uint8)
    plain = io.BytesIO()
    np.savez(plain, allow_pickle=False, **arrays)
    path.write_bytes(lzma.compress(plain.getvalue(), preset=9))


def golden(path: Path) -> tuple[dict[str, str], Iterator[tuple[Case, dict[str, np.ndarray], Row]]]:
    """Returns the tokenizers of a golden file, and for each case what was made of it."""
    stored = np.load(io.BytesIO(lzma.decompress(path.read_bytes())), allow_pickle=False)
    text = json.loads(stored["text"].tobytes())
    each = (
        (case, {name: stored[f"{number}.{name}"] for name in ARRAYS}, text["reports"][case.name])
        for number, case in enumerate(cases())
    )
    return text["tokenizers"], each


if __name__ == "__main__":
    write(Path(sys.argv[1]))
