"""Completions by `generate` of transformers, for models that `swift_infer.decoding` leaves to it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from queue import Queue
from threading import Thread
from typing import Any

import torch

from swift.contracts import Completion
from swift_infer.decoding import Ending, Tokens
from swift_infer.sampling import GenerateSampler, Sampler

Inputs = Mapping[str, torch.Tensor]
"""What a model reads besides tokens, by its own names: images."""


def completions(
    model: Any, prompts: Sequence[Tokens], sampler: Sampler, ending: Ending, inputs: Inputs
) -> Iterator[tuple[int, Completion]]:
    """Yield (index of the prompt, its completion), all of them when the longest is over."""
    processor = GenerateSampler(sampler)
    output = _generate(model, prompts, processor, ending, inputs)
    logprobs = torch.stack(processor.logprobs, dim=1).tolist()
    for index, (ids, logps) in enumerate(zip(output, logprobs, strict=True)):
        length = next(length for length in range(1, len(ids) + 1) if ending.reason(ids[:length]) is not None)
        reason = ending.reason(ids[:length])
        assert reason is not None
        yield index, Completion(ids[:length], logps[:length], reason)


def stream_tokens(model: Any, prompt: Tokens, sampler: Sampler, ending: Ending, inputs: Inputs) -> Iterator[int]:
    """Yield the tokens of one completion; `generate` runs in a thread, whose errors are raised here."""
    tokens = _Tokens()

    def work() -> None:
        try:
            _generate(model, [prompt], GenerateSampler(sampler), ending, inputs, tokens)
        except BaseException as failure:
            tokens.queue.put(failure)
        else:
            tokens.queue.put(None)

    thread = Thread(target=work, daemon=True)
    thread.start()
    try:
        while (item := tokens.queue.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            yield item
    finally:
        tokens.left = True
        thread.join()


@torch.no_grad()
def _generate(
    model: Any,
    prompts: Sequence[Tokens],
    processor: GenerateSampler,
    ending: Ending,
    inputs: Inputs,
    streamer: Any = None,
) -> list[list[int]]:
    """Return the completion of each prompt, padding included. The defaults of the model's folder are ignored."""
    from transformers import GenerationConfig, LogitsProcessorList, StoppingCriteriaList

    longest = max(len(prompt) for prompt in prompts)
    is_over = ending.sampling.is_over
    over = [] if is_over is None else [_Over(is_over, longest)]
    ids = torch.zeros((len(prompts), longest), dtype=torch.long)
    mask = torch.zeros_like(ids)
    for row, prompt in enumerate(prompts):
        ids[row, longest - len(prompt) :] = torch.tensor(prompt)
        mask[row, longest - len(prompt) :] = 1
    ends = sorted(ending.tokens)
    settings = GenerationConfig(
        max_new_tokens=ending.sampling.max_new_tokens,
        do_sample=False,
        eos_token_id=ends or None,
        pad_token_id=ends[0] if ends else 0,
    )
    output = model.generate(
        input_ids=ids.to(model.device),
        attention_mask=mask.to(model.device),
        generation_config=settings,
        logits_processor=LogitsProcessorList([processor]),
        stopping_criteria=StoppingCriteriaList(over),
        streamer=streamer,
        **{name: tensor.to(model.device) for name, tensor in inputs.items()},
    )
    completed: list[list[int]] = output[:, longest:].tolist()
    return completed


class _Over:
    """Stopping criterion for `generate` that ends the rows whose completions are over."""

    def __init__(self, is_over: Callable[[Sequence[int]], bool], start: int) -> None:
        self._is_over = is_over
        self._start = start

    def __call__(self, input_ids: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:
        """Return which rows end, from what was generated after the prompts."""
        over = [self._is_over(row) for row in input_ids[:, self._start :].tolist()]
        return torch.tensor(over, device=input_ids.device)


class _Tokens:
    """Streamer for `generate` that puts the tokens of one completion into a queue."""

    def __init__(self) -> None:
        self.queue: Queue[int | BaseException | None] = Queue()
        self.left = False
        """Whether the reader has stopped."""
        self._prompt_seen = False

    def put(self, tokens: torch.Tensor) -> None:
        """Receive the prompt first, then one token at a time."""
        if self.left:
            raise InterruptedError
        if self._prompt_seen:
            for token in tokens.flatten().tolist():
                self.queue.put(token)
        self._prompt_seen = True

    def end(self) -> None:
        """Do nothing: the thread itself reports that the answer is complete."""
