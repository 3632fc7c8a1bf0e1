"""Images, audio and videos that are damaged, hostile, or no files at all."""

from __future__ import annotations

import io
import json
import math
import shutil
import struct
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from judge import Build, Case, Table, judge, sampled, table
from PIL import Image
from spoil import NOT_A_FILE, put_in
from strategies import examples, not_a_file
from tiny_images import image, image_files, image_model, sound_files

MODELS = {"image": "qwen2_vl", "audio": "qwen2_audio", "video": "qwen2_vl"}
"""The model that is given each kind."""
GOOD = {"image": "0.png", "audio": "0.wav", "video": ["0.png"]}
TAGGED = {"image": "<image>", "audio": "<audio>", "video": "<video>"}


@pytest.fixture(scope="session")
def media(template: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The template with models of images and audio, and a good file of each."""
    folder = tmp_path_factory.mktemp("media") / "here"
    shutil.copytree(template, folder)
    for kind in sorted(set(MODELS.values())):
        image_model(folder / kind, kind)
    image_files(folder, [(56, 56)])
    sound_files(folder, [0.5])
    return folder


def row(kind: str, held: object) -> dict[str, Any]:
    prompt = {"role": "user", "content": f"{TAGGED[kind]}What?"}
    return {"messages": [prompt, {"role": "assistant", "content": "Red."}], f"{kind}s": [held]}


def shown(kind: str, held: object, make: Callable[[Path], object], folder: Path) -> list[str]:
    """The command line that shows a good row, and one that holds this."""
    make(folder)
    rows = [row(kind, GOOD[kind]), row(kind, held)]
    (folder / "rows.jsonl").write_text("".join(json.dumps(each) + "\n" for each in rows), encoding="utf-8")
    flags = ["--model", MODELS[kind], "--dataset", "rows.jsonl", "--strict", "--max_length", "2000", "--sample", "2"]
    return ["config", "show", "sft", *flags]


def file(kind: str, content: bytes) -> Build:
    """Show a row with a file of this content."""
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


BOMB = block(b"zTXt", b"a\0\0" + zlib.compress(bytes(200 << 20), 1))
AT = "rows.jsonl:2"
IMAGES: Table[bytes] = {
    "nothing": (b"", AT),
    "a string": (b"hello", AT),
    "a PNG": (written("PNG"),),
    "a PNG cut off": (written("PNG")[:200], AT),
    "a PNG without height": (png(5, 0), AT),
    "a PNG of 169 million pixels": (png(13_000, 13_000), AT),
    "a PNG with 200 MB of text": (png(56, 56, BOMB), AT),
    "an AVIF cut off": (written("AVIF")[:200], AT),
    "an AVIF without its image": (written("AVIF").replace(b"pitm", b"nono"), AT),
    "a QOI cut off": (b"qoif\0\0\0\x38\0\0\0\x38\3\0\xfe\1", AT),
    "a DDS of no form": (b"DDS " + struct.pack("<7I", 124, 0x1007, 56, 56, 0, 0, 0) + bytes(96), AT),
    "a program of PostScript": (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 56 56\n%%EndComments\nquit\n", AT),
}
CASES = table("image", IMAGES, partial(file, "image"))


@pytest.mark.parametrize(
    "content",
    [
        moving(100_000),
        written("JPEG", exif=exif(b"\x01\x12\0\x02\0\0\0\x04abc\0")),
        written("JPEG", exif=exif(b"\x01\x12\0\x03\0\0\0\x02\0\x05\0\x06")),
    ],
    ids=["a GIF of 100,000 images", "an orientation that is a string", "two orientations"],
)
def test_odd_image_is_handled_clearly(content: bytes, media: Path) -> None:
    judge(Case("odd", file("image", content), "either", (AT,)), media)


# ---------------------------------------------------------------- audio


def wav(
    rate: int = 16000, count: int = 8000, *, channels: int = 1, width: int = 2, content: bytes | None = None
) -> bytes:
    """A WAV file of whole numbers, whose header says this."""
    content = bytes(count * channels * width) if content is None else content
    head = struct.pack("<HHIIHH", 1, channels, rate, 0, channels * width & 0xFFFF, 8 * width)
    body = b"WAVEfmt " + struct.pack("<I", len(head)) + head + b"data" + struct.pack("<I", len(content)) + content
    return b"RIFF" + struct.pack("<I", len(body)) + body


AUDIO: Table[bytes] = {
    "a WAV": (wav(),),
    "no sample rate": (wav(0), AT, "sample rate 0 Hz"),
    "a sample rate of 1 Hz": (wav(1, 200_000), AT, "sample rate 1 Hz"),
    "a sample rate of 4 GHz": (wav(2**32 - 1), AT, "sample rate 4294967295 Hz"),
    "a sample rate without a common factor": (wav(999_983), AT, "-ar 16000"),
    "one sample": (wav(count=1), AT, "short"),
    "no samples": (wav(count=0), AT, "no samples"),
    "65,535 channels": (wav(count=4, channels=65_535, content=bytes(8)), AT),
    "half a sample": (wav(content=b"abc"), AT, "short"),
    "40 bits": (wav(width=5), AT, "40 bits"),
    "cut off": (wav()[:1000], AT, "shorter than its header declares"),
}
CASES += table("audio", AUDIO, partial(file, "audio"))


@pytest.mark.parametrize("case", sampled(CASES))
def test_a_media_file_is_handled_clearly(case: Case, media: Path) -> None:
    judge(case, media)


# ---------------------------------------------------------------- what is no file

INVALID = (
    "data:,", "data:image/png;base64,@@", "http://127.0.0.1:1/held", "a\0b", "x" * 100_000, 5, None, {"held": 1},
    {"path": 5},
)  # fmt: skip
"""What a row holds instead of the name of a file."""
kinds = st.sampled_from(sorted(MODELS))


@examples(15)
@given(kinds, not_a_file.filter(lambda how: "GiB" not in how))
def test_medium_that_is_no_file_is_refused(media: Path, kind: str, what: str) -> None:
    build = partial(shown, kind, "held", lambda folder: NOT_A_FILE[what](folder / "held"))
    judge(Case(f"{kind}: {what}", build, names=("rows.jsonl:2", "held")), media)


@examples(20)
@given(kinds, st.sampled_from(INVALID))
def test_invalid_medium_is_refused(media: Path, kind: str, value: object) -> None:
    judge(Case(kind, partial(shown, kind, value, lambda _: None), names=("rows.jsonl:2",)), media)


# ---------------------------------------------------------------- settings of the model's processor

SETTINGS: tuple[tuple[str, str, tuple[object, ...]], ...] = (
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


@examples(20)
@given(st.sampled_from([(kind, keys, value) for kind, keys, values in SETTINGS for value in values]))
def test_wrong_setting_of_a_processor_is_refused(media: Path, setting: tuple[str, str, object]) -> None:
    kind, keys, value = setting
    change = lambda folder: put_in(folder / MODELS[kind] / "processor_config.json", tuple(keys.split(".")), value)  # noqa: E731
    judge(Case(keys, partial(shown, kind, GOOD[kind], change), names=("rows.jsonl:1", "processor")), media)
