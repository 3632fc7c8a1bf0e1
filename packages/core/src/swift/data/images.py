"""Images, videos and sounds as rows name them: a file, a data URI, or bytes; and what an image's header says."""

from __future__ import annotations

import base64
import binascii
import io
import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import xxhash

from swift.config.media import NAMES, ONE
from swift.data.conversation import Unusable, parse_json_list
from swift.data.media import MediaRef, Medium, needed, unusable_unless_readable
from swift.data.videos import close_video, measure_video, open_frame
from swift.data.web import Web, fetched, is_address, new_file
from swift.errors import SwiftError
from swift.untrusted import json_kind

if TYPE_CHECKING:
    from PIL.Image import Image

COLUMNS = {"image": ("images", "image"), "video": ("videos", "video"), "audio": ("audios", "audio")}
"""The columns of a kind."""
_FORMATS = {
    "image/png": b"\x89PNG",
    "image/jpeg": b"\xff\xd8",
    "image/gif": b"GIF8",
    "image/webp": b"RIFF",
    "image/bmp": b"BM",
}
"""How files of images begin."""
_TURNED = frozenset({5, 6, 7, 8})
"""Orientations of EXIF by which width and height are swapped."""


def read_media(value: object, root: Path | None, kind: str = "image") -> list[Medium]:
    """Return the media of a column: one, a list of them, or a list as JSON in a string."""
    value = parse_json_list(value, f"the column of {NAMES[kind]}s")
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return [read_medium(each, root, kind) for each in value]
    return [read_medium(value, root, kind)]


def read_medium(value: object, root: Path | None, kind: str = "image") -> Medium:
    """Return one as data sets write it: path, data URI, bytes, `{bytes, path}`, `{url}`, or an image of PIL.

    A video may be the list of its images. Paths are taken from `root`. Raise `Unusable` for anything else.
    """
    match value:
        case Medium():
            return value
        case str():
            return _by_name(value, root, kind)
        case bytes():
            return Medium(content=value, kind=kind)
        case Mapping():
            return _of_object(value, root, kind)
        case list() | tuple() if kind == "video":
            if not value:
                raise Unusable("malformed video", "a video is a list without any image")
            return Medium(kind=kind, frames=tuple(read_medium(each, root) for each in value))
    if kind == "image" and hasattr(value, "save") and hasattr(value, "size"):
        written = io.BytesIO()
        value.save(written, format="PNG")
        return Medium(content=written.getvalue())
    raise Unusable(
        f"malformed {NAMES[kind]}", f"{ONE[kind]} is {json_kind(value)}: neither a path, nor a data URI, nor bytes"
    )


def medium_of_part(part: Mapping[str, Any], root: Path | None, kind: str) -> Medium | None:
    """Return what a message's part names; None where the part leaves it to the column."""
    for key in (kind, f"{kind}_url", "input_audio", "url", "path", "base64", "data", "bytes", "value"):
        if part.get(key) is not None:
            value = part[key]
            return read_medium({"base64": value} if key in ("base64", "data") else value, root, kind)
    return None


def thumbnail(image: MediaRef, side: int) -> str | None:
    """Return an image, or one of a video, as a small JPEG in a data URI; None for one that cannot be read."""
    written = io.BytesIO()
    try:
        with _errors(), _small(image, side) as small:
            small.thumbnail((side, side))
            small.convert("RGB").save(written, format="JPEG", quality=80)
    except (OSError, ValueError):
        return None
    return f"data:image/jpeg;base64,{base64.b64encode(written.getvalue()).decode()}"


def _small(image: MediaRef, side: int) -> Image:
    """Open an image; a JPEG's is decoded no larger than it has to be."""
    if image.frames:
        try:
            return open_frame(image.source, image.frames, image.rate)
        finally:
            close_video()
    opened: Image = _pillow().open(image.source)
    opened.draft("RGB", (side, side))
    return opened


def measure(image: Medium, folder: Path, *, decode: bool = False, web: Web = "no") -> MediaRef:
    """Return what the header of an image says; content without a file is written into `folder` once.

    With `decode` all of it is read. Raise `Unusable` for an image that is missing or broken.
    """
    path = path_of(image, folder, web)
    if image.frame:
        return replace(measure_video(path), kind="image", frames=image.frame)
    with unusable_unless_readable("image", path), _errors(), _pillow().open(path) as opened:
        width, height = opened.size
        # PNG may have its EXIF behind the pixels, all of which Pillow would decode to look for it.
        if (opened.format != "PNG" or "exif" in opened.info) and opened.getexif().get(0x0112) in _TURNED:
            width, height = height, width
        if decode:
            opened.load()
        return MediaRef("image", path, width=width, height=height, size=Path(path).stat().st_size)


def path_of(medium: Medium, folder: Path, web: Web = "no") -> str:
    """Return the path of a file; what has none is written into `folder` once, fetched where `web` allows it.

    Raise `Unusable` for a pipe, a device or a folder, which decoders would wait for or read without end.
    """
    if medium.url:
        return fetched(medium.url, folder, web, NAMES[medium.kind])
    if not medium.path:
        return str(_kept(medium.content, folder))
    with unusable_unless_readable(medium.kind, medium.path):
        found = os.stat(medium.path)  # noqa: PTH116  # for each medium of a data set: paths need not be parsed
        if not stat.S_ISREG(found.st_mode):
            raise ValueError("it is not a regular file")
    return medium.path


def as_url(image: Medium) -> str:
    """Return an image as a data URI, or its address on the web; `Unusable` where its file is missing."""
    if image.url:
        return image.url
    content = image.content
    if image.path:
        with unusable_unless_readable("image", image.path):
            content = Path(path_of(image, Path())).read_bytes()
    kind = next((kind for kind, marks in _FORMATS.items() if content.startswith(marks)), "image/png")
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"


def open_image(path: str) -> Image:
    """Return an image upright and in three colours, as transformers loads them.

    Raise `OSError` or `ValueError` where it is broken.
    """
    from PIL import ImageOps

    with _errors(), _pillow().open(path) as opened:
        return ImageOps.exif_transpose(opened).convert("RGB")


@contextmanager
def _errors() -> Iterator[None]:
    """Raise as `OSError` what Pillow raises of damaged files: each of its fifty decoders fails in its own way.

    With that of an AVIF it is RuntimeError, with that of a QOI IndexError, and what is too large for this machine ends
    in MemoryError.
    """
    try:
        yield
    except (OSError, ValueError, SwiftError):
        raise
    except Exception as error:
        raise OSError(str(error) or type(error).__name__) from None


def _pillow() -> Any:
    return needed("PIL.Image", "Images need the package Pillow", "vision")


def _by_name(name: str, root: Path | None, kind: str) -> Medium:
    if name.startswith("data:"):
        _, comma, content = name.partition(",")
        if not comma:
            raise Unusable(f"malformed {NAMES[kind]}", "a data URI has no comma, and so no content")
        return Medium(content=_decoded(content, kind), kind=kind)
    if is_address(name):
        return Medium(url=name, kind=kind)
    path = Path(name.removeprefix("file://"))
    return Medium(str(path if path.is_absolute() or root is None else root / path), kind=kind)


def _of_object(value: Mapping[str, Any], root: Path | None, kind: str) -> Medium:
    if isinstance(value.get("bytes"), bytes):
        return Medium(content=value["bytes"], kind=kind)
    for key in ("base64", "data"):
        if isinstance(value.get(key), str):
            return Medium(content=_decoded(value[key], kind), kind=kind)
    for key in ("path", "url", kind):
        if isinstance(value.get(key), str):
            return _by_name(value[key], root, kind)
    keys = ", ".join(map(str, value)) or "none"
    raise Unusable(
        f"malformed {NAMES[kind]}",
        f"{ONE[kind]} needs bytes, or a string as base64, path or url; its keys are {keys}",
    )


def _decoded(text: str, kind: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise Unusable(f"malformed {NAMES[kind]}", f"the base64 of {ONE[kind]} cannot be decoded") from None


def _kept(content: bytes, folder: Path) -> Path:
    """Write the content of a file under a name that is made of it, unless it is there; return its path."""
    name = xxhash.xxh3_128_hexdigest(content)
    path = folder / name[:2] / name
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        with new_file(path) as file:
            file.write(content)
    return path
