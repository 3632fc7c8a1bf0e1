"""Speakers, which answer conversations.

An inference engine behind a chat template, or a server that renders its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from swift.config.sections import DataSection
from swift.config.tasks import check_generates
from swift.contracts import EngineRequest, InferenceEngine, Sampling
from swift.data.rendering import render_asked, render_chat
from swift.errors import DataError, ModelError, SwiftError, UsageError
from swift.infer.answers import Answer, ChatEngine, Messages
from swift.infer.image_messages import has_images
from swift.infer.options import ModelOptions, is_address
from swift.infer.questions import Question, with_system
from swift.infer.stop import StopStrings
from swift.plugins.inference import open_inference
from swift.plugins.load import LoadedPlugin, load_engine
from swift.terminal import IMPORTS, waiting

if TYPE_CHECKING:
    from swift.data.media_tokens import MediaRules
    from swift.infer.find import WeightsLocation
    from swift.infer.image_prompts import ImagePromptWriter
    from swift.models.source import HfSource

ADAPTER_WEIGHTS = "adapter_model.safetensors"


def open_chat_engine(options: ModelOptions, *, batch_size: int | None = None, say: Callable[[str], None]) -> ChatEngine:
    """Return the model that is asked for, loaded by an engine, or as a server has loaded it."""
    if is_address(options.engine):
        from swift.infer.remote import RemoteChatEngine

        _nothing_to_load(options)
        return RemoteChatEngine(
            options.engine,
            model=options.model,
            api_key=options.api_key,
            system=options.system,
            at_a_time=batch_size,
            template_arguments=options.template_arguments,
            say=say,
        )
    return open_local(find_model(options, say=say), options, batch_size=batch_size, say=say)


@dataclass(frozen=True)
class FoundModel:
    """A model that is there, not yet loaded."""

    name: str
    engine: LoadedPlugin
    location: WeightsLocation
    source: HfSource

    @property
    def problem_type(self) -> str | None:
        """Return what the labels of a classifier are, by its run or else by its config.json, in transformers' words."""
        return self.location.weights.problem_type or getattr(self.source.config, "problem_type", None)

    def check_scores_texts(self) -> None:
        """Raise `ModelError` where the model was trained to score the steps of answers, and not whole texts."""
        if self.location.objective.get("name") == "prm":
            raise ModelError(
                f"{self.name} scores the steps of an answer (prm), not a text as a whole.",
                hint="Score answers by their steps: swift sample MODEL --dataset FILE --reward_model "
                f"{self.name} --step_reward min --result_path FILE",
            )

    def facts(self) -> dict[str, str]:
        """Return facts that tell this model from others of the same name."""
        adapter = self.location.adapter
        facts = {"model": str(self.source.folder), "weights": self.source.fingerprint}
        if adapter is not None and (adapter / ADAPTER_WEIGHTS).is_file():
            facts |= {"adapter": str(adapter), "adapter_weights": _digest(adapter)}
        return facts


def find_model(options: ModelOptions, *, generates: bool = True, say: Callable[[str], None]) -> FoundModel:
    """Return the engine and the model that are asked for: a run, a checkpoint, an adapter, a folder or a hub id.

    One that `generates` answers with text; others return scores or vectors.
    """
    name = str(options.model)
    # Only here: these modules import torch, which whoever asks a server does without.
    with waiting(IMPORTS):
        from swift.models.quiet import quiet_libraries

        quiet_libraries()  # before any module that imports transformers
        from swift.infer.find import find_weights, holds_head
        from swift.models.source import open_source

    engine = load_engine(options.engine)
    place = find_weights(name, adapter=options.adapters, trust_remote_code=options.trust_remote_code)
    if generates:
        check_generates(name, place.weights.task)
    if place.weights.random_weights:
        raise ModelError(
            f"{name} adapts a model of random weights, which are stored in no folder.",
            hint=f"Type: swift export {name} --to hf --out FOLDER, and ask FOLDER.",
        )
    source = open_source(place.weights, say=say)
    if place.adapter is None or not holds_head(place.adapter):
        source.check_has_head()
    return FoundModel(name, engine, place, source)


def open_local(
    found: FoundModel,
    options: ModelOptions,
    *,
    batch_size: int | None = None,
    say: Callable[[str], None],
    trained_adapter: Mapping[str, Any] | None = None,
) -> LocalChatEngine:
    """Return the model, loaded by its engine."""
    # The tokenizer is read once, here: engines are handed tokens.
    tokenizer = found.source.tokenizer
    pixels = options.pixels(found.location.pixels)
    request = EngineRequest(
        model=found.source.folder,
        adapter=found.location.adapter,
        trained_adapter=trained_adapter,
        dtype=options.dtype,
        device=options.device,
        batch_size=batch_size,
        max_length=options.max_length,
        end_tokens=end_tokens(tokenizer),
        trust_remote_code=found.location.weights.trust_remote_code,
        max_pixels=pixels.get("max_pixels"),
        min_pixels=pixels.get("min_pixels"),
        options=options.engine_options,
        say=say,
    )
    with waiting(f"Loading {found.name}"):
        inference = open_inference(found.engine, request)
    return LocalChatEngine(
        inference,
        tokenizer,
        options.system or found.location.system,
        found.name,
        template_arguments=options.template_arguments,
        images=lambda: image_writer(found, options),
    )


class LocalChatEngine:
    """An engine, and the tokenizer and template that stand between messages and tokens."""

    def __init__(
        self,
        engine: InferenceEngine,
        tokenizer: Any,
        system: str | None,
        name: str,
        *,
        template_arguments: Mapping[str, Any] | None = None,
        images: Callable[[], ImagePromptWriter] | None = None,
    ) -> None:
        """Take an engine and the tokenizer of its model; `images` opens what writes prompts with images."""
        self.engine = engine
        self._open_images = images
        self._template_arguments = dict(template_arguments or {})
        self.tokenizer = tokenizer
        self.system = system
        """Where a conversation has none: that of the run's data section, or the user's."""
        self.name = name
        self.multi_turn = tokenizer.chat_template is not None

    @cached_property
    def images(self) -> ImagePromptWriter:
        """The writer of prompts with images; `DataError` where the model reads text alone."""
        if self._open_images is None:
            raise text_alone(self.name)
        return self._open_images()

    @property
    def reads_images(self) -> bool:
        """Whether messages may hold images: the engine and the model read them."""
        return "image" in getattr(self.engine, "media", ()) and self.image_rules is not None

    @property
    def image_rules(self) -> MediaRules | None:
        """The rules by which images become tokens; None where the model reads text alone."""
        try:
            return self.images.rules
        except DataError:
            return None

    def prompt(
        self, messages: Messages, tools: Sequence[Any] | None = None, *, place: str = "The prompt"
    ) -> Sequence[int]:
        """Return the tokens up to where the assistant speaks; plain text where there is no chat template."""
        messages = with_system(messages, self.system)
        if has_images(messages):
            return self.images.prompt(messages, tools or ())
        if not self.multi_turn:
            if len(messages) != 1:
                raise DataError(
                    "This model's tokenizer has no chat template, so it can only continue a text.",
                    hint="Give one prompt, or a template with --model.chat_template when training.",
                )
            return list(self.tokenizer(messages[0]["content"])["input_ids"])
        text = render_asked(
            self.tokenizer,
            messages,
            place=place,
            tools=tools or None,
            add_generation_prompt=True,
            **self._template_arguments,
        )
        return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def answers(self, questions: Sequence[Question], sampling: Sampling) -> Iterator[tuple[int, Answer]]:
        """Yield answers as they are ready; all prompts go to the engine at once, which batches them as it can."""
        prompts = [
            self.prompt(question.messages, question.tools, place=question.place or "The prompt")
            for question in questions
        ]
        stops = StopStrings(self.tokenizer, sampling.stop)
        for place, completion in self.engine.generate(prompts, stops.told(sampling)):
            text, found = stops.before(self._text(completion.token_ids))
            if not found:
                ended = completion.finish_reason == "stop"
                text = self._text(completion.token_ids[:-1] if ended else completion.token_ids)
            yield place, Answer(text, "stop" if found else completion.finish_reason, completion.token_ids)

    def stream(self, messages: Messages, sampling: Sampling) -> Iterator[str]:
        """Text is held back while its last letter is not whole, or while a stop string may have begun."""
        stops = StopStrings(self.tokenizer, sampling.stop)
        ids: list[int] = []
        written = ""
        for token in self.engine.stream(self.prompt(messages), stops.told(sampling)):
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
    """Return what writes prompts with images for a model."""
    from swift.infer.image_prompts import ImagePromptWriter

    processor = found.source.processor
    if processor is None:
        raise text_alone(found.name)
    pixels = options.pixels(found.location.pixels)
    return ImagePromptWriter(processor, DataSection(template_kwargs=options.template_arguments, **pixels))


def text_alone(name: str) -> DataError:
    """Return the error of a model that is shown an image and reads none."""
    return DataError(
        f"{name} is asked about an image, and reads text alone.",
        hint="Leave the image out, or name a model that reads images, in a folder with its processor's files.",
    )


def end_tokens(tokenizer: Any) -> tuple[int, ...]:
    """Return the tokens that end an answer.

    They are the tokenizer's end of text, and the token that the template puts after the assistant's turn, which a model
    that was trained on conversations has learned to say.
    """
    found = [] if tokenizer.eos_token_id is None else [int(tokenizer.eos_token_id)]
    if tokenizer.chat_template is not None:
        answer = "an answer that ends here"
        talk = [{"role": "user", "content": "a question"}, {"role": "assistant", "content": answer}]
        try:
            text = render_chat(tokenizer, talk, place="A question and its answer")
        except SwiftError:
            raise
        except Exception:  # templates raise what they like, about roles that they do not know, say
            return tuple(found)
        after = tokenizer(text.rpartition(answer)[2], add_special_tokens=False)["input_ids"]
        if answer in text and after and after[0] in tokenizer.all_special_ids:
            found.append(int(after[0]))
    return tuple(dict.fromkeys(found))


def _digest(adapter: Path) -> str:
    from swift.models.files import SafetensorsFolder

    return SafetensorsFolder(adapter, file=ADAPTER_WEIGHTS).digest()


def _nothing_to_load(options: ModelOptions) -> None:
    """Do nothing: a server has loaded its model already."""
    given = {
        "--adapters": options.adapters,
        "--torch_dtype": options.dtype != "auto",
        "--device": options.device,
        "--max_length": options.max_length,
        "--engine_options": options.engine_options,
        "--trust_remote_code": options.trust_remote_code,
        "--max_pixels": options.max_pixels,
        "--min_pixels": options.min_pixels,
        "--video_fps": options.video_fps,
        "--video_max_frames": options.video_max_frames,
    }
    for flag, value in given.items():
        if value:
            raise UsageError(
                f"{flag} says how a model is loaded, but the server at {options.engine} has loaded its own.",
                hint=f"Leave it out, or give it to the server (swift serve {flag} ...).",
            )
