"""Inference engines as core calls them: errors name the engine, and each prompt is completed once."""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from swift.config.media import NAMES, ONE
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
from swift.plugins.entry import PluginEntry
from swift.plugins.guard import hooks_of
from swift.plugins.known import ENGINE, TRANSFORMERS
from swift.plugins.load import LoadedPlugin
from swift.plugins.return_values import called, items_of, returned, returns, wrong


def open_inference(engine: LoadedPlugin, request: EngineRequest) -> InferenceEngine:
    """Return a model loaded by an inference engine."""
    return CheckedEngine(engine.entry, _call(engine, "swift_open_engine", request))


def outputs_of(engine: InferenceEngine, prompts: Sequence[Sequence[int]]) -> Iterator[tuple[int, list[float]]]:
    """Yield the scores or vectors of a model that `open_inference` has opened."""
    assert isinstance(engine, CheckedEngine)
    return engine.outputs(prompts)


def serve_model(engine: LoadedPlugin, request: ServeRequest) -> int:
    """Serve a model with an inference engine; returns the exit code."""
    code: int = _call(engine, "swift_serve", request)
    return code


def _call(engine: LoadedPlugin, hook: str, request: Any) -> Any:
    with failing(engine.entry, hook):
        came = getattr(hooks_of(engine, EngineHooks), hook)(request=request)
    if came is None:
        raise PluginError(
            f"{engine.entry} returned nothing from {hook}.", hint="Choose another with --engine, or fix the plugin."
        )
    return returned(engine.entry, hook, came, returns(EngineHooks, hook))


class CheckedEngine:
    """An engine of a plugin: every prompt is completed once, with values of the declared types."""

    def __init__(self, entry: PluginEntry, engine: InferenceEngine) -> None:
        self._entry = entry
        self.engine = engine
        """The plugin's own object."""
        self.version: int | None = None
        """How many optimizer steps made its weights, where a run has sent them."""

    def generate(self, prompts: Sequence[Sequence[int]], sampling: Sampling) -> Iterator[tuple[int, Completion]]:
        """Yield one completion per prompt, in the order in which they are ready."""
        self._check_media(prompts)
        for index, completion in self._indexed("generate", Completion, prompts, sampling):
            if len(completion.logprobs) != len(completion.token_ids):
                lengths = f"{len(completion.token_ids)} tokens and {len(completion.logprobs)} log-probabilities"
                raise wrong(self._entry, "generate", "a log-probability for each token", shown=lengths)
            self._check_numbers("generate", completion.logprobs)
            yield index, replace(completion, version=self.version) if completion.version is None else completion

    def stream(self, prompt: Sequence[int], sampling: Sampling) -> Iterator[int]:
        """Yield the tokens of one completion."""
        self._check_media([prompt])
        for token in self._each("stream", prompt, sampling):
            yield returned(self._entry, "stream", token, int)

    def score(self, prompts: Sequence[Sequence[int]], *, top: int = 0) -> Iterator[tuple[int, Score]]:
        """Score each prompt's tokens, with so many of the likeliest ones instead of each."""
        self._check_media(prompts)
        if top and "top" not in inspect.signature(self.engine.score).parameters:
            raise PluginError(
                f"{self._entry} returns log-probabilities of a text's own tokens, and not of the likeliest ones.",
                hint=f"Choose another engine: {TRANSFORMERS} or {ENGINE}.",
            )
        settings = {"top": top} if top else {}
        for index, score in self._indexed("score", Score, prompts, **settings):
            count = len(prompts[index]) - 1
            if not len(score.logprobs) == len(score.likeliest) == count:
                lengths = f"{len(score.logprobs)} log-probabilities and {len(score.likeliest)} choices"
                raise wrong(self._entry, "score", f"{count} of each for {count + 1} tokens", shown=lengths)
            self._check_numbers("score", score.logprobs)
            if top:
                shapes = [getattr(each, "shape", None) for each in (score.top_ids, score.top_logprobs)]
                if shapes != [(count, top)] * 2:
                    expected = f"top_ids and top_logprobs of the shape {(count, top)}"
                    raise wrong(self._entry, "score", expected, shown=f"shapes {shapes}")
            yield index, score

    def _check_numbers(self, method: str, logprobs: Sequence[float]) -> None:
        if any(map(math.isnan, logprobs)):
            raise wrong(self._entry, method, "log-probabilities", shown="NaN among log-probabilities")

    def outputs(self, prompts: Sequence[Sequence[int]]) -> Iterator[tuple[int, list[float]]]:
        """Yield the scores of each prompt, or its vector; `PluginError` where the engine returns none."""
        if not callable(getattr(self.engine, "outputs", None)):
            raise PluginError(
                f"{self._entry} returns no scores or vectors: it has no method outputs.",
                hint="Choose another engine with --engine, or fix the plugin.",
            )
        for index, values in self._indexed("outputs", list[float], prompts):
            if not values:
                raise wrong(self._entry, "outputs", "a list of numbers", shown="an empty list")
            yield index, values

    def update_weights(self, weights: WeightStream) -> None:
        """Replace every weight of the model.

        Names and shapes are those of the files that the engine was opened with. Caches of the old weights are dropped.
        An engine that was opened with an adapter continues without it: such weights have it merged in.
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
        """Refuse prompts with images or audio that the engine would take for text."""
        held = {each.kind for prompt in prompts if isinstance(prompt, ImagePrompt) for each in prompt.media}
        media = getattr(self.engine, "media", ())
        if lacking := held.difference(media):
            kind = min(lacking)
            takes = f"takes no {NAMES[kind]}s" if media else "reads text alone"
            raise DataError(
                f"The prompt has {ONE[kind]}, but {self._entry} {takes}.",
                hint=f"Leave --engine out ({TRANSFORMERS} reads images where the model does), or start a server and "
                "name its address: --engine http://HOST:PORT",
            )

    def _indexed(
        self, method: str, kind: Any, prompts: Sequence[Sequence[int]], *arguments: Any, **named: Any
    ) -> Iterator[tuple[int, Any]]:
        """Yield pairs (index of the prompt, value), in which each index comes once."""
        count = len(prompts)
        left = set(range(count))
        for item in self._each(method, prompts, *arguments, **named):
            index, value = returned(self._entry, method, item, tuple[int, kind])
            if index not in left:
                again = " again" if 0 <= index < count else ""
                raise wrong(
                    self._entry, method, f"each index from 0 to {count - 1} once", shown=f"the index {index}{again}"
                )
            left.discard(index)
            yield index, value
        if left:
            raise PluginError(
                f"{self._entry} returned {count - len(left)} of {count} prompts from {method}; the first "
                f"missing one is number {min(left)}.",
                hint="Each prompt must be returned once.",
            )

    def _each(self, method: str, *arguments: Any, **named: Any) -> Iterator[Any]:
        came = called(self._entry, method, getattr(self.engine, method), Iterable[Any], *arguments, **named)
        return items_of(self._entry, method, came, failing)
