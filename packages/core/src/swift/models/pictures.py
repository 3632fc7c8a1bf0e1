"""Asks a model's own processor about pictures: the text that they become, and the inputs of the model's towers.

No class per model: the processor that lies next to the weights is asked. One that also reads videos needs torchvision
for them; without it, it is made for pictures alone.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from swift.data.pictures import open_picture
from swift.errors import ModelError
from swift.models.opening import as_model_error

if TYPE_CHECKING:
    import torch
    from PIL.Image import Image

    from swift.config.sections import DataSection

FILES = ("processor_config.json", "preprocessor_config.json", "video_preprocessor_config.json")
"""What makes a processor of a tokenizer."""
_OF_TEXT = frozenset({"input_ids", "attention_mask", "mm_token_type_ids", "token_type_ids", "labels"})
"""What a processor returns about the text around its pictures."""
_TOO_FEW = 28
"""Pixels of a side, where nothing else is known."""


class PictureProcessor:
    """Implements `swift.data.picture_tokens.PictureRules` for a model's folder."""

    def __init__(self, processor: Any, section: DataSection) -> None:
        self.processor = processor
        self._most, self._least = section.max_pixels, section.min_pixels
        if self._most is not None and self._least is not None and self._least > self._most:
            raise ModelError("data.min_pixels is larger than data.max_pixels.", hint="Swap them.")
        size = getattr(processor.image_processor, "size", None)
        budget = _is_budget(processor.image_processor)
        if budget and size is not None and (self._most or self._least):
            least = self._least or min(size["shortest_edge"], self._most or size["shortest_edge"])
            most = self._most or max(size["longest_edge"], least)
            processor.image_processor.size = type(size)(**{**dict(size), "shortest_edge": least, "longest_edge": most})
            self._most = self._least = None
        self.token = str(processor.image_token)
        self._counts = hasattr(processor, "_get_num_multimodal_tokens")
        self._checked = 0

    @property
    def tokens(self) -> frozenset[str]:
        """All that only pictures and their kin may become."""
        return frozenset(map(str, self.processor.all_special_multimodal_tokens))

    def fingerprint(self) -> str:
        """Return all that decides what a picture becomes."""
        import transformers

        whole = self.processor.to_dict()
        whole.pop("chat_template", None)
        settings = json.dumps(whole, sort_keys=True, default=str)
        kinds = [type(self.processor).__name__, type(self.processor.image_processor).__name__]
        return json.dumps([settings, kinds, transformers.__version__, self._most, self._least])

    def replacement(self, width: int, height: int) -> str:
        """Return what takes the place of the token for a picture of this size.

        The processor's own arithmetic tells where it has any; that it agrees with the processor is checked on the
        first few sizes. Otherwise a blank picture of the size is given to it.
        """
        width, height = self.size_of(width, height)
        counted = self._counted(width, height) if self._counts else None
        if counted is not None and self._checked >= 3:
            return counted
        from PIL import Image

        (asked,) = self._asked([Image.new("RGB", (width, height))])
        self._checked += 1
        if counted is not None and counted != asked:
            self._counts = False
        return asked

    def replacements(self, paths: Sequence[str]) -> list[str]:
        """Return what takes the place of the tokens of whole pictures."""
        return self._asked([self.open(path) for path in paths])

    def inputs(self, images: Sequence[Image]) -> dict[str, torch.Tensor]:
        """Return the inputs of the model's towers for some pictures, as the processor names them."""
        made = self._call(images)
        return {name: value for name, value in made.items() if name not in _OF_TEXT and hasattr(value, "shape")}

    def open(self, path: str) -> Image:
        """Return a picture as the processor is given it."""
        image = open_picture(path)
        size = self.size_of(*image.size)
        return image if size == image.size else image.resize(size)

    def size_of(self, width: int, height: int) -> tuple[int, int]:
        """Return the size at which the processor is given a picture, where it has no limit of pixels itself."""
        pixels = width * height
        for limit, beyond in (
            (self._most, pixels > (self._most or pixels)),
            (self._least, pixels < (self._least or 0)),
        ):
            if limit and beyond:
                factor = math.sqrt(limit / pixels)
                return max(1, round(width * factor)), max(1, round(height * factor))
        return width, height

    @cached_property
    def smallest(self) -> tuple[int, int]:
        """Width and height of a picture that costs little: what stands in where a process has none."""
        return _TOO_FEW, _TOO_FEW

    def _counted(self, width: int, height: int) -> str | None:
        try:
            counts = self.processor._get_num_multimodal_tokens(image_sizes=[(height, width)])["num_image_tokens"]
        except Exception:  # a private method: whatever it may come to be
            self._counts = False
            return None
        return self.token * int(counts[0])

    def _asked(self, images: Sequence[Image]) -> list[str]:
        offsets = self._call(images, return_text_replacement_offsets=True)["text_replacement_offsets"]
        return [str(each["replacement"]) for each in offsets[0]]

    def _call(self, images: Sequence[Image], **options: Any) -> Any:
        text = [self.token * len(images)]
        return self.processor(text=text, images=list(images), return_tensors="pt", add_special_tokens=False, **options)


def load_processor(folder: Path, config: Any, tokenizer: Any, *, trust_remote_code: bool = False) -> Any:
    """Return the processor of a folder with this tokenizer; None where the folder has none, or none for pictures."""
    if not any((folder / name).is_file() for name in FILES):
        return None
    kind = _processor_class(config)
    if kind is None:
        return None
    with as_model_error(
        f"The processor of {folder}, which prepares pictures, cannot be read", hint="Copy its files again."
    ):
        processor = kind.from_pretrained(folder, trust_remote_code=trust_remote_code, local_files_only=True)
    processor.tokenizer = tokenizer
    return processor if getattr(processor, "image_token", None) is not None else None


def stored_template(folder: Path) -> str | None:
    """Return the chat template that a folder keeps for its processor alone."""
    from swift.untrusted import read_json_object

    file = folder / "chat_template.json"
    if not file.is_file():
        return None
    template = read_json_object(file, ModelError).get("chat_template")
    return template if isinstance(template, str) else None


def settings_in_force(processor: Any) -> Mapping[str, Any]:
    """Return the limits of pixels that an export must carry, by the key of its image processor's configuration."""
    if not _is_budget(processor.image_processor):
        return {}
    return {"size": {key: int(value) for key, value in dict(processor.image_processor.size).items() if value}}


def _processor_class(config: Any) -> Any:
    import transformers
    from transformers.models.auto.processing_auto import PROCESSOR_MAPPING_NAMES
    from transformers.utils import is_torchvision_available

    name = PROCESSOR_MAPPING_NAMES.get(config.model_type)
    kind = getattr(transformers, name, None) if isinstance(name, str) else None
    if kind is not None and getattr(kind, "is_dummy", False):
        raise ModelError(
            f"{name}, which prepares the pictures of this model, needs packages that are not installed: "
            f"{', '.join(kind._backends)}.",
            hint=f"Type: pip install {' '.join(kind._backends)}",
        )
    if kind is None or "image_processor" not in kind.get_attributes():
        return None
    if "video_processor" in kind.get_attributes() and not is_torchvision_available():
        return for_pictures_alone(kind)
    return kind


def for_pictures_alone(kind: Any) -> Any:
    """Return a processor's class without its part for videos, which transformers makes by torchvision alone."""

    def initialise(
        self: Any, image_processor: Any = None, tokenizer: Any = None, chat_template: Any = None, **others: Any
    ) -> None:
        kind.__init__(self, image_processor=image_processor, tokenizer=tokenizer, chat_template=chat_template, **others)

    return type(kind.__name__, (kind,), {"__init__": initialise, "__module__": kind.__module__})


def _is_budget(image_processor: Any) -> bool:
    """Return whether the two limits of an image processor's size are numbers of pixels."""
    size = getattr(image_processor, "size", None)
    limits = getattr(image_processor, "valid_kwargs", None)
    named = getattr(limits, "__annotations__", {})
    return size is not None and {"min_pixels", "max_pixels"} <= set(named)
