"""An inference engine with the interface of lm-evaluation-harness. Importing this needs lm-eval.

The harness has its own models for transformers and vLLM. This one uses swift's engines, so that scores are those of
the served model: with the run's adapter, template and precision.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from lm_eval.api.model import TemplateLM
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

from swift.contracts import Sampling
from swift.data.rendering import render_prompt
from swift.terminal import progress
from swift_infer.chat_engine import LocalChatEngine
from swift_infer.stop_strings import StopStrings

_MAX_NEW_TOKENS = 256
"""Default of tasks, as in the harness's own models."""


class HarnessModel(TemplateLM):  # type: ignore[misc]  # the harness has no types
    """Log-probabilities by `score`, completions by `generate`."""

    def __init__(self, chat_engine: LocalChatEngine, *, longest: int, say: Callable[[str], None]) -> None:
        super().__init__()
        self.tokenizer = chat_engine.tokenizer
        self._engine = chat_engine.engine
        # vLLM generates at least one token.
        self._longest = longest - 1
        self._say = say

    @property
    def eot_token_id(self) -> int:
        """The token that ends a text."""
        return int(self.tokenizer.eos_token_id or 0)

    @property
    def prefix_token_id(self) -> int:
        """Return the token put before a text that has no context."""
        begin = self.tokenizer.bos_token_id
        return self.eot_token_id if begin is None else int(begin)

    @property
    def tokenizer_name(self) -> str:
        """Part of the harness's cache keys."""
        return str(self.tokenizer.name_or_path).replace("/", "__")

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """Return a rendered conversation; a last turn of the assistant is continued."""
        return render_prompt(
            self.tokenizer,
            chat_history,
            location="A question of the task",
            add_generation_prompt=add_generation_prompt,
            continue_final_message=not add_generation_prompt,
        )

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: Any) -> list[int]:
        """Tokenise a string, never with two beginning-of-text tokens."""
        begin = self.tokenizer.bos_token
        if add_special_tokens is None:
            add_special_tokens = not (begin and string.startswith(begin))
        return list(self.tokenizer(string, add_special_tokens=add_special_tokens)["input_ids"])

    def loglikelihood(self, requests: list[Any], disable_tqdm: bool = True) -> list[tuple[float, bool]]:
        """Score continuations; the only progress bar is the engine's."""
        scored: list[tuple[float, bool]] = super().loglikelihood(requests, disable_tqdm=disable_tqdm)
        return scored

    def loglikelihood_rolling(self, requests: list[Any], disable_tqdm: bool = True) -> list[float]:
        """Score whole texts, in windows of the model's context."""
        windows: list[tuple[Any, list[int], list[int]]] = []
        sources: list[int] = []
        for index, request in enumerate(requests):
            tokens = self.tok_encode(request.args[0])
            for window in get_rolling_token_windows(tokens, self.prefix_token_id, self._longest - 1, 1):
                windows.append((None, *make_disjoint_window(window)))
                sources.append(index)
        sums = [0.0] * len(requests)
        for index, (logprob, _) in zip(sources, self._loglikelihood_tokens(windows), strict=True):
            sums[index] += logprob
        return sums

    def generate_until(self, requests: list[Any], disable_tqdm: bool = True) -> list[str]:
        """Generate up to the stop strings; requests with the same settings share a batch."""
        strings = [""] * len(requests)
        groups: dict[Sampling, list[int]] = defaultdict(list)
        for index, request in enumerate(requests):
            groups[_sampling(request.args[1])].append(index)
        for sampling, indices in groups.items():
            room = self._longest - sampling.max_new_tokens
            prompts = [self._cut(self.tok_encode(requests[index].args[0]), room) for index in indices]
            for at, text in progress(self._until(prompts, sampling), "generating", total=len(prompts)):
                strings[indices[at]] = text
        return strings

    def _loglikelihood_tokens(
        self, requests: Sequence[tuple[Any, list[int], list[int]]], **_: Any
    ) -> list[tuple[float, bool]]:
        """Return (log-probability of the continuation, whether it is the greedy one) for each request."""
        prompts = [self._cut([*context, *continuation], self._longest) for _, context, continuation in requests]
        found: list[tuple[float, bool]] = [(0.0, True)] * len(requests)
        for index, score in progress(self._engine.score(prompts), "scoring", total=len(prompts)):
            count = len(requests[index][2])
            found[index] = (sum(score.logprobs[-count:]), all(score.likeliest[-count:]))
        return found

    def _until(self, prompts: list[list[int]], sampling: Sampling) -> Iterator[tuple[int, str]]:
        """Yield (index of the prompt, its continuation up to the first stop string)."""
        stops = StopStrings(self.tokenizer, sampling.stop)
        for index, completion in self._engine.generate(prompts, stops.applied_to(sampling)):
            ids = completion.token_ids
            text, found = stops.before(self.tokenizer.decode(ids, skip_special_tokens=True))
            if not found and completion.finish_reason == "stop":
                text = self.tokenizer.decode(ids[:-1], skip_special_tokens=True)
            yield index, text

    def _cut(self, tokens: list[int], longest: int) -> list[int]:
        """Truncate tokens on the left to the model's context, as the harness's own models do, with a warning."""
        if len(tokens) <= longest:
            return tokens
        self._say(f"A prompt has {len(tokens)} tokens, but the model takes {longest}: its beginning is cut off")
        return tokens[-longest:]


def _sampling(requested: dict[str, Any]) -> Sampling:
    """Return the sampling that a task requests, greedy by default, with its stop strings."""
    until = requested.get("until") or ()
    sampled = bool(requested.get("do_sample", float(requested.get("temperature") or 0) > 0))
    return Sampling(
        max_new_tokens=int(requested.get("max_gen_toks") or requested.get("max_new_tokens") or _MAX_NEW_TOKENS),
        temperature=float(requested.get("temperature") or 1.0) if sampled else 0.0,
        top_p=float(requested.get("top_p") or 1.0) if sampled else 1.0,
        stop=tuple(filter(None, (until,) if isinstance(until, str) else until)),
    )
