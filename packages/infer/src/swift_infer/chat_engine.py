"""Chat engines: an inference engine behind a chat template, or a server that renders its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from swift.config.media import LIMITS
from swift.config.sections import DataSection
from swift.contracts import EngineRequest, InferenceEngine, Sampling
from swift.data.rendering import render_chat, render_prompt
from swift.errors import DataError, ModelError, SwiftError, UsageError
from swift.models.adapter_file import ADAPTER_WEIGHTS
from swift.models.files import SafetensorsFolder
from swift.parsing.tasks import check_generates
from swift.plugins import LoadedPlugin, load_engine, open_inference
from swift.terminal import IMPORTS, waiting
from swift_infer.image_messages import has_images
from swift_infer.options import ModelOptions, is_address
from swift_infer.questions import Question, with_system
from swift_infer.response import ChatEngine, Messages, Response
from swift_infer.scoring import returns_steps
from swift_infer.stop_strings import StopStrings

if TYPE_CHECKING:
    from swift.checkpoint import WeightsLocation
    from swift.data import MediaRules
    from swift.models import HfSource
    from swift_infer.image_prompts import ImagePromptWriter


def open_chat_engine(
    options: ModelOptions,
    *,
    batch_size: int | None = None,
    say: Callable[[str], None],
    found: FoundModel | None = None,
) -> ChatEngine:
    """Return a chat engine for a model, loaded by an inference engine or by a server; `found` is one that is known."""
    if is_address(options.engine):
        from swift_infer.remote import RemoteChatEngine

        _check_server_options(options)
        return RemoteChatEngine(
            options.engine,
            model=options.model,
            api_key=options.api_key,
            system=options.system,
            at_a_time=batch_size,
            template_arguments=options.template_arguments,
            say=say,
        )
    return open_local(found or find_model(options, say=say), options, batch_size=batch_size, say=say)


@dataclass(frozen=True)
class FoundModel:
    """A model that was found, but is not loaded yet."""

    name: str
    engine: LoadedPlugin
    location: WeightsLocation
    source: HfSource

    @property
    def problem_type(self) -> str | None:
        """Return transformers' `problem_type` of a classifier, from its run or else its config.json."""
        return self.location.weights.problem_type or getattr(self.source.config, "problem_type", None)

    def check_scores_sequences(self) -> None:
        """Raise `ModelError` if the model is a process reward model, which scores steps instead of whole sequences."""
        if returns_steps(self.location):
            raise ModelError(
                f"{self.name} is a process reward model: it scores the steps of a completion, not a whole text.",
                hint="Score completions by their steps: swift sample MODEL --dataset FILE --reward_model "
                f"{self.name} --step_reward min --result_path FILE",
            )

    def facts(self) -> dict[str, str]:
        """Return facts that distinguish this model from others of the same name."""
        adapter = self.location.adapter
        facts = {"model": str(self.source.folder), "weights": self.source.fingerprint}
        if adapter is not None and (adapter / ADAPTER_WEIGHTS).is_file():
            digest = SafetensorsFolder(adapter, file=ADAPTER_WEIGHTS).digest()
            facts |= {"adapter": str(adapter), "adapter_weights": digest}
        return facts


def find_model(options: ModelOptions, *, generates: bool = True, say: Callable[[str], None]) -> FoundModel:
    """Return the engine and the model: a run, a checkpoint, an adapter, a folder or a hub id.

    Raise `UsageError` if the model `generates` no text but returns scores or vectors.
    """
    name = str(options.model)
    # Imported here, because they import torch, which clients of servers do not need.
    with waiting(IMPORTS):
        from swift.models.quiet import quiet_libraries

        quiet_libraries()  # before any module that imports transformers
        from swift.checkpoint import find_weights
        from swift.models import holds_head, open_source

    engine = load_engine(options.engine)
    location = find_weights(name, adapter=options.adapters, trust_remote_code=options.trust_remote_code)
    if generates:
        check_generates(name, location.weights.task)
    if location.weights.random_weights:
        raise ModelError(
            f"{name} is an adapter of a randomly initialized model, whose weights are not stored.",
            hint=f"Merge it first with swift export {name} --to hf --out FOLDER, then use FOLDER.",
        )
    source = open_source(location.weights, say=say)
    if location.adapter is None or not holds_head(location.adapter):
        source.check_has_head()
    return FoundModel(name, engine, location, source)


def open_local(
    found: FoundModel,
    options: ModelOptions,
    *,
    batch_size: int | None = None,
    say: Callable[[str], None],
    trained_adapter: Mapping[str, Any] | None = None,
) -> LocalChatEngine:
    """Return the model, loaded by its engine."""
    pixels = options.pixels(found.location.pixels)
    request = EngineRequest(
        model=found.source.folder,
        adapter=found.location.adapter,
        trained_adapter=trained_adapter,
        dtype=options.dtype,
        device=options.device,
        batch_size=batch_size,
        max_length=options.max_length,
        end_tokens=end_tokens(found.source.tokenizer),
        trust_remote_code=found.location.weights.trust_remote_code,
        max_pixels=pixels.get("max_pixels"),
        min_pixels=pixels.get("min_pixels"),
        options=options.engine_options,
        say=say,
    )
    with waiting(f"Loading {found.name}"):
        inference = open_inference(found.engine, request)
    return LocalChatEngine(inference, found, options)


class LocalChatEngine:
    """An inference engine with the tokenizer and chat template of its model."""

    def __init__(self, engine: InferenceEngine, found: FoundModel, options: ModelOptions) -> None:
        self.engine = engine
        self.name = found.name
        # Read once, here: engines take tokens.
        self.tokenizer = found.source.tokenizer
        self.system = options.system or found.location.system
        """Default system message: the user's, or that of the run's data section."""
        self.multi_turn = self.tokenizer.chat_template is not None
        self._found, self._options = found, options

    @cached_property
    def images(self) -> ImagePromptWriter:
        """The writer of prompts with images; raise `DataError` if the model reads text only."""
        return image_writer(self._found, self._options)

    @property
    def reads_images(self) -> bool:
        """Whether messages may hold images: the engine and the model read them."""
        return "image" in getattr(self.engine, "media", ()) and self.image_rules is not None

    @property
    def image_rules(self) -> MediaRules | None:
        """The rules by which images become tokens; None if the model reads text only."""
        try:
            return self.images.rules
        except DataError:
            return None

    def prompt(
        self, messages: Messages, tools: Sequence[Any] | None = None, *, source: str = "The prompt"
    ) -> Sequence[int]:
        """Return the tokens up to the assistant's turn; without a chat template, those of the plain text."""
        messages = with_system(messages, self.system)
        if has_images(messages):
            return self.images.prompt(messages, tools or ())
        if not self.multi_turn:
            if len(messages) != 1:
                raise DataError(
                    "The tokenizer of this model has no chat template, so it cannot render a conversation.",
                    hint="Pass a single prompt, or set --model.chat_template when training.",
                )
            return list(self.tokenizer(messages[0]["content"])["input_ids"])
        text = render_prompt(
            self.tokenizer,
            messages,
            location=source,
            tools=tools or None,
            add_generation_prompt=True,
            **self._options.template_arguments,
        )
        return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def respond(self, questions: Sequence[Question], sampling: Sampling) -> Iterator[tuple[int, Response]]:
        """Yield responses as they are complete; the engine gets all prompts at once and batches them."""
        prompts = [
            self.prompt(question.messages, question.tools, source=question.source or "The prompt")
            for question in questions
        ]
        stops = StopStrings(self.tokenizer, sampling.stop)
        for index, completion in self.engine.generate(prompts, stops.applied_to(sampling)):
            text, found = stops.before(self._text(completion.token_ids))
            if not found:
                ended = completion.finish_reason == "stop"
                text = self._text(completion.token_ids[:-1] if ended else completion.token_ids)
            yield index, Response(text, "stop" if found else completion.finish_reason, completion.token_ids)

    def stream(self, messages: Messages, sampling: Sampling) -> Iterator[str]:
        """Yield text, except an incomplete last character or a possible beginning of a stop string."""
        stops = StopStrings(self.tokenizer, sampling.stop)
        ids: list[int] = []
        written = ""
        for token in self.engine.stream(self.prompt(messages), stops.applied_to(sampling)):
            ids.append(token)
            text, found = stops.before(self._text(ids))
            if found:
                break
            certain = "" if text.endswith("\N{REPLACEMENT CHARACTER}") else stops.certain(text)
            if len(certain) > len(written):
                yield certain[len(written) :]
                written = certain
        whole, _ = stops.before(self._text(ids))
        if len(whole) > len(written):
            yield whole[len(written) :]

    def _text(self, ids: Sequence[int]) -> str:
        return str(self.tokenizer.decode(ids, skip_special_tokens=True))

    def close(self) -> None:
        """Close the engine."""
        self.engine.close()
        if "images" in self.__dict__:
            self.images.close()


def image_writer(found: FoundModel, options: ModelOptions) -> ImagePromptWriter:
    """Return the writer of a model's prompts with images."""
    from swift_infer.image_prompts import ImagePromptWriter

    processor = found.source.processor
    if processor is None:
        raise no_images(found.name)
    pixels = options.pixels(found.location.pixels)
    return ImagePromptWriter(processor, DataSection(template_kwargs=options.template_arguments, **pixels))


def no_images(name: str) -> DataError:
    """Return the error for an image in a prompt of a model that reads text only."""
    return DataError(
        f"{name} does not read images, but the prompt has one.",
        hint="Remove the image, or use a model that reads images, in a folder with its processor's files.",
    )


def end_tokens(tokenizer: Any) -> tuple[int, ...]:
    """Return the tokens that end a completion.

    They are the tokenizer's end of text, and the token that the chat template puts after the assistant's turn.
    """
    found = [] if tokenizer.eos_token_id is None else [int(tokenizer.eos_token_id)]
    if tokenizer.chat_template is not None:
        response = "a response that ends here"
        messages = [{"role": "user", "content": "a question"}, {"role": "assistant", "content": response}]
        try:
            text = render_chat(tokenizer, messages, location="A question and its response")
        except SwiftError:
            raise
        except Exception:  # templates raise any error, for roles that they do not know, for example
            return tuple(found)
        after = tokenizer(text.rpartition(response)[2], add_special_tokens=False)["input_ids"]
        if response in text and after and after[0] in tokenizer.all_special_ids:
            found.append(int(after[0]))
    return tuple(dict.fromkeys(found))


def _check_server_options(options: ModelOptions) -> None:
    """Raise `UsageError` for options of loading a model, which a server has done already."""
    for name in ("adapters", "dtype", "device", "max_length", "engine_options", "trust_remote_code", *LIMITS):
        if getattr(options, name) not in (None, "auto", {}, False):
            flag = "--torch_dtype" if name == "dtype" else f"--{name}"
            raise UsageError(
                f"{flag} applies to loading a model, but the server at {options.engine} has loaded its own.",
                hint=f"Remove it, or pass it to the server: swift serve {flag} ...",
            )
