"""Checks of an inference engine, compared with a plain transformers model, one prompt at a time."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from swift.contracts import InferenceEngine, Sampling, WeightStream
from swift.errors import SwiftError

__tracebackhide__ = True  # pytest shows the sentence alone

LENGTHS = (3, 29, 11, 40, 2, 17)
"""Of the prompts, so that batches are padded."""
LENGTH = 20
"""Tokens of a completion at most."""
SAMPLES = 384
"""First tokens that are sampled to compare how often each comes with how probable it is."""

TOP = 3
"""Likeliest tokens that are compared at each position."""


class TransformersReference:
    """The model of a folder in transformers, in fp32, and prompts for it."""

    def __init__(self, folder: Path, *, tolerance: float = 1e-4) -> None:
        from transformers import AutoModelForCausalLM, AutoTokenizer

        self.folder = folder
        self.tolerance = tolerance
        """Of log-probabilities."""
        self._model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        generator = torch.Generator().manual_seed(0)
        vocabulary = self._model.config.get_text_config().vocab_size
        self.prompts: list[list[int]] = [
            torch.randint(vocabulary, (length,), generator=generator).tolist() for length in LENGTHS
        ]

        # The tokenizer's, which servers know by themselves, and one that some completion reaches.
        self.end_tokens = (
            int(AutoTokenizer.from_pretrained(folder).eos_token_id),
            self._continued(self.prompts[0], LENGTH)[LENGTH // 2],
        )
        """What the engine is to be opened with."""

    def complete(self, prompt: Sequence[int]) -> tuple[list[int], str]:
        """Return the most likely tokens up to one that ends the completion, and why it ended."""
        tokens = self._continued(prompt, LENGTH)
        ends = [index for index, token in enumerate(tokens) if token in self._ends]
        return (tokens[: ends[0] + 1], "stop") if ends else (tokens, "length")

    @torch.no_grad()
    def penalised(self, prompt: Sequence[int], penalty: float) -> list[int]:
        """Return a completion in which tokens of prompt and completion are less likely, as `generate` has it."""
        ids = torch.tensor([list(prompt)])
        made = self._model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            max_new_tokens=6,
            repetition_penalty=penalty,
            pad_token_id=self.end_tokens[0],
        )
        completion: list[int] = made[0, len(prompt) :].tolist()
        return completion

    @torch.no_grad()
    def logprobs(self, tokens: Sequence[int]) -> torch.Tensor:
        """Return the log-probabilities of the whole vocabulary after each of these tokens but the last."""
        logits: torch.Tensor = self._model(input_ids=torch.tensor([list(tokens)]), use_cache=False).logits[0, :-1]
        return logits.float().log_softmax(-1)

    @torch.no_grad()
    def sampled_logprobs(self, prompt: Sequence[int], completion: Sequence[int], sampling: Sampling) -> list[float]:
        """Return the log-probabilities of a completion in the distributions that transformers samples from."""
        from transformers import (
            LogitsProcessorList,
            RepetitionPenaltyLogitsProcessor,
            TemperatureLogitsWarper,
            TopKLogitsWarper,
            TopPLogitsWarper,
        )

        processors = LogitsProcessorList(
            [
                RepetitionPenaltyLogitsProcessor(sampling.repetition_penalty),
                TemperatureLogitsWarper(sampling.temperature),
                TopKLogitsWarper(sampling.top_k),
                TopPLogitsWarper(sampling.top_p),
            ]
        )
        tokens = torch.tensor([[*prompt, *completion]])
        logits = self._model(input_ids=tokens, use_cache=False).logits.float()
        found = []
        for index in range(len(prompt), tokens.shape[1]):
            left = processors(tokens[:, :index], logits[:, index - 1].clone())
            found.append(float(left.log_softmax(-1)[0, tokens[0, index]]))
        return found

    @torch.no_grad()
    def changed(self) -> TransformersReference:
        """Another model of the same architecture."""
        other = TransformersReference(self.folder, tolerance=self.tolerance)
        other.end_tokens = self.end_tokens
        generator = torch.Generator().manual_seed(1)
        for parameter in other._model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.05)
        return other

    def weights(self) -> WeightStream:
        """Stream weights as a backend does: one at a time, in memory that it uses again."""
        from swift.toolkit import canonical_weights

        for name, tensor in canonical_weights(self._model):
            lent = tensor.clone()
            yield name, lent
            lent.fill_(float("nan"))

    @cached_property
    def _ends(self) -> set[int]:
        configured = self._model.generation_config.eos_token_id
        listed = configured if isinstance(configured, list) else [configured]
        return {*self.end_tokens, *(token for token in listed if token is not None)}

    @torch.no_grad()
    def _continued(self, prompt: Sequence[int], count: int) -> list[int]:
        tokens = list(prompt)
        for _ in range(count):
            tokens.append(int(self._model(input_ids=torch.tensor([tokens]), use_cache=False).logits[0, -1].argmax()))
        return tokens[len(prompt) :]


GREEDY = Sampling(max_new_tokens=LENGTH)
SAMPLED = Sampling(max_new_tokens=LENGTH, temperature=1.3, top_p=0.9, seed=7)
NARROW = replace(SAMPLED, temperature=0.8, top_k=30, repetition_penalty=1.2, logprobs="sampled")


def completions_are_those_of_transformers(engine: InferenceEngine, reference: TransformersReference) -> None:
    """Check completions token by token, the token that ends them included: each prompt is completed once."""
    completions = list(engine.generate(reference.prompts, GREEDY))
    _same("completed prompts", sorted(index for index, _ in completions), list(range(len(reference.prompts))))
    for index, completion in completions:
        expected = reference.complete(reference.prompts[index])
        _same(f"prompt {index}", (completion.token_ids, completion.finish_reason), expected)
    _same("reasons to end", {completion.finish_reason for _, completion in completions}, {"stop", "length"})


def log_probabilities_are_the_model_s_own(engine: InferenceEngine, reference: TransformersReference) -> None:
    """Before temperature and `top_p` change them."""
    for sampling in (GREEDY, SAMPLED):
        for index, completion in engine.generate(reference.prompts, sampling):
            prompt = reference.prompts[index]
            expected = _of(reference, [*prompt, *completion.token_ids])[len(prompt) - 1 :]
            _close(completion.logprobs, expected, reference.tolerance)


def sampled_log_probabilities_are_those_of_transformers(
    engine: InferenceEngine, reference: TransformersReference
) -> None:
    """After penalty, temperature, `top_k` and `top_p`. An engine that cannot tell them refuses."""
    try:
        completions = list(engine.generate(reference.prompts, NARROW))
    except SwiftError:
        return
    for index, completion in completions:
        expected = reference.sampled_logprobs(reference.prompts[index], completion.token_ids, NARROW)
        _close(completion.logprobs, expected, reference.tolerance)


def a_stream_brings_the_same_tokens(engine: InferenceEngine, reference: TransformersReference) -> None:
    """Check that streams equal `generate`, and that one that is left early leaves the engine unchanged."""
    for sampling in (GREEDY, SAMPLED):
        whole = dict(engine.generate(reference.prompts[:1], sampling))[0].token_ids
        left: Any = engine.stream(reference.prompts[1], sampling)
        next(left)
        left.close()
        _same("a streamed completion", list(engine.stream(reference.prompts[0], sampling)), whole)


def scores_are_those_of_transformers(engine: InferenceEngine, reference: TransformersReference) -> None:
    """Check the scores of every token after the first, and whether it was the likeliest."""
    scores = dict(engine.score(reference.prompts))
    _same("scored prompts", sorted(scores), list(range(len(reference.prompts))))
    # A completion is made of the likeliest tokens, a random prompt is not.
    ids = [*reference.prompts[0], *reference.complete(reference.prompts[0])[0]]
    ((_, of_completion),) = engine.score([ids])
    count = len(ids) - len(reference.prompts[0])
    _same("likeliest of a greedy completion", of_completion.likeliest[-count:], [True] * count)
    for index, prompt in enumerate(reference.prompts):
        _close(scores[index].logprobs, _of(reference, prompt), reference.tolerance)
        likeliest = reference.logprobs(prompt).argmax(-1).tolist()
        expected = [a == b for a, b in zip(prompt[1:], likeliest, strict=True)]
        _same(f"likeliest of prompt {index}", scores[index].likeliest, expected)


def likeliest_tokens_are_those_of_transformers(engine: InferenceEngine, reference: TransformersReference) -> None:
    """Check the likeliest tokens of each position; an engine that returns none has nothing to check."""
    if "top" not in inspect.signature(getattr(engine, "engine", engine).score).parameters:
        return
    for index, score in engine.score(reference.prompts, top=TOP):
        every = reference.logprobs(reference.prompts[index])
        assert score.top_ids is not None, f"top_ids of prompt {index} is None, with top={TOP}"
        assert score.top_logprobs is not None, f"top_logprobs of prompt {index} is None, with top={TOP}"
        ids = torch.from_numpy(score.top_ids).long()
        _same(f"likeliest tokens of prompt {index}", {len(set(row)) for row in ids.tolist()}, {TOP})
        # Tokens that are alike to the last digit come in any order: how likely they are is compared.
        logprobs = torch.from_numpy(score.top_logprobs)
        _close(logprobs.flatten().tolist(), every.gather(-1, ids).flatten().tolist(), reference.tolerance)
        likeliest = every.topk(TOP).values
        _close(
            logprobs.sort(descending=True).values.flatten().tolist(), likeliest.flatten().tolist(), reference.tolerance
        )
        _close(score.logprobs, _of(reference, reference.prompts[index]), reference.tolerance)


def samples_depend_on_seed_and_number_alone(engine: InferenceEngine, reference: TransformersReference) -> None:
    """Check that samples depend on neither other prompts nor earlier ones."""
    prompts = [reference.prompts[1]] * 4 + reference.prompts
    whole = {index: completion.token_ids for index, completion in engine.generate(prompts, SAMPLED)}
    assert len({tuple(whole[index]) for index in range(4)}) > 1, "the same prompt gave the same completion four times"
    chosen = (5, 2)
    part = dict(engine.generate([prompts[index] for index in chosen], replace(SAMPLED, numbers=chosen)))
    _same("samples of two prompts alone", [part[at].token_ids for at in range(2)], [whole[index] for index in chosen])
    other = {index: completion.token_ids for index, completion in engine.generate(prompts, replace(SAMPLED, seed=8))}
    assert other != whole, "another seed gave the same samples"


def tokens_come_as_often_as_they_are_probable(engine: InferenceEngine, reference: TransformersReference) -> None:
    """Under a temperature, and under `top_p` none but the likeliest."""
    prompt = reference.prompts[2]
    logprobs = reference.logprobs([*prompt, 0])[-1]
    warm = (logprobs / 0.7).softmax(-1)
    sampling = Sampling(max_new_tokens=1, temperature=0.7, seed=3)
    sampled = [completion.token_ids[0] for _, completion in engine.generate([prompt] * SAMPLES, sampling)]
    surprise = -warm.log()
    mean = float((warm * surprise).sum())
    spread = float((warm * (surprise - mean) ** 2).sum().sqrt())
    found = float(surprise[torch.tensor(sampled)].mean())
    assert abs(found - mean) < 4 * spread / SAMPLES**0.5, f"mean surprise {found:.3f} instead of {mean:.3f}"

    ordered, tokens = warm.sort(descending=True)
    count = int((ordered.cumsum(0) < 0.3).sum()) + 1
    nucleus = [c.token_ids[0] for _, c in engine.generate([prompt] * SAMPLES, replace(sampling, top_p=0.3))]
    _same("tokens sampled with top_p=0.3", {*nucleus}, {*tokens[:count].tolist()})


def penalties_candidates_and_stops_are_those_of_transformers(
    engine: InferenceEngine, reference: TransformersReference
) -> None:
    """Check `repetition_penalty`, `top_k` and `is_over`."""
    penalised = dict(engine.generate(reference.prompts, Sampling(max_new_tokens=6, repetition_penalty=1.5)))
    for index, prompt in enumerate(reference.prompts):
        given = penalised[index].token_ids
        _same(f"prompt {index} with a penalty", given, reference.penalised(prompt, 1.5)[: len(given)])

    prompt = reference.prompts[2]
    likeliest = reference.logprobs([*prompt, 0])[-1].topk(3).indices.tolist()
    among = Sampling(max_new_tokens=1, temperature=2.0, top_k=3, seed=3)
    sampled = {completion.token_ids[0] for _, completion in engine.generate([prompt] * 64, among)}
    _same("tokens sampled with top_k=3", sampled, {*likeliest})

    last = reference.prompts[1]
    whole, _ = reference.complete(last)
    stopped = replace(GREEDY, is_over=lambda tokens: len(tokens) >= 3)
    ((_, completion),) = engine.generate([last], stopped)
    _same("a completion that `is_over` ends", (completion.token_ids, completion.finish_reason), (whole[:3], "stop"))
    _same("the same, streamed", list(engine.stream(last, stopped)), whole[:3])


def weights_can_be_replaced(engine: InferenceEngine, reference: TransformersReference) -> None:
    """Check that completions follow transformers with new weights, and with the old ones after them."""
    for state in (reference.changed(), reference):
        engine.update_weights(state.weights())
        completions_are_those_of_transformers_with(engine, state)


def half_an_update_is_refused(engine: InferenceEngine, reference: TransformersReference) -> None:
    """Check that an engine that lacks weights raises, and that a complete update fixes it."""

    def cut() -> Iterator[tuple[str, torch.Tensor]]:
        # The last ones, so that tied or buffered weights in front do not decide.
        yield from list(reference.weights())[:-3]

    refused = False
    try:
        engine.update_weights(cut())
    except SwiftError:
        refused = True
    assert refused, "an update without three of the weights was taken for a whole one"
    engine.update_weights(reference.weights())
    completions_are_those_of_transformers_with(engine, reference)


def an_empty_prompt_is_refused(engine: InferenceEngine, reference: TransformersReference) -> None:
    """With a sentence for the user."""
    try:
        list(engine.generate([[]], GREEDY))
    except SwiftError:
        return
    raise AssertionError("a prompt without tokens was accepted")


def closing_twice_does_no_harm(engine: InferenceEngine, reference: TransformersReference) -> None:
    """Check closing twice, last: the engine is closed afterwards."""
    del reference
    engine.close()
    engine.close()


Check = Callable[[InferenceEngine, TransformersReference], None]

CHECKS: tuple[Check, ...] = (
    completions_are_those_of_transformers,
    log_probabilities_are_the_model_s_own,
    sampled_log_probabilities_are_those_of_transformers,
    a_stream_brings_the_same_tokens,
    scores_are_those_of_transformers,
    likeliest_tokens_are_those_of_transformers,
    samples_depend_on_seed_and_number_alone,
    tokens_come_as_often_as_they_are_probable,
    penalties_candidates_and_stops_are_those_of_transformers,
    an_empty_prompt_is_refused,
    weights_can_be_replaced,
    half_an_update_is_refused,
    closing_twice_does_no_harm,
)
"""In the order in which they are to be made on one engine."""


def completions_are_those_of_transformers_with(engine: InferenceEngine, reference: TransformersReference) -> None:
    """Check completions for weights of which it is not known that some completion ends by itself."""
    for index, completion in engine.generate(reference.prompts, GREEDY):
        expected = reference.complete(reference.prompts[index])
        _same(f"prompt {index}", (completion.token_ids, completion.finish_reason), expected)


def _of(reference: TransformersReference, tokens: Sequence[int]) -> list[float]:
    """Return transformers' log-probabilities of every token after the first."""
    found = reference.logprobs(tokens).gather(1, torch.tensor(list(tokens[1:]))[:, None])[:, 0]
    values: list[float] = found.tolist()
    return values


def _same(what: str, found: Any, expected: Any) -> None:
    assert found == expected, f"{what}: {found}, not {expected}"


def _close(found: Sequence[float], expected: Sequence[float], tolerance: float) -> None:
    _same("number of log-probabilities", len(found), len(expected))
    furthest = max((abs(a - b) for a, b in zip(found, expected, strict=True)), default=0.0)
    assert furthest <= tolerance, f"log-probabilities differ by {furthest:.1e}"
