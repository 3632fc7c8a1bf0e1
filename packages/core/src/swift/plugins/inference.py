"""Typed wrapper of an inference engine that checks everything the engine returns."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pluggy

from swift.config.media import NAMES
from swift.contracts import (
    Completion,
    EngineRequest,
    ImagePrompt,
    InferenceEngine,
    Sampling,
    Score,
    ServeRequest,
    WeightStream,
)
from swift.errors import DataError, PluginError
from swift.hookspecs import EngineHooks
from swift.plugins.blame import failing
from swift.plugins.guard import guarded
from swift.plugins.known import ENGINE, TRANSFORMERS
from swift.plugins.load import LoadedPlugin
from swift.plugins.return_values import described, wrong

if TYPE_CHECKING:
    from swift.plugins.entry import PluginEntry

_METHODS = ("generate", "stream", "score", "close")
_REASONS = ("stop", "length")


def open_inference(engine: LoadedPlugin, request: EngineRequest) -> InferenceEngine:
    """Return a model loaded by an inference engine."""
    came = _ask(engine, "swift_open_engine", request)
    with failing(engine.entry, "swift_open_engine"):
        missing = [name for name in _METHODS if not callable(getattr(came, name, None))]
    if missing:
        raise wrong(engine.entry, "swift_open_engine", f"an engine that has {', '.join(missing)}", came)
    return CheckedEngine(engine.entry, came)


def outputs_of(engine: InferenceEngine, prompts: Sequence[Sequence[int]]) -> Iterator[tuple[int, list[float]]]:
    """Yield the scores or vectors of a model that `open_inference` has opened."""
    assert isinstance(engine, CheckedEngine)
    return engine.outputs(prompts)


def serve(engine: LoadedPlugin, request: ServeRequest) -> int:
    """Serve a model with an inference engine; returns the exit code."""
    code = _ask(engine, "swift_serve", request)
    with failing(engine.entry, "swift_serve"):
        if not isinstance(code, int):
            raise wrong(engine.entry, "swift_serve", "an exit code", code)
    return int(code)


def _ask(engine: LoadedPlugin, hook: str, request: Any) -> Any:
    manager = pluggy.PluginManager("swift")
    manager.add_hookspecs(EngineHooks)
    manager.register(guarded(engine), name=str(engine.entry))
    with failing(engine.entry, hook):
        answer = getattr(manager.hook, hook)(request=request)
    if answer is None:
        raise PluginError(
            f"{engine.entry} does not answer {hook}.", hint="Choose another with --engine, or fix the plugin."
        )
    return answer


class CheckedEngine:
    """An engine of a plugin. Every prompt is answered once, with what the contract says, or the plugin is named."""

    def __init__(self, entry: PluginEntry, engine: InferenceEngine) -> None:
        self._entry = entry
        self.engine = engine
        """The plugin's own object."""
        self.version: int | None = None
        """How many optimizer steps made its weights, where a run has sent them."""

    def generate(self, prompts: Sequence[Sequence[int]], sampling: Sampling) -> Iterator[tuple[int, Completion]]:
        """Yield one answer per prompt, in the order in which they are ready."""
        self._check_media(prompts)
        make: Callable[[], Iterable[Any]] = lambda: self.engine.generate(prompts, sampling)  # noqa: E731
        for place, answer in self._placed("generate", len(prompts), make):
            with failing(self._entry, "generate"):
                completion = self._completion(answer, sampling.max_new_tokens)
            yield place, replace(completion, version=self.version) if completion.version is None else completion

    def stream(self, prompt: Sequence[int], sampling: Sampling) -> Iterator[int]:
        """Yield the tokens of one answer."""
        self._check_media([prompt])
        for number, token in enumerate(self._each("stream", lambda: self.engine.stream(prompt, sampling))):
            if not issubclass(type(token), int) or token < 0:
                raise wrong(self._entry, "stream", "tokens as whole numbers", token)
            if number == sampling.max_new_tokens:  # it may never end
                raise wrong(self._entry, "stream", f"at most {number} tokens", words="more of them")
            yield token

    def score(self, prompts: Sequence[Sequence[int]], *, top: int = 0) -> Iterator[tuple[int, Score]]:
        """Score each prompt's tokens, with so many of the likeliest ones instead of each."""
        self._check_media(prompts)
        if top and "top" not in inspect.signature(self.engine.score).parameters:
            raise PluginError(
                f"{self._entry} tells the log-probabilities of a text's own tokens alone, not of the likeliest ones.",
                hint=f"Choose another engine: {TRANSFORMERS} or {ENGINE}.",
            )
        asked = {"top": top} if top else {}
        for place, score in self._placed("score", len(prompts), lambda: self.engine.score(prompts, **asked)):
            with failing(self._entry, "score"):
                self._check_score(score, len(prompts[place]) - 1, top)
            yield place, score

    def outputs(self, prompts: Sequence[Sequence[int]]) -> Iterator[tuple[int, list[float]]]:
        """Yield the scores of each prompt, or its vector; `PluginError` where the engine returns none."""
        if not callable(getattr(self.engine, "outputs", None)):
            raise PluginError(
                f"{self._entry} returns no scores or vectors: it has no method outputs.",
                hint="Choose another engine with --engine, or fix the plugin.",
            )
        for place, values in self._placed("outputs", len(prompts), lambda: self.engine.outputs(prompts)):  # type: ignore[attr-defined]
            if not (isinstance(values, list) and values and all(isinstance(each, float) for each in values)):
                raise wrong(self._entry, "outputs", "pairs (place, list of numbers)", values)
            yield place, values

    def update_weights(self, weights: WeightStream) -> None:
        """Replace every weight of the model, by Hugging Face name, as `swift_iter_weights` streams them.

        Caches of the old weights are dropped. An engine that was opened with an adapter continues without it: such
        weights have it merged in.
        """
        self.version = None
        with failing(self._entry, "update_weights"):
            self.engine.update_weights(weights)

    def update_adapter(self, weights: WeightStream, config: Mapping[str, Any]) -> None:
        """Put an adapter on the model as it was opened, instead of the one before; see `InferenceEngine`."""
        self.version = None
        with failing(self._entry, "update_adapter"):
            self.engine.update_adapter(weights, config)  # type: ignore[attr-defined]

    def close(self) -> None:
        """Give memory and processes back."""
        with failing(self._entry, "close"):
            self.engine.close()

    def __getattr__(self, name: str) -> Any:
        """Forward attributes that are the engine's own."""
        return getattr(self.__dict__["engine"], name)

    def _check_media(self, prompts: Sequence[Sequence[int]]) -> None:
        """Refuse prompts with images or sounds that the engine would take for text."""
        held = {each.kind for prompt in prompts if isinstance(prompt, ImagePrompt) for each in prompt.media}
        if lacking := held.difference(getattr(self.engine, "media", ())):
            name = NAMES[min(lacking)]
            takes = f"takes no {name}s" if getattr(self.engine, "media", ()) else "reads text alone"
            raise DataError(
                f"{self._entry} is given a question with a {name}, and {takes}.",
                hint=f"Leave --engine out ({TRANSFORMERS} reads images where the model does), or start a server and "
                "name its address: --engine http://HOST:PORT",
            )

    def _check_score(self, score: object, count: int, top: int) -> None:
        if not isinstance(score, Score):
            raise wrong(self._entry, "score", "pairs (place, swift.contracts.Score)", score)
        for name in ("logprobs", "likeliest"):
            if not isinstance(getattr(score, name), Sequence):
                raise wrong(self._entry, "score", f"a Score whose {name} are a sequence", getattr(score, name))
        if not len(score.logprobs) == len(score.likeliest) == count:
            lengths = f"{len(score.logprobs)} log-probabilities and {len(score.likeliest)} choices"
            raise wrong(self._entry, "score", f"{count} of each for a prompt of {count + 1} tokens", words=lengths)
        if not all(map(_is_logprob, score.logprobs)):
            raise wrong(self._entry, "score", "a Score whose logprobs are numbers", score.logprobs)
        self._check_top(score, (count, top))

    def _check_top(self, score: Score, shape: tuple[int, int]) -> None:
        """Check the shapes of the likeliest tokens, where they were asked for."""
        if shape[1]:
            found = [None if each is None else tuple(each.shape) for each in (score.top_ids, score.top_logprobs)]
            if found != [shape, shape]:
                raise wrong(self._entry, "score", f"top_ids and top_logprobs of shape {shape}", words=f"shapes {found}")

    def _placed(self, method: str, count: int, make: Callable[[], Iterable[Any]]) -> Iterator[tuple[int, Any]]:
        """Yield pairs (index, answer), in which each index comes once."""
        left = set(range(count))
        for item in self._each(method, make):
            if type(item) is not tuple or len(item) != 2:
                raise wrong(self._entry, method, "pairs (place of the prompt, answer)", item)
            place, answer = item
            if type(place) is not int or place not in left:
                again = type(place) is int and 0 <= place < count
                expected = f"each of the places 0 to {count - 1} once" if again else f"a place from 0 to {count - 1}"
                shown = repr(place) if type(place) in (int, str) else described(place)
                raise wrong(self._entry, method, expected, words=f"the place {shown}" + " again" * again)
            left.discard(place)
            yield place, answer
        if left:
            raise PluginError(
                f"{self._entry} answered {count - len(left)} of {count} prompts in {method}; the first without an "
                f"answer is number {min(left)}.",
                hint="Each prompt is to be answered once.",
            )

    def _each(self, method: str, make: Callable[[], Iterable[Any]]) -> Iterator[Any]:
        with failing(self._entry, method):
            came = make()
            if not isinstance(came, Iterable):
                raise wrong(self._entry, method, "an iterator", came)
            iterator = iter(came)
        try:
            while True:
                with failing(self._entry, method):
                    item = next(iterator, _END)
                if item is _END:
                    return
                yield item
        finally:
            close = getattr(iterator, "close", None)
            if close is not None:
                close()

    def _completion(self, came: object, most: int) -> Completion:
        if not isinstance(came, Completion):
            raise wrong(self._entry, "generate", "pairs (place, swift.contracts.Completion)", came)
        ids: object = came.token_ids
        if not isinstance(ids, Sequence) or not all(isinstance(token, int) and token >= 0 for token in ids):
            raise wrong(self._entry, "generate", "a Completion whose token_ids are whole numbers", ids)
        logprobs: object = came.logprobs
        if not isinstance(logprobs, Sequence) or not all(map(_is_logprob, logprobs)):
            raise wrong(self._entry, "generate", "a Completion whose logprobs are numbers", logprobs)
        if len(logprobs) != len(ids):
            lengths = f"{len(ids)} tokens and {len(logprobs)} log-probabilities"
            raise wrong(self._entry, "generate", "a Completion with a log-probability for each token", words=lengths)
        if len(ids) > most:
            raise wrong(self._entry, "generate", f"a Completion of at most {most} tokens", words=f"{len(ids)} tokens")
        if came.finish_reason not in _REASONS:
            raise wrong(self._entry, "generate", "a Completion that ended by 'stop' or 'length'", came.finish_reason)
        return came


def _is_logprob(value: object) -> bool:
    return isinstance(value, float | int) and not math.isnan(value)


_END = object()
