"""Prompts with images, rendered as in training, up to the assistant's turn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from swift.config.limits import LARGEST
from swift.config.sections import DataSection
from swift.contracts import ImagePrompt
from swift.data import MediaTokens, Text, TextEncoder, VideoSampling
from swift.data.encodings import Conversation, ConversationEncoder, Unusable
from swift.errors import DataError
from swift.models import MediaProcessor
from swift_infer.response import Messages


class ImagePromptWriter:
    """Renders prompts like training samples, with chat template, processor and tokenizer of one model."""

    def __init__(self, processor: Any, section: DataSection) -> None:
        """Take a model's processor, and a section with limits of pixels and arguments of the template."""
        self.rules = MediaProcessor(processor, section)
        self._kept = TemporaryDirectory(prefix="swift-images-")
        shown = VideoSampling(section.video_fps, section.video_max_frames)
        tokens = MediaTokens(self.rules, Path(self._kept.name), shown=shown)
        long = section.model_copy(update={"max_length": LARGEST})
        self._encoder = ConversationEncoder(processor.tokenizer, long, "assistant", tokens)
        self._text_encoder = TextEncoder(processor.tokenizer)

    def prompt(self, messages: Messages, tools: Sequence[Any]) -> ImagePrompt:
        """Return the tokens of a question and its images; `DataError` where an image is missing or broken."""
        conversation = Conversation(tuple(messages), (1.0,) * len(messages), tuple(tools))
        return self.tokens(lambda encoder: encoder.prompt_text(conversation, "The prompt"))

    def tokens(self, write: Callable[[ConversationEncoder], Text], source: str = "") -> ImagePrompt:
        """Return the tokens of what a function writes with this encoder; `source` names the row in errors."""
        try:
            with self._encoder.limits():
                text = write(self._encoder)
            (segment,) = self._text_encoder.segments([text])
        except Unusable as unusable:
            at = f"{source}: " if source else ""
            raise DataError(
                f"{at}{unusable.reason}: {unusable.detail}.", hint="Name an image that can be read."
            ) from None
        return ImagePrompt.of(segment.input_ids.tolist(), segment.media)

    def close(self) -> None:
        """Remove the temporary files of images."""
        self._kept.cleanup()
