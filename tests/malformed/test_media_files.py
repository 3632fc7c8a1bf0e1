"""Images, sounds and videos that are damaged, hostile, or no files at all."""

from __future__ import annotations

import io
import json
import math
import os
import shutil
import struct
import zlib
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import spoil
from judge import Case, judge, sampled
from PIL import Image
from tiny_images import image, image_files, image_model, sound_files

Build = Callable[[Path], Sequence[str]]
MODELS = {"image": "qwen2_vl", "audio": "qwen2_audio", "video": "qwen2_vl"}
"""The model that is given each kind."""
GOOD = {"image": "0.png", "audio": "0.wav", "video": ["0.png"]}
TAGGED = {"image": "<image>", "audio": "<audio>", "video": "<video>"}


@pytest.fixture(scope="session")
def media(template: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The template with models of images and sounds, and a good file of each."""
    folder = tmp_path_factory.mktemp("media") / "here"
    shutil.copytree(template, folder)
    for kind in sorted(set(MODELS.values())):
        image_model(folder / kind, kind)
    image_files(folder, [(56, 56)])
    sound_files(folder, [0.5])
    return folder


def row(kind: str, held: object) -> dict[str, Any]:
    asked = {"role": "user", "content": f"{TAGGED[kind]}What?"}
    return {"messages": [asked, {"role": "assistant", "content": "Red."}], f"{kind}s": [held]}


def shown(kind: str, held: object, make: Callable[[Path], object], folder: Path) -> list[str]:
    """The command line that shows a good row, and one that holds this."""
    make(folder)
    rows = [row(kind, GOOD[kind]), row(kind, held)]
    (folder / "rows.jsonl").write_text("".join(json.dumps(each) + "\n" for each in rows), encoding="utf-8")
    flags = ["--model", MODELS[kind], "--dataset", "rows.jsonl", "--strict", "--max_length", "2000", "--sample", "2"]
    return ["config", "show", "sft", *flags]


def file(kind: str, content: bytes) -> Build:
    """Shows a row with a file of this content."""
    return partial(shown, kind, "held", lambda folder: (folder / "held").write_bytes(content))


# ---------------------------------------------------------------- images


def written(form: str, **options: Any) -> bytes:
    content = io.BytesIO()
    image(56, 56, 0).save(content, form, **options)
    return content.getvalue()


def block(name: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))


def png(width: int, height: int, *blocks: bytes) -> bytes:
    """A PNG that says it is so large, with a thousand bytes of pixels."""
    head = block(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + b"".join([head, *blocks, block(b"IDAT", zlib.compress(bytes(1000)))])


def moving(count: int) -> bytes:
    """A GIF with so many images."""
    content = io.BytesIO()
    Image.new("P", (8, 8), 1).save(content, "GIF")
    head, _, body = content.getvalue().partition(b",")
    return head + b"," + b",".join([body[:-1]] * count) + b";"


def exif(tag: bytes) -> bytes:
    return b"Exif\0\0MM\0*\0\0\0\x08\0\x01" + tag + b"\0\0\0\0"


IMAGES: dict[str, tuple[bytes, str]] = {
    "nothing": (b"", "refused"),
    "a text": (b"hello", "refused"),
    "a PNG": (written("PNG"), "works"),
    "a PNG cut off": (written("PNG")[:200], "refused"),
    "a PNG without height": (png(5, 0), "refused"),
    "a PNG of 2,500 million pixels": (png(50_000, 50_000), "refused"),
    "a PNG of 169 million pixels": (png(13_000, 13_000), "refused"),
    "a PNG as large as can be said": (png(2**31 - 1, 2**31 - 1), "refused"),
    "a PNG with 200 MB of text": (
        png(56, 56, block(b"zTXt", b"a\0\0" + zlib.compress(bytes(200 << 20), 1))),
        "refused",
    ),
    "a GIF of 100,000 images": (moving(100_000), "either"),
    "an AVIF cut off": (written("AVIF")[:200], "refused"),
    "an AVIF without its image": (written("AVIF").replace(b"pitm", b"nono"), "refused"),
    "a QOI cut off": (b"qoif\0\0\0\x38\0\0\0\x38\3\0\xfe\1", "refused"),
    "a DDS of no form": (b"DDS " + struct.pack("<7I", 124, 0x1007, 56, 56, 0, 0, 0) + bytes(96), "refused"),
    "a WebP cut off": (written("WEBP")[:200], "refused"),
    "a turn that is a text": (written("JPEG", exif=exif(b"\x01\x12\0\x02\0\0\0\x04abc\0")), "either"),
    "a turn that is many": (written("JPEG", exif=exif(b"\x01\x12\0\x03\0\0\0\x02\0\x05\0\x06")), "either"),
    "a program of PostScript": (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 56 56\n%%EndComments\nquit\n", "refused"),
}
CASES = [
    Case(f"image: {name}", file("image", content), expected, ("rows.jsonl:2",))  # type: ignore[arg-type]
    for name, (content, expected) in IMAGES.items()
]

# ---------------------------------------------------------------- sounds


def wav(
    rate: int = 16000, count: int = 8000, *, voices: int = 1, width: int = 2, content: bytes | None = None
) -> bytes:
    """A WAV file of whole numbers, whose header says this."""
    content = bytes(count * voices * width) if content is None else content
    head = struct.pack("<HHIIHH", 1, voices, rate, 0, voices * width & 0xFFFF, 8 * width)
    body = b"WAVEfmt " + struct.pack("<I", len(head)) + head + b"data" + struct.pack("<I", len(content)) + content
    return b"RIFF" + struct.pack("<I", len(body)) + body


SOUNDS: dict[str, tuple[bytes, str, tuple[str, ...]]] = {
    "as it should be": (wav(), "works", ()),
    "of 44,100 samples a second": (wav(44100), "works", ()),
    "of no samples a second": (wav(0), "refused", ("0 samples a second",)),
    "of one sample a second": (wav(1, 200_000), "refused", ("1 samples a second",)),
    "of 4,294,967,295 samples a second": (wav(2**32 - 1), "refused", ("4294967295 samples a second",)),
    "of a rate that has nothing in common": (wav(999_983), "refused", ("-ar 16000",)),
    "of one sample": (wav(count=1), "refused", ("short",)),
    "of ten samples": (wav(count=10), "refused", ("short",)),
    "of no samples": (wav(count=0), "refused", ("no samples",)),
    "of 65,535 voices": (wav(count=4, voices=65_535, content=bytes(8)), "refused", ()),
    "of half a sample": (wav(content=b"abc"), "refused", ("short",)),
    "of 40 bits": (wav(width=5), "refused", ("40 bits",)),
    "cut off": (wav()[:1000], "refused", ("ends before",)),
}
CASES += [
    Case(f"sound: {name}", file("audio", content), expected, ("rows.jsonl:2", *names))  # type: ignore[arg-type]
    for name, (content, expected, names) in SOUNDS.items()
]

# ---------------------------------------------------------------- what is no file

NO_FILES: dict[str, Callable[[Path], object]] = {
    "a pipe": os.mkfifo,
    "a folder": Path.mkdir,
    "a device that never ends": lambda path: path.symlink_to("/dev/zero"),
    "a link to itself": lambda path: path.symlink_to(path.name),
    "a link to nothing": lambda path: path.symlink_to("nowhere"),
}
CASES += [
    Case(
        f"{kind}: {name}",
        partial(shown, kind, "held", lambda folder, make=make: make(folder / "held")),
        "refused",
        ("rows.jsonl:2", "held"),
    )
    for kind in MODELS
    for name, make in NO_FILES.items()
]
CASES += [
    Case(f"{kind}: {name}", partial(shown, kind, value, lambda folder: None), "refused", ("rows.jsonl:2",))
    for kind in MODELS
    for name, value in {
        "an empty data URI": "data:,",
        "a data URI that is not base64": "data:image/png;base64,@@",
        "an address": "http://127.0.0.1:1/held",
        "NUL": "a\0b",
        "100,000 letters": "x" * 100_000,
        "a number": 5,
        "null": None,
        "an object without a name": {"held": 1},
        "a path that is a number": {"path": 5},
    }.items()
]


# ---------------------------------------------------------------- what the model says of them


def of_processor(kind: str, keys: str, value: object) -> Build:
    """Shows good rows to a model whose processor has this setting."""
    change = lambda folder: spoil.set_in(folder / MODELS[kind] / "processor_config.json", keys, value)  # noqa: E731
    return partial(shown, kind, GOOD[kind], change)


CASES += [
    Case(f"processor: {keys} is {value!r}", of_processor(kind, keys, value), "refused", ("rows.jsonl:1", "processor"))
    for kind, keys, values in (
        ("image", "image_processor.patch_size", ("many", ["1"], None, 0)),
        ("image", "image_processor.merge_size", ("many", ["1"], None, 0)),
        ("image", "image_processor.temporal_patch_size", ("many", None)),
        ("image", "image_processor.rescale_factor", ("many", ["1"], 0, 1e9, math.nan, math.inf)),
        ("image", "image_processor.image_mean", (math.nan, 1e9)),
        ("image", "image_processor.image_std", (0, math.nan, 1e-30)),
        ("image", "image_processor.size.longest_edge", ("many", ["1"])),
        ("audio", "feature_extractor.dither", ("many", ["1"], None, math.nan)),
        ("audio", "feature_extractor.chunk_length", (0,)),
        ("audio", "feature_extractor.padding_value", ("many",)),
    )
    for value in values
]


@pytest.mark.parametrize("case", sampled(CASES))
def test_a_image_sound_or_video_is_answered_clearly(case: Case, media: Path) -> None:
    judge(case, media)
