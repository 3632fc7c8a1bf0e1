"""Objects in images as rows name them: `<ref-object>` and `<bbox>` in texts, which take from the column `objects`.

A row keeps what its tags stand for next to each message, for what is written depends on the model: some count in
thousandths of the image, others in pixels of the image as they see it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from swift.data.conversation import Conversation, Message, Unusable, parse_json, strings_of
from swift.data.media import Medium

COLUMN = "objects"
REF, BBOX = "<ref-object>", "<bbox>"
_TAGS = re.compile(f"{re.escape(REF)}|{re.escape(BBOX)}")
_KEY = "objects"
"""Where a message keeps what its tags stand for; chat templates never see it."""
_TYPES = ("real", "norm1", "norm1000")
_KNOWN = frozenset({"ref", "bbox", "bbox_type", "image_id"})


@dataclass(frozen=True)
class BoundingBox:
    """A box, or a point, in one of the row's images."""

    numbers: tuple[float, ...]
    """Left, top, right and bottom; or the two of a point."""
    type: str
    """'real': in pixels of the file; 'norm1' and 'norm1000': as parts of width and height, or thousandths of them."""
    image: Medium

    def parts(self, width: int, height: int) -> list[float]:
        """Return the numbers as parts of an image of this size; raise `Unusable` for what lies outside."""
        sizes = (width, height) if self.type == "real" else (1, 1) if self.type == "norm1" else (1000, 1000)
        found = [number / sizes[index % 2] for index, number in enumerate(self.numbers)]
        if not all(0 <= each <= 1 for each in found):
            shown = ", ".join(f"{number:g}" for number in self.numbers)
            raise Unusable("bounding box outside its image", f"[{shown}] ({self.type}) in {width}×{height} pixels")
        return found


def boxed(conversation: Conversation, column: object) -> Conversation:
    """Return the conversation whose messages keep what their tags stand for, in the order of the texts."""
    objects = parse_json(column, f"the column {COLUMN!r}")
    if not isinstance(objects, Mapping) or not objects.keys() <= _KNOWN:
        raise Unusable("malformed objects", f"the column {COLUMN!r} has other keys than {', '.join(sorted(_KNOWN))}")
    given: dict[str, list[Any]] = {REF: _refs(objects.get("ref")), BBOX: _bounding_boxes(objects, conversation)}
    tags = [tag for message in conversation.messages for text in strings_of(message) for tag in _TAGS.findall(text)]
    for tag, held in given.items():
        if tags.count(tag) != len(held):
            raise Unusable("objects do not match", f"{tags.count(tag)} tags ({tag}), and {len(held)} in the column")
    left = {tag: iter(held) for tag, held in given.items()}
    messages = []
    for message in conversation.messages:
        own = [next(left[tag]) for text in strings_of(message) for tag in _TAGS.findall(text)]
        messages.append({**message, _KEY: own} if own else message)
    return replace(conversation, messages=tuple(messages))


def has_objects(messages: Sequence[Message]) -> bool:
    """Return whether any message has tags of objects that are still to be written."""
    return any(_KEY in message for message in messages)


def spelled(message: Message, reference: Callable[[str], str], spell: Callable[[BoundingBox], str]) -> Message:
    """Return a message in which its objects are written, each by one of the two functions."""
    if _KEY not in message:
        return message
    left: Iterator[Any] = iter(message[_KEY])

    def one(_: re.Match[str]) -> str:
        held = next(left)
        return spell(held) if isinstance(held, BoundingBox) else reference(held)

    content = message["content"]
    if isinstance(content, str):
        written: Any = _TAGS.sub(one, content)
    else:
        written = [
            {**part, "text": _TAGS.sub(one, part["text"])} if part["type"] == "text" else part for part in content
        ]
    return {**{key: value for key, value in message.items() if key != _KEY}, "content": written}


def _refs(refs: object) -> list[str]:
    listed: list[Any] = list(refs) if isinstance(refs, list | tuple) else [] if refs is None else [refs]
    if not all(isinstance(each, str) for each in listed):
        raise Unusable("malformed objects", "'ref' is not a list of strings")
    return listed


def _bounding_boxes(objects: Mapping[str, Any], conversation: Conversation) -> list[BoundingBox]:
    listed = objects.get("bbox") or []
    kind = objects.get("bbox_type") or "real"
    images = [each for each in conversation.media if each.kind == "image"]
    which = objects.get("image_id")
    if kind not in _TYPES:
        raise Unusable("malformed objects", f"'bbox_type' is {kind!r}; it can be {', '.join(_TYPES)}")
    if which is None:
        if len(images) != 1 and listed:
            raise Unusable("malformed objects", f"{len(images)} images, and no 'image_id' of the bounding boxes")
        which = [0] * len(listed)
    if not isinstance(listed, list | tuple) or not isinstance(which, list | tuple) or len(which) != len(listed):
        raise Unusable("malformed objects", "'bbox' and 'image_id' are not lists of one length")
    if not all(isinstance(each, int) and 0 <= each < len(images) for each in which):
        raise Unusable("malformed objects", f"'image_id' is {list(which)}, and images are 0 to {len(images) - 1}")
    return [BoundingBox(_numbers(bbox), kind, images[each]) for bbox, each in zip(listed, which, strict=True)]


def _numbers(bbox: Any) -> tuple[float, ...]:
    usable = isinstance(bbox, list | tuple) and len(bbox) in (2, 4)
    if not usable or not all(isinstance(each, int | float) and math.isfinite(each) for each in bbox):
        raise Unusable("malformed objects", f"the bounding box {bbox!r} is not [left, top, right, bottom] or [x, y]")
    return tuple(map(float, bbox))
