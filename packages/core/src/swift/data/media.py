"""Images, videos and sounds of samples: by reference in the data set, as tensors in a micro-batch.

This module does not import torch: tensors appear in annotations only.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import xxhash

from swift.config.media import NAMES, ONE
from swift.data.conversation import Unusable
from swift.errors import ModelError
from swift.installation import pip_install
from swift.untrusted import shown

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Medium:
    """An image, video or sound of a row: the path of its file, or its content."""

    path: str = ""
    content: bytes = field(default=b"", repr=False)
    kind: str = "image"
    url: str = ""
    """Where it is on the web, instead of path and content."""
    frames: tuple[Medium, ...] = ()
    """The images of a video that is given as a list of them; it has no file of its own."""
    frame: int = 0
    """Of an image that is part of the video in this file, which one, from 1."""


@dataclass(frozen=True)
class MediaRef:
    """An image, video or sound in a file, what its header says, and which tokens of a segment stand for it."""

    kind: str
    """'image', 'video' or 'audio'."""
    source: str
    """The path of its file. Never the content itself."""
    start: int = 0
    """Index of the first token that stands for it."""
    length: int = 0
    """How many tokens do; 0 until that is known."""
    width: int = 0
    """In pixels."""
    height: int = 0
    size: int = 0
    """Bytes of the file, by which a change is noticed."""
    frames: int = 0
    """Of a video; of a sound, its samples at the rate of its file; of an image in a video, which one, from 1."""
    rate: float = 0.0
    """Frames or samples a second."""


@dataclass
class Media:
    """Inputs of a model's encoders for one micro-batch, in the order of its placeholders."""

    inputs: dict[str, torch.Tensor]
    """As the model's processor names them: pixel_values, image_grid_thw, image_sizes, ..."""
    kinds: torch.Tensor
    """int8, shape of `MicroBatch.input_ids`: 0 text, 1 image, 2 video, 3 audio."""
    positions: torch.Tensor | None = None
    """int64 [3, rows, width] where the model has such positions (mRoPE); they restart at every segment."""
    counts: dict[str, int] = field(default_factory=dict)
    """Images, videos, audios and patches, for speed and reports."""
    numbers: torch.Tensor | None = None
    """int64, one for each segment: made of where its media are, the same for the same and 0 for none."""

    def map(self, function: Callable[[torch.Tensor], torch.Tensor]) -> Media:
        """Return media with `function` applied to every tensor."""
        inputs = {name: function(tensor) for name, tensor in self.inputs.items()}
        numbers = None if self.numbers is None else function(self.numbers)
        return replace(self.map_positions(lambda tensor, _: function(tensor)), inputs=inputs, numbers=numbers)

    def map_positions(self, function: Callable[[torch.Tensor, int], torch.Tensor]) -> Media:
        """Return media with `function(tensor, padding)` applied to what is laid out as [rows, width, ...]."""
        positions = self.positions
        if positions is not None:
            positions = function(positions.movedim(0, -1), 0).movedim(-1, 0)
        return replace(self, kinds=function(self.kinds, 0), positions=positions)


@contextmanager
def unusable_unless_readable(kind: str, path: str) -> Iterator[None]:
    """Turn what reading a file raises into a reason why its sample cannot be used."""
    try:
        yield
    except FileNotFoundError:
        raise Unusable(f"missing {NAMES[kind]}", f"there is no file {path}") from None
    except (OSError, EOFError, ValueError, RuntimeError) as error:  # soundfile raises RuntimeError's kin
        raise Unusable(f"broken {NAMES[kind]}", f"{shown(path)} cannot be read as {ONE[kind]}: {error}") from None


def needed(module: str, what: str, extra: str) -> Any:
    """Return a module of an extra of swift-core, or say how to install it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        hint = f"Type: {pip_install(f'swift-core[{extra}]')}"
        raise ModelError(f"{what}, which is not installed.", hint=hint) from error


def number_of(held: Sequence[MediaRef]) -> int:
    """Return a 64-bit number of what a segment holds: the same for the same files in this order, and 0 for none."""
    if not held:
        return 0
    described = "\0".join(f"{each.kind} {each.source} {each.size} {each.frames}" for each in held)
    return xxhash.xxh64_intdigest(described.encode()) - 2**63
