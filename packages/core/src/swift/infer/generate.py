"""Answers from a model: prompts in, token ids and text out, several at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from swift.errors import DataError
from swift.infer.load import Speaker

Messages = Sequence[dict[str, Any]]


@dataclass(frozen=True)
class Sampling:
    """How answers are drawn; the default is the most likely token, always."""

    max_new_tokens: int = 512
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int = 0

    def options(self) -> dict[str, Any]:
        """As transformers' `generate` wants them."""
        if self.temperature <= 0:
            return {"do_sample": False, "temperature": None, "top_p": None, "top_k": None}
        return {"do_sample": True, "temperature": self.temperature, "top_p": self.top_p, "top_k": 0}


def prompt_ids(speaker: Speaker, messages: Messages, tools: Sequence[Any] | None = None) -> list[int]:
    """The tokens of a conversation up to where the assistant speaks; plain text where there is no chat template."""
    tokenizer = speaker.tokenizer
    if speaker.system and messages[0]["role"] != "system":
        messages = [{"role": "system", "content": speaker.system}, *messages]
    if tokenizer.chat_template is None:
        if len(messages) != 1:
            raise DataError(
                "This model's tokenizer has no chat template, so it can only go on with a text.",
                hint="Give one prompt, or a template with --model.chat_template when training.",
            )
        return list(tokenizer(messages[0]["content"])["input_ids"])
    text = tokenizer.apply_chat_template(
        list(messages), tools=tools or None, tokenize=False, add_generation_prompt=True
    )
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])


@torch.no_grad()
def answer(speaker: Speaker, prompts: Sequence[list[int]], sampling: Sampling) -> list[list[int]]:
    """Token ids of one answer per prompt, without the token that ends it. All prompts make one batch."""
    pad = _pad(speaker)
    longest = max(len(prompt) for prompt in prompts)
    ids = torch.full((len(prompts), longest), pad, device=speaker.device)
    mask = torch.zeros_like(ids)
    for row, prompt in enumerate(prompts):
        ids[row, longest - len(prompt) :] = torch.tensor(prompt, device=speaker.device)
        mask[row, longest - len(prompt) :] = 1
    torch.manual_seed(sampling.seed)
    output = speaker.model.generate(
        input_ids=ids,
        attention_mask=mask,
        max_new_tokens=sampling.max_new_tokens,
        pad_token_id=pad,
        eos_token_id=_ends(speaker),
        **sampling.options(),
    )
    return [_until_end(row[longest:].tolist(), _ends(speaker)) for row in output]


def answer_all(
    speaker: Speaker, prompts: Sequence[list[int]], sampling: Sampling, *, batch: int
) -> Iterator[tuple[int, list[int]]]:
    """(index of the prompt, answer), in batches of prompts of similar length."""
    order = sorted(range(len(prompts)), key=lambda index: len(prompts[index]))
    for start in range(0, len(order), batch):
        chosen = order[start : start + batch]
        yield from zip(chosen, answer(speaker, [prompts[index] for index in chosen], sampling), strict=True)


def stream_answer(speaker: Speaker, prompt: list[int], sampling: Sampling) -> Iterator[str]:
    """The text of an answer, piece by piece, while it is made."""
    from threading import Thread

    from transformers import TextIteratorStreamer

    streamer = TextIteratorStreamer(speaker.tokenizer, skip_prompt=True, skip_special_tokens=True)
    ids = torch.tensor([prompt], device=speaker.device)
    arguments = {
        "input_ids": ids,
        "attention_mask": torch.ones_like(ids),
        "max_new_tokens": sampling.max_new_tokens,
        "pad_token_id": _pad(speaker),
        "eos_token_id": _ends(speaker),
        "streamer": streamer,
        **sampling.options(),
    }
    thread = Thread(target=speaker.model.generate, kwargs=arguments, daemon=True)
    thread.start()
    yield from streamer
    thread.join()


def _pad(speaker: Speaker) -> int:
    pad = speaker.tokenizer.pad_token_id
    return int(pad if pad is not None else _ends(speaker)[0])


def _ends(speaker: Speaker) -> list[int]:
    """Tokens that end an answer: the tokenizer's, and those of the generation config."""
    configured = getattr(speaker.model.generation_config, "eos_token_id", None)
    listed = configured if isinstance(configured, list) else [configured]
    ends = {token for token in [speaker.tokenizer.eos_token_id, *listed] if token is not None}
    return sorted(ends) or [0]


def _until_end(ids: list[int], ends: list[int]) -> list[int]:
    for index, token in enumerate(ids):
        if token in ends:
            return ids[:index]
    return ids
