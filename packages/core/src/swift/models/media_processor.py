"""Asks a model's own processor about images and sounds: the text that they become, and the inputs of its encoders.

No class per model: the processor that lies next to the weights is asked. One that also reads videos needs torchvision
for them; without it, it is made for images alone.
"""

from __future__ import annotations

import inspect
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from swift.config.media import KINDS, NAMES
from swift.data.audio import length_at, open_audio
from swift.data.conversation import Unusable
from swift.data.images import open_image
from swift.data.media import MediaRef
from swift.data.template import ChatTemplate
from swift.data.videos import open_frame
from swift.errors import ModelError, SwiftError
from swift.installation import pip_install
from swift.models.opening import as_model_error, first_line
from swift.untrusted import read_json_object

if TYPE_CHECKING:
    import torch

    from swift.config.sections import DataSection

FILES = ("processor_config.json", "preprocessor_config.json", "video_preprocessor_config.json")
"""What makes a processor of a tokenizer."""
_OF_TEXT = frozenset({"input_ids", "attention_mask", "mm_token_type_ids", "token_type_ids", "labels"})
"""What a processor returns about the text around its images."""
BLANK = "blank:"
"""The source of what stands in where a process has none: it has a size, and no file."""
_OF_VIDEOS = "video_processor"
_ARGUMENTS = {"image": "images", "video": "videos", "audio": "audio"}
"""What processors call the media of a kind."""
_BRIGHTEST = 1e4
"""Of what a pixel may become: most models see about -2 to 2, some the 0 to 255 of the file."""
_TOO_FEW = 28
"""Pixels of a side, where nothing else is known."""


@dataclass(frozen=True)
class _Style:
    """How a family of models was taught to write objects in images."""

    counts: str = "norm1000"
    reference: str = "{}"
    bounding_box: str = "{}"
    in_pairs: bool = False
    """Whether a box is (left,top),(right,bottom), and no list."""


_STYLES = {
    "Qwen2VLProcessor": _Style(
        reference="<|object_ref_start|>{}<|object_ref_end|>", bounding_box="<|box_start|>{}<|box_end|>", in_pairs=True
    ),
    "Qwen2_5_VLProcessor": _Style("none"),
    "InternVLProcessor": _Style(reference="<ref>{}</ref>", bounding_box="<box>[{}]</box>"),
}
"""Of processors whose models write objects otherwise than as [left, top, right, bottom] in thousandths."""


class MediaProcessor:
    """Implements `swift.data.media_tokens.MediaRules` for a model's folder."""

    def __init__(self, processor: Any, section: DataSection) -> None:
        self.processor = processor
        self._most, self._least = section.max_pixels, section.min_pixels
        if self._most is not None and self._least is not None and self._least > self._most:
            raise ModelError("data.min_pixels is larger than data.max_pixels.", hint="Swap them.")
        images: Any = getattr(processor, "image_processor", None)
        size = getattr(images, "size", None)
        if _is_budget(images) and size is not None and (self._most or self._least):
            least = self._least or min(size["shortest_edge"], self._most or size["shortest_edge"])
            most = self._most or max(size["longest_edge"], least)
            images.size = type(size)(**{**dict(size), "shortest_edge": least, "longest_edge": most})
            self._most = self._least = None
        self.placeholders = {kind: str(token) for kind in KINDS if (token := _placeholder(processor, kind)) is not None}
        self._counts = hasattr(processor, "_get_num_multimodal_tokens")
        self._checked = 0
        self._style = _STYLES.get(type(processor).__name__, _Style())
        self._bounding_boxes = self._style.counts if section.bounding_boxes == "auto" else section.bounding_boxes
        self._seen_sizes: dict[tuple[int, int], tuple[int, int]] = {}
        self._frames: dict[str, tuple[str, str]] = {}

    @property
    def tokens(self) -> frozenset[str]:
        """All that only images and their kin may become."""
        return frozenset(map(str, self.processor.all_special_multimodal_tokens))

    @property
    def ids(self) -> list[int]:
        """The tokens that stand for parts of media, whatever the kind."""
        return sorted({each for kind, token in self.placeholders.items() for each in self._ids_of(kind, token)})

    def _ids_of(self, kind: str, token: str) -> list[int]:
        ids = [each for each in getattr(self.processor, f"{kind}_token_ids", ()) if each is not None]
        return ids or [self.processor.tokenizer.convert_tokens_to_ids(token)]

    def written(self, each: MediaRef) -> tuple[str, str, str]:
        """Return what stands for something in a text, with what the chat template puts before and after it."""
        before, after = self._around(each.kind)
        return before, self.replacement(each), after

    def _around(self, kind: str) -> tuple[str, str]:
        if kind not in self._frames:
            self._frames[kind] = _frame_of(self.processor.tokenizer, kind, self.placeholders[kind])
        return self._frames[kind]

    @property
    def rate(self) -> int:
        """Samples a second of the sounds that the processor is given."""
        return int(_audio_part(self.processor).sampling_rate)

    def reference(self, text: str) -> str:
        """Return how the model reads and writes the name of an object in an image."""
        return self._style.reference.format(text)

    def bounding_box(self, parts: Sequence[float], each: MediaRef) -> str:
        """Return how it writes a box, whose numbers are parts of the image's width and height."""
        sizes = self._seen_size(each.width, each.height) if self._bounding_boxes == "none" else (1000, 1000)
        whole = [round(part * sizes[index % 2]) for index, part in enumerate(parts)]
        if not self._style.in_pairs:
            return self._style.bounding_box.format(whole)
        pairs = zip(whole[::2], whole[1::2], strict=True)
        return self._style.bounding_box.format(",".join(f"({x},{y})" for x, y in pairs))

    def _seen_size(self, width: int, height: int) -> tuple[int, int]:
        """Return the size of an image as the encoder sees it: after the processor has resized it."""
        from PIL import Image

        given = self.size_of(width, height)
        if given not in self._seen_sizes:
            made = self.inputs([("image", Image.new("RGB", given))])
            patch = getattr(self.processor.image_processor, "patch_size", None)
            if "image_grid_thw" not in made or not isinstance(patch, int):
                raise ModelError(
                    "data.bounding_boxes none needs a model that reads each image in one piece, at a size "
                    "that depends on the image.",
                    hint="Type --data.bounding_boxes norm1000",
                )
            _, rows, columns = made["image_grid_thw"][0].tolist()
            self._seen_sizes[given] = columns * patch, rows * patch
        return self._seen_sizes[given]

    def lacks(self, kind: str) -> str:
        """Return why the model does not take this kind, in half a sentence."""
        return f"the model does not accept {NAMES[kind]}s"

    def fingerprint(self) -> str:
        """Return all that decides what media become."""
        import transformers

        whole = self.processor.to_dict()
        whole.pop("chat_template", None)
        settings = json.dumps(whole, sort_keys=True, default=str)
        parts = [getattr(self.processor, "image_processor", None), _audio_part(self.processor)]
        kinds = [type(each).__name__ for each in (self.processor, *parts)]
        return json.dumps([settings, kinds, transformers.__version__, self._most, self._least, self._bounding_boxes])

    def replacement(self, each: MediaRef) -> str:
        """Return what takes the place of the placeholder, by what the header says.

        The processor's own arithmetic for images tells where it has any; that it agrees with the processor is
        checked on the first few sizes. Otherwise something blank as large is given to it.
        """
        if each.kind == "audio":
            return self._of_audio(length_at(each.frames, each.rate, self.rate))
        width, height = self.size_of(each.width, each.height)
        counted = self._counted(width, height) if self._counts else None
        if counted is not None and self._checked >= 3:
            return counted
        from PIL import Image

        (expanded,) = self._expanded([("image", Image.new("RGB", (width, height)))])
        if not self._checked:
            self._check_sight(width, height)
        self._checked += 1
        if counted is not None and counted != expanded:
            self._counts = False
        return expanded

    def _check_sight(self, width: int, height: int) -> None:
        """Refuse settings by which every image looks the same, or has pixels beyond all that models have seen."""
        from PIL import Image

        left, upper = Image.new("RGB", (width, height)), Image.new("RGB", (width, height))
        left.paste((255, 255, 255), (0, 0, max(1, width // 2), height))
        upper.paste((255, 255, 255), (0, 0, width, max(1, height // 2)))
        made, other = (self.inputs([("image", each)]) for each in (left, upper))
        pixels = [name for name, value in made.items() if value.is_floating_point()]
        if min(width, height) > 1 and pixels and all(made[name].equal(other[name]) for name in pixels):
            raise ValueError("it returns the same values for different images (check rescale_factor and image_std)")
        for name in pixels:
            if (largest := float(made[name].abs().max())) > _BRIGHTEST:
                raise ValueError(
                    f"a white image becomes {largest:.3g} in {name} (check rescale_factor, image_mean and image_std)"
                )

    def _of_audio(self, length: int) -> str:
        longest = getattr(_audio_part(self.processor), "n_samples", None)
        expanded = self._silence(length)
        if longest is not None and length > longest and expanded == self._silence(longest):
            raise ValueError(
                f"the processor reads only the first {longest / self.rate:g} s of it; split it into shorter clips"
            )
        return expanded

    def _silence(self, length: int) -> str:
        return self._expanded([("audio", np.zeros(length, np.float32))])[0]

    def replacements(self, seen: Sequence[MediaRef]) -> list[str]:
        """Return what takes the place of the placeholders of whole files."""
        contents = [(each.kind, self.open(each)) for each in seen]
        made = self._expanded(contents)
        if len(seen) > 1 or not self._tells:
            self._check_text(contents, made)
        return made

    def _check_text(self, contents: Sequence[tuple[str, Any]], made: Sequence[str]) -> None:
        """Refuse a processor that changes more of a text than its placeholders, as Idefics 2's does around images."""
        around = [self._around(kind) if self._tells else ("", "") for kind, _ in contents]
        after_all = "" if self._tells else "a"
        text = "".join(f"{before}{each}{after}" for (before, after), each in zip(around, made, strict=True))
        own = list(self.processor.tokenizer(f"{text}{after_all}", add_special_tokens=False)["input_ids"])
        found = self._call(contents, after_all)["input_ids"][0].tolist()
        # A special token that it puts after each text is left to the chat template: Chameleon's ends a turn.
        ends = len(found) == len(own) + 1 and found[-1] in self.processor.tokenizer.all_special_ids
        found = found[: len(found) - ends]
        if own != found:
            at = next((n for n, pair in enumerate(zip(own, found, strict=False)) if pair[0] != pair[1]), len(own))
            expected, written = (self._spelled(each[max(0, at - 1) : at + 2]) for each in (own, found))
            raise ModelError(
                f"{type(self.processor).__name__} writes {written!r} where the template has {expected!r}. swift does "
                "not train on images whose processor changes the text next to them.",
                hint="Leave images out of the rows, or choose another model.",
            )

    def of_blank(self, seen: Sequence[MediaRef]) -> list[str]:
        """Return the same for something blank as large."""
        return self._expanded([(each.kind, self._blank(each)) for each in seen])

    def inputs(self, contents: Sequence[tuple[str, Any]]) -> dict[str, torch.Tensor]:
        """Return the inputs of the model's encoders for some media, as the processor names them.

        `contents` are kinds and what `open` returned.
        """
        made = self._call(contents)
        tensors = {name: value for name, value in made.items() if name not in _OF_TEXT and hasattr(value, "shape")}
        if unknown := [name for name in tensors if name.endswith("token_type_ids")]:
            raise ModelError(
                f"The processor of this model returns {unknown[0]}, kinds of tokens that swift does not tell apart. "
                "swift does not train it on images yet.",
                hint="Leave images out of the rows, or choose another model.",
            )
        # As others do it: Llama 4's computes in bfloat16, which an encoder in fp32 does not take.
        return {name: value.float() if value.is_floating_point() else value for name, value in tensors.items()}

    def open(self, each: MediaRef) -> Any:
        """Return a medium as the processor is given it: an image of PIL, or the samples of a sound."""
        if each.kind == "audio":
            return open_audio(each.source, self.rate)
        image = open_frame(each.source, each.frames, each.rate) if each.frames else open_image(each.source)
        size = self.size_of(*image.size)
        return image if size == image.size else image.resize(size)

    def read(self, reference: MediaRef) -> Any:
        """Return what a reference names; raise what decoders raise, and `OSError` for what has changed."""
        if reference.source == BLANK:
            return self._blank(reference)
        if reference.size and Path(reference.source).stat().st_size != reference.size:
            raise OSError("it has changed since it was tokenized")
        content = self.open(reference)
        if reference.kind == "audio":
            expected = length_at(reference.frames, reference.rate, self.rate)
            if len(content) != expected:
                raise OSError(f"it has {len(content)} audio samples, but its header declares {expected}")
        elif content.size != self.size_of(reference.width, reference.height):
            raise OSError(f"it has {content.width}×{content.height} pixels, but its header declares another size")
        return content

    def _blank(self, reference: MediaRef) -> Any:
        """Return silence, or an image of noise of the size that the processor is given."""
        if reference.kind == "audio":
            return np.zeros(length_at(reference.frames, reference.rate, self.rate), np.float32)
        from PIL import Image

        # Not of one color: a model that mixes images in a batch would mix what is the same.
        width, height = self.size_of(reference.width, reference.height)
        return Image.fromarray(np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8))

    def smallest(self, kind: str) -> MediaRef:
        """Return a reference to something blank that costs little: what stands in where a process has none."""
        if kind == "audio":
            return MediaRef(kind, BLANK, 0, 0, frames=self.rate, rate=float(self.rate))
        return MediaRef(kind, BLANK, 0, 0, _TOO_FEW, _TOO_FEW)

    def size_of(self, width: int, height: int) -> tuple[int, int]:
        """Return the size at which the processor is given an image, where it has no limit of pixels itself."""
        pixels = width * height
        for limit, beyond in (
            (self._most, pixels > (self._most or pixels)),
            (self._least, pixels < (self._least or 0)),
        ):
            if limit and beyond:
                factor = math.sqrt(limit / pixels)
                return max(1, round(width * factor)), max(1, round(height * factor))
        return width, height

    def _counted(self, width: int, height: int) -> str | None:
        try:
            counts = self.processor._get_num_multimodal_tokens(image_sizes=[(height, width)])["num_image_tokens"]
        except Exception:  # a private method: whatever it may come to be
            self._counts = False
            return None
        return self.placeholders["image"] * int(counts[0])

    def _expanded(self, contents: Sequence[tuple[str, Any]]) -> list[str]:
        if self._tells:
            offsets = self._call(contents, return_text_replacement_offsets=True)["text_replacement_offsets"]
            return [str(each["replacement"]) for each in offsets[0]]
        # One that has its own way of replacing (Qwen-Omni's) says nothing but tokens.
        return [self._spelled(self._call([each])["input_ids"][0].tolist()) for each in contents]

    def _spelled(self, ids: Sequence[int]) -> str:
        text: str = self.processor.tokenizer.decode(
            ids, skip_special_tokens=False, clean_up_tokenization_spaces=False, spaces_between_special_tokens=False
        )
        return text

    @cached_property
    def _tells(self) -> bool:
        """Whether the processor says what it puts instead of each medium."""
        from transformers import ProcessorMixin

        methods = [f"replace_{kind}_token" for kind in KINDS]
        return any(getattr(type(self.processor), each) is not getattr(ProcessorMixin, each) for each in methods)

    def prompt(self, contents: Sequence[tuple[str, Any]], text: str) -> dict[str, torch.Tensor]:
        """Return all that the processor makes of media and a text after them: tokens, and inputs of the encoders."""
        return dict(self._call(contents, text))

    def _prompted(self, kind: str) -> str:
        """Return what stands for one of a kind in a prompt, as in the chat template: some processors insist on it."""
        before, after = self._around(kind) if self._tells else ("", "")
        return f"{before}{self.placeholders[kind]}{after}"

    def _call(self, contents: Sequence[tuple[str, Any]], text: str = "", **options: Any) -> Any:
        prompt = ["".join(self._prompted(kind) for kind, _ in contents) + text]
        given: dict[str, list[Any]] = {}
        for kind, content in contents:
            given.setdefault(_ARGUMENTS[kind], []).append(content)
        if "audio" in given:
            options["sampling_rate"] = self.rate
        try:
            made = self.processor(text=prompt, return_tensors="pt", add_special_tokens=False, **given, **options)
        except (SwiftError, ValueError, MemoryError):
            raise
        except Exception as error:  # numbers that are texts, in its files, fail in its arithmetic
            raise ValueError(first_line(error)) from error
        for name, value in made.items():
            if hasattr(value, "is_floating_point") and value.is_floating_point() and not value.isfinite().all():
                raise ValueError(f"it returns values in {name} that are not finite")
        return made


def load_processor(folder: Path, config: Any, tokenizer: Any, *, trust_remote_code: bool = False) -> Any:
    """Return the processor of a folder with this tokenizer; None where the folder has none, or none for images."""
    if not any((folder / name).is_file() for name in FILES):
        return None
    kind = _processor_class(config, folder)
    if kind is None:
        return None
    with as_model_error(f"The image processor of {folder} cannot be read", hint="Copy or download the model again."):
        try:
            processor = kind.from_pretrained(folder, trust_remote_code=trust_remote_code, local_files_only=True)
        except ImportError as error:
            raise ModelError(f"image processor {kind.__name__}: {first_line(error)}", hint=_install()) from error
    processor.tokenizer = tokenizer
    return processor if any(_placeholder(processor, kind) is not None for kind in KINDS) else None


def stored_template(folder: Path) -> str | None:
    """Return the chat template that a folder keeps for its processor alone."""
    file = folder / "chat_template.json"
    if not file.is_file():
        return None
    template = read_json_object(file, ModelError).get("chat_template")
    return template if isinstance(template, str) else None


def settings_in_force(processor: Any) -> Mapping[str, Any]:
    """Return the limits of pixels that an export must carry, by the key of its image processor's configuration."""
    if not _is_budget(getattr(processor, "image_processor", None)):
        return {}
    return {"size": {key: int(value) for key, value in dict(processor.image_processor.size).items() if value}}


_MAKERS = frozenset({"image_processor", "feature_extractor", "audio_processor"})
"""The parts of processors that make inputs of encoders, for images and for sounds."""


def _placeholder(processor: Any, kind: str) -> str | None:
    """Return what stands for one of a kind in a text; None where the processor does not take it."""
    made_by = {"image": getattr(processor, "image_processor", None), "audio": _audio_part(processor)}.get(kind)
    if made_by is None:
        return None
    # What templates write, where it is another token than the one that it becomes (Qianfan-OCR's).
    return getattr(processor, f"{kind}_placeholder_token", None) or getattr(processor, f"{kind}_token", None)


def _audio_part(processor: Any) -> Any:
    """Return the part of a processor that makes inputs of sounds; None where it has none."""
    return getattr(processor, "audio_processor", getattr(processor, "feature_extractor", None))


def _frame_of(tokenizer: Any, kind: str, placeholder: str) -> tuple[str, str]:
    """Return what a chat template writes around the placeholder of a kind; nothing where it does not say."""
    if not tokenizer.chat_template:
        return "", ""
    try:
        written = ChatTemplate(tokenizer, {}, parts=True).written(kind)
    except (SwiftError, Unusable):
        return "", ""
    before, found, after = written.partition(placeholder)
    return (before, after) if found else ("", "")


def _named_in(folder: Path) -> str | None:
    """Return the class that a folder's files name: parts of larger models (Qwen-Omni) are on no list elsewhere."""
    for file in (folder / name for name in FILES):
        if file.is_file() and isinstance(name := read_json_object(file, ModelError).get("processor_class"), str):
            return name if name.endswith("Processor") else None
    return None


def _processor_class(config: Any, folder: Path) -> Any:
    from transformers.models.auto.processing_auto import PROCESSOR_MAPPING_NAMES
    from transformers.utils import is_torchvision_available

    # What a folder names comes first: Pixtral is a LLaVA with another processor.
    names = (_named_in(folder), PROCESSOR_MAPPING_NAMES.get(config.model_type))
    found = (_named_class(name) for name in names if isinstance(name, str))
    kind = next((each for each in found if getattr(each, "is_dummy", False) or hasattr(each, "get_attributes")), None)
    if kind is not None and getattr(kind, "is_dummy", False):
        raise ModelError(
            f"This model's image processor {kind.__name__} needs packages that are not installed: "
            f"{', '.join(kind._backends)}.",
            hint=_install(),
        )
    if kind is None or not _MAKERS & set(kind.get_attributes()):
        return None
    if _OF_VIDEOS in kind.get_attributes() and not (is_torchvision_available() and _tells_of_videos(folder)):
        return without_video_processor(kind)
    return kind


def _named_class(name: str) -> Any:
    import transformers

    try:
        return getattr(transformers, name, None)
    except ImportError as error:  # of a file that imports torchvision, as Gemma 4's
        what = f"This model's image processor {name} cannot be imported: {first_line(error.__cause__ or error)}"
        raise ModelError(what, hint=_install()) from error


def _install() -> str:
    return f"Type: {pip_install('swift-core[vision]')}"


def _tells_of_videos(folder: Path) -> bool:
    """Return whether a folder has a part for videos: not where it was saved without torchvision."""
    whole, *parts = (folder / name for name in FILES)
    if any(file.is_file() for file in parts):  # that for images is taken for videos too
        return True
    return whole.is_file() and _OF_VIDEOS in read_json_object(whole, ModelError)


def without_video_processor(kind: Any) -> Any:
    """Return a processor's class without its part for videos, which transformers makes by torchvision alone."""
    from transformers import ProcessorMixin

    parts = kind.get_attributes()
    signature = inspect.signature(kind.__init__)
    left = signature.replace(parameters=[each for name, each in signature.parameters.items() if name != _OF_VIDEOS])
    is_required = signature.parameters[_OF_VIDEOS].default is inspect.Parameter.empty

    def initialise(self: Any, *given: Any, **named: Any) -> None:
        taken = left.bind(self, *given, **named).arguments
        more = taken.pop("kwargs", {}) | ({_OF_VIDEOS: None} if is_required else {})
        kind.__init__(**taken, **more)

    def keep(self: Any, *given: Any, **named: Any) -> None:  # what the class passes on, a part for videos included
        named |= dict(zip(parts, given, strict=False))
        named.pop(_OF_VIDEOS, None)
        ProcessorMixin.__init__(self, **named)

    initialise.__signature__ = left  # type: ignore[attr-defined]  # transformers reads from it which parts there are
    # Those that count tokens ask the part for videos how it merges patches (Qwen-Omni's): that for images knows.
    expanded = property(lambda self: self.image_processor)
    rest = type("WithoutVideos", (ProcessorMixin,), {"__init__": keep})
    members = {"__init__": initialise, "__module__": kind.__module__, _OF_VIDEOS: expanded}
    return type(kind.__name__, (kind, rest), members)


def _is_budget(image_processor: Any) -> bool:
    """Return whether the two limits of an image processor's size are numbers of pixels."""
    size = getattr(image_processor, "size", None)
    limits = getattr(image_processor, "valid_kwargs", None)
    named = getattr(limits, "__annotations__", {})
    return size is not None and {"min_pixels", "max_pixels"} <= set(named)
