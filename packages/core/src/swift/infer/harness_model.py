"""An inference engine in the interface of lm-evaluation-harness. Importing this needs lm-eval.

The harness has models of its own for transformers and vLLM. This one uses the same engine as everything else here, so
that a score is one of what is served: with the run's adapter, its template and its precision.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

from lm_eval.api.model import TemplateLM
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

from swift.contracts import Sampling
from swift.data.rendering import render_asked
from swift.infer.chat_engine import LocalChatEngine
from swift.terminal import progress

_LONGEST_ANSWER = 256
"""Tokens, where a task says nothing: as in the harness's own models."""
_FIRST_LOOK = 64
"""Tokens after which an answer is first looked at for what ends it; then twice as many, and so on."""


class HarnessModel(TemplateLM):  # type: ignore[misc]  # the harness has no types
    """Log-probabilities by `score`, texts by `generate`."""

    def __init__(self, chat_engine: LocalChatEngine, *, longest: int, say: Callable[[str], None]) -> None:
        super().__init__()
        self.tokenizer = chat_engine.tokenizer
        self._engine = chat_engine.engine
        # vLLM wants to make at least one token of its own.
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
        """Part of the names under which the harness keeps requests."""
        return str(self.tokenizer.name_or_path).replace("/", "__")

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """Return a conversation as the model knows it; a last turn of the assistant is continued."""
        return render_asked(
            self.tokenizer,
            chat_history,
            place="A question of the task",
            add_generation_prompt=add_generation_prompt,
            continue_final_message=not add_generation_prompt,
        )

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: Any) -> list[int]:
        """Tokenise as the tokenizer does, but never with two tokens that begin a text."""
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
        owners: list[int] = []
        for owner, request in enumerate(requests):
            tokens = self.tok_encode(request.args[0])
            for window in get_rolling_token_windows(tokens, self.prefix_token_id, self._longest - 1, 1):
                windows.append((None, *make_disjoint_window(window)))
                owners.append(owner)
        sums = [0.0] * len(requests)
        for owner, (logprob, _) in zip(owners, self._loglikelihood_tokens(windows), strict=True):
            sums[owner] += logprob
        return sums

    def generate_until(self, requests: list[Any], disable_tqdm: bool = True) -> list[str]:
        """Texts up to what ends them. Requests of the same settings are made together."""
        answers = [""] * len(requests)
        groups: dict[tuple[Sampling, tuple[str, ...]], list[int]] = defaultdict(list)
        for place, request in enumerate(requests):
            groups[_settings(request.args[1])].append(place)
        for (sampling, ends), places in groups.items():
            room = self._longest - sampling.max_new_tokens
            prompts = [self._cut(self.tok_encode(requests[place].args[0]), room) for place in places]
            for place, text in zip(places, self._until(prompts, sampling, ends), strict=True):
                answers[place] = text
        return answers

    def _loglikelihood_tokens(
        self, requests: Sequence[tuple[Any, list[int], list[int]]], **_: Any
    ) -> list[tuple[float, bool]]:
        """(log-probability of the continuation, whether the model would have said it) for each request."""
        prompts = [self._cut([*context, *continuation], self._longest) for _, context, continuation in requests]
        found: list[tuple[float, bool]] = [(0.0, True)] * len(requests)
        for place, score in progress(self._engine.score(prompts), "scoring", total=len(prompts)):
            count = len(requests[place][2])
            found[place] = (sum(score.logprobs[-count:]), all(score.likeliest[-count:]))
        return found

    def _until(self, prompts: list[list[int]], sampling: Sampling, ends: Sequence[str]) -> list[str]:
        """Continue each prompt up to the first of `ends`, which is looked for from time to time.

        Engines do not know of texts. Answers drawn at random are drawn in one go.
        """
        vocabulary = self.tokenizer.get_added_vocab()
        marks = {vocabulary[end] for end in ends if end in vocabulary}  # tokens that text does not show
        made: list[list[int]] = [[] for _ in prompts]
        texts = [""] * len(prompts)
        left = list(range(len(prompts)))
        size = _FIRST_LOOK if ends and sampling.temperature == 0 else sampling.max_new_tokens
        total = 0
        while left and total < sampling.max_new_tokens:
            size = min(size, sampling.max_new_tokens - total)
            asked, left = left, []
            going_on = [prompts[place] + made[place] for place in asked]
            step = Sampling(size, sampling.temperature, sampling.top_p, sampling.seed)
            for at, completion in progress(self._engine.generate(going_on, step), "answering", total=len(asked)):
                place, ended = asked[at], completion.finish_reason == "stop"
                made[place] += completion.token_ids[:-1] if ended else completion.token_ids
                stop = next((n for n, token in enumerate(made[place]) if token in marks), len(made[place]))
                text = self.tokenizer.decode(made[place][:stop], skip_special_tokens=True)
                texts[place] = _before(text, ends)
                if not ended and stop == len(made[place]) and texts[place] == text:
                    left.append(place)
            total += size
            size *= 2
        return texts

    def _cut(self, tokens: list[int], longest: int) -> list[int]:
        """Truncate tokens on the left to the model's context, as the harness's own models do, with a warning."""
        if len(tokens) <= longest:
            return tokens
        self._say(f"A question has {len(tokens)} tokens, and the model sees {longest}: its beginning is left out")
        return tokens[-longest:]


def _settings(requested: dict[str, Any]) -> tuple[Sampling, tuple[str, ...]]:
    """Return the sampling that a task requests (greedy by default) and the texts that end an answer."""
    until = requested.get("until") or ()
    ends = (until,) if isinstance(until, str) else tuple(until)
    drawn = bool(requested.get("do_sample", float(requested.get("temperature") or 0) > 0))
    sampling = Sampling(
        max_new_tokens=int(requested.get("max_gen_toks") or requested.get("max_new_tokens") or _LONGEST_ANSWER),
        temperature=float(requested.get("temperature") or 1.0) if drawn else 0.0,
        top_p=float(requested.get("top_p") or 1.0) if drawn else 1.0,
    )
    return sampling, ends


def _before(text: str, ends: Sequence[str]) -> str:
    """Return the text up to the first of these."""
    return text[: min([found for end in ends if end and (found := text.find(end)) >= 0], default=len(text))]
