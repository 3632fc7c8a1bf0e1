"""Rows with images: how they are written, what becomes of them, and what is refused."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from encode_row import asked, encode_row, encoder_of, media_encoder
from named_encodings import encoding_of
from PIL import Image as Pillow
from rich.console import Console
from tiny_image_types import tiny_image_parts
from tiny_images import image, image_files, processor_of

from swift.config.sections import DataSection
from swift.data.conversation import Unusable
from swift.data.encodings import ConversationEncoder, Encoding
from swift.data.pipeline import PreparedData, prepare_data
from swift.data.preview import preview
from swift.data.samples import Encoded
from swift.errors import DataError, ModelError
from swift.models.media_processor import MediaProcessor
from swift_objectives.encodings.classification import ClassificationEncoding
from swift_objectives.encodings.embedding import EmbeddingEncoding

KINDS = ("llava", "qwen2_vl", "qwen2_5_vl", "qwen3_vl")
SIZES = [(56, 56), (90, 61), (28, 140)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("images")
    image_files(folder, SIZES)
    return folder


def encode(
    row: Mapping[str, Any], folder: Path, kind: str = "qwen2_5_vl", encoding: str | Encoding = "chat", **settings: Any
) -> Encoded:
    (encoded,) = encode_row(media_encoder(processor_of(kind), folder, encoding, **settings), row, folder)
    return encoded


def prepared(folder: Path, rows: list[dict[str, Any]], name: str, **settings: Any) -> PreparedData:
    (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    section = DataSection(train=(str(folder / name),), cache=folder / "cache", **settings)
    rules = MediaProcessor(processor_of("qwen2_5_vl"), section)
    return prepare_data(section, rules.processor.tokenizer, encoding="chat", seed=1, say=print, images=rules)


TWO = asked("<image>What is it, and what is <image>?", images=["0.png", "1.png"])


def test_processor_that_changes_text_is_refused(folder: Path) -> None:
    """PaliGemma's ends the text after the last image by itself."""
    encoder = media_encoder(tiny_image_parts("paligemma")[1], folder, "chat")
    written = r"PaliGemmaProcessor writes '<image><\|endoftext\|>.*' where the template has '<image>'\."
    with pytest.raises(ModelError, match=written):
        encode_row(encoder, TWO, folder)


@pytest.mark.parametrize("kind", KINDS)
def test_tokens_are_those_of_the_processor_itself(kind: str, folder: Path) -> None:
    encoded = encode(TWO, folder, kind)
    parts = [{"type": "image"}, {"type": "text", "text": "What is it, and what is "}, {"type": "image"}]
    messages = [
        {"role": "user", "content": [*parts, {"type": "text", "text": "?"}]},
        {"role": "assistant", "content": "red"},
    ]
    processor = processor_of(kind)
    text = processor.apply_chat_template(messages, tokenize=False)
    images = [image(*SIZES[0], 0), image(*SIZES[1], 1)]
    expected = processor(text=[text], images=images, add_special_tokens=False)["input_ids"][0]
    (segment,) = encoded.segments
    assert segment.input_ids.tolist() == expected
    token = processor.tokenizer.convert_tokens_to_ids(processor.image_token)
    held = [at for each in segment.media for at in range(each.start, each.start + each.length)]
    assert held == np.flatnonzero(segment.input_ids == token).tolist()
    assert [(each.width, each.height) for each in segment.media] == SIZES[:2]
    learned = processor.tokenizer.decode(segment.input_ids[segment.weights > 0])
    assert learned == "red<|im_end|>"


def test_placeholders_are_never_learned(folder: Path) -> None:
    (segment,) = encode(TWO, folder, loss_on="all").segments
    for each in segment.media:
        assert not segment.weights[each.start : each.start + each.length].any()
    assert segment.weights[1 : segment.media[0].start].all()


def ways(folder: Path) -> dict[str, dict[str, Any]]:
    """The same image and text, as data sets write them."""
    content = (folder / "0.png").read_bytes()
    uri = f"data:image/png;base64,{base64.b64encode(content).decode()}"
    text = {"type": "text", "text": "What?"}
    return {
        "tag": asked("<image>What?", images=["0.png"]),
        "absolute path": asked("<image>What?", images=str(folder / "0.png")),
        "without a tag": asked("What?", image="0.png"),
        "query": {"query": "<image>What?", "response": "red", "images": ["0.png"]},
        "Parquet's dict": asked("<image>What?", images=[{"bytes": content, "path": "x.png"}]),
        "a dict of a path": asked("<image>What?", images=[{"bytes": None, "path": "0.png"}]),
        "JSON in a string": asked("<image>What?", images='["0.png"]'),
        "bytes": asked("<image>What?", images=[content]),
        "PIL": asked("<image>What?", images=[image(*SIZES[0], 0)]),
        "OpenAI": asked([{"type": "image_url", "image_url": {"url": uri}}, text]),
        "Hugging Face, own": asked([{"type": "image", "path": "0.png"}, text]),
        "Hugging Face, column": asked([{"type": "image"}, text], images=["0.png"]),
    }


def test_all_image_notations_give_same_sample(folder: Path) -> None:
    rows = ways(folder)
    encoder = media_encoder(processor_of("qwen2_5_vl"), folder)
    first = encode(rows["tag"], folder).segments[0]
    for name, row in rows.items():
        sample = encoder.encoding.understand(dict(row), name, root=folder)
        ((segment,),) = (each.segments for each in encoder.encode(sample, name).samples)
        (held,) = segment.media
        assert segment.input_ids.tolist() == first.input_ids.tolist(), name
        assert (held.start, held.length) == (first.media[0].start, first.media[0].length), name
        assert (held.width, held.height) == (56, 56), name
        assert not sample.extras, name
        assert Path(held.source).read_bytes()[:4] == b"\x89PNG", name


def test_video_of_images_is_inserted_at_its_position(folder: Path) -> None:
    names = ["1.png", "0.png", "1.png"]
    expected = encode(asked("Look: <image><image><image> What?", images=names), folder).segments[0]
    said = [{"type": "text", "text": text} for text in ("Look: ", " What?")]
    question = [said[0], {"type": "video", "video": names}, said[1]]
    ways = [asked("Look: <video> What?", videos=[names]), asked(question)]
    mixed = asked("Look: <image><video> What?", images=names[:1], videos=[names[1:]])
    for row in [*ways, mixed]:
        segment = encode(row, folder).segments[0]
        assert segment.input_ids.tolist() == expected.input_ids.tolist()
        assert segment.media == expected.media
    before, tagged = asked("What?", videos=[names]), asked("<image><image><image>What?", images=names)
    found, wanted = (encode(each, folder).segments[0].input_ids.tolist() for each in (before, tagged))
    assert found == wanted


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (asked("<image> and <image>", images=["0.png"]), "images do not match"),
        (asked([{"type": "image"}, {"type": "text", "text": "?"}]), "no images"),
        (asked("<image>", images=["none.png"]), "missing image"),
        (asked("<image>", images=["cut.png"]), "broken image"),
        (asked("<image>", images=["https://here.example/a.png"]), "image on the web"),
        (asked("<image>", images=[7]), "malformed image"),
        (asked("<image>say <|image_pad|>", images=["0.png"]), "own token"),
        (asked("say <|video_pad|>"), "own token"),
        (asked("<video>what?", videos=["a.mp4"]), "missing video"),
        (asked("<video>what?", videos=[[]]), "without any image"),
        (asked("<video> and <video>", videos=[["0.png"]]), "videos do not match"),
        (asked("<audio>what?", audios=["a.wav"]), "holds audio clips"),
    ],
)
def test_unusable_images_report_reason(row: dict[str, Any], reason: str, folder: Path) -> None:
    (folder / "cut.png").write_bytes((folder / "0.png").read_bytes()[:20])
    with pytest.raises(Unusable, match=reason):
        encode(row, folder)


def test_broken_image_body_is_found_on_full_decode(folder: Path) -> None:
    """A broken body is found where all of an image is looked at."""
    whole = (folder / "1.png").read_bytes()
    (folder / "body.png").write_bytes(whole[: len(whole) // 2])
    encoder = media_encoder(processor_of("qwen2_5_vl"), folder)
    row = asked("<image>", images=["body.png"])
    one = asked("<image>", images=["0.png"])
    for each in (one, one, row):  # the first texts are decoded anyway, to be compared with the processor
        encode_row(encoder, each, folder)
    with pytest.raises(Unusable, match="broken image"):
        encode(row, folder, media_check="decode")


@pytest.mark.parametrize("encoding", ["chat", ClassificationEncoding("single_label_classification", ["a", "b"])])
def test_text_objective_refuses_images(encoding: str | Encoding, folder: Path) -> None:
    with pytest.raises(Unusable, match="holds images"):
        encoding_of(encoding).understand({"text": "What?", "label": 0, "images": ["0.png"]}, "here", root=folder)


PLAIN: list[dict[str, Any]] = [
    {"text": "A <image> and <image>.", "images": ["0.png", "1.png"]},
    {"messages": [{"role": "assistant", "content": "A <image> and <image>."}], "images": ["0.png", "1.png"]},
    {"messages": [{"role": "assistant", "content": [
        {"type": "text", "text": "A "}, {"type": "image", "path": "0.png"}, {"type": "text", "text": " and "},
        {"type": "image", "path": "1.png"}, {"type": "text", "text": "."}]}]},
]  # fmt: skip
"""Three ways to write a text in which images stand."""


@pytest.mark.parametrize("row", PLAIN)
@pytest.mark.parametrize("kind", ["llava", "qwen2_5_vl"])
def test_plain_text_is_learned_around_images(kind: str, row: dict[str, Any], folder: Path) -> None:
    processor = processor_of(kind)
    place = "<image>" if kind == "llava" else "<|vision_start|><|image_pad|><|vision_end|>"
    images = [Pillow.open(folder / f"{number}.png") for number in range(2)]
    made = processor(text=[f"A {place} and {place}.<|im_end|>"], images=images, add_special_tokens=False)
    ids = np.array(made["input_ids"][0])
    (segment,) = encode(row, folder, kind, "text").segments
    assert segment.input_ids.tolist() == ids.tolist()
    stands = ids == processor.tokenizer.convert_tokens_to_ids("<image>" if kind == "llava" else "<|image_pad|>")
    assert segment.weights[1:].tolist() == (~stands).astype(float)[1:].tolist()


def said(content: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": content}]


PARTS = [{"type": "image", "path": "2.png"}, {"type": "text", "text": "no"}]
COMPARED: list[dict[str, Any]] = [
    {"messages": said("<image>find"), "positive_messages": [said("plain"), said("<image>yes")],
     "negative_messages": [said("<image>no")], "images": ["0.png"], "positive_images": [[], ["1.png"]],
     "negative_images": [["2.png"]]},
    {"messages": said("<image>find"), "positive_messages": [said("plain"), said("yes")],
     "negative_messages": [said(PARTS)], "images": ["0.png"], "positive_images": '[[], ["1.png"]]'},
    {"query": "<image>find", "pos": ["plain", "<image>yes"], "neg": "<image>no",
     "images": ["0.png", "1.png", "2.png"]},
]  # fmt: skip
"""Three ways to write the same row."""


def test_compared_texts_keep_their_own_images(folder: Path) -> None:
    """Texts that are compared are scored with their own images."""
    made = [encode(row, folder, encoding=EmbeddingEncoding()) for row in COMPARED]
    processor = processor_of("qwen2_5_vl")
    expected = [list(processor.tokenizer("plain")["input_ids"])]
    for name, text in (("0", "find"), ("1", "yes"), ("2", "no")):
        parts = [{"type": "image"}, {"type": "text", "text": text}]
        prompt = processor.apply_chat_template(said(parts), tokenize=False, add_generation_prompt=True)
        images = [Pillow.open(folder / f"{name}.png")]
        expected.append(processor(text=[prompt], images=images, add_special_tokens=False)["input_ids"][0])
    plain, query, right, wrong = expected
    for sample in made:
        assert [list(segment.input_ids) for segment in sample.segments] == [query, plain, right, wrong]
        assert [len(segment.media) for segment in sample.segments] == [1, 0, 1, 1]
        assert sample.values["positives"] == 2


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"positive_images": [["1.png"]]}, "images do not match"),
        ({"positive_images": [["1.png"], ["1.png", "2.png"]]}, "images do not match"),
        ({"images": ["0.png", "1.png"]}, "images do not match"),
        ({"negative_messages": [said("<image>yes")], "negative_images": [["1.png"]]}, "a positive is also a negative"),
    ],
)
def test_mismatched_images_report_reason(changes: dict[str, Any], reason: str, folder: Path) -> None:
    with pytest.raises(Unusable, match=reason):
        encode({**COMPARED[0], **changes}, folder, encoding=EmbeddingEncoding())


def test_text_model_refuses_images(folder: Path) -> None:
    with pytest.raises(Unusable, match="the model reads text alone"):
        encode_row(encoder_of(processor_of("qwen2_5_vl").tokenizer), TWO, folder)


@pytest.mark.parametrize("side", ["left", "right"])
def test_truncation_keeps_images_whole(side: Literal["left", "right"], folder: Path) -> None:
    row = asked("<image>one <image>two", images=["0.png", "1.png"])
    whole = encode(row, folder, "qwen3_vl", loss_on="all").segments[0]
    token = whole.input_ids[whole.media[0].start]
    tokenizer = processor_of("qwen3_vl").tokenizer
    for longest in range(8, len(whole)):
        (segment,) = ConversationEncoder(tokenizer, DataSection(max_length=longest, truncation=side), "all").fit(whole)
        assert len(segment) <= longest
        held = [at for each in segment.media for at in range(each.start, each.start + each.length)]
        assert held == np.flatnonzero(segment.input_ids == token).tolist()
        assert {each.length for each in segment.media} <= {each.length for each in whole.media}


def test_pixel_limits_change_image_tokens(folder: Path) -> None:
    row = asked("<image>", images=["2.png"])
    plain, small = (encode(row, folder, max_pixels=most).segments[0].media[0] for most in (None, 28 * 28 * 2))
    patches = processor_of("qwen2_5_vl").image_processor.get_number_of_image_patches(
        140, 28, {"max_pixels": 28 * 28 * 2}
    )
    assert (plain.length, small.length) == (5, patches // 4)
    large = encode(row, folder, min_pixels=28 * 28 * 10).segments[0].media[0]
    assert large.length >= 10


def test_a_store_holds_references_and_reads_them_back(folder: Path) -> None:
    rows = [TWO, asked("just text"), asked("<image>?", images=["2.png"])]
    data = prepared(folder, rows, "three.jsonl")
    assert data.train is not None
    samples = data.train.samples
    assert [dict(samples.facts(index).media) for index in range(3)] == [{"image": 2}, {}, {"image": 1}]
    for index, row in enumerate(rows):
        (kept,), (made,) = samples[index].segments, encode(row, folder).segments
        assert kept.input_ids.tolist() == made.input_ids.tolist()
        assert kept.media == made.media
    assert "3 images, which are" in "\n".join(data.report.lines())
    assert data.train.store.holds_media


def test_changed_image_is_tokenized_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    image_files(tmp_path, SIZES)
    rows = [asked("<image>?", images=["0.png"]), asked("<image>?", images=["1.png"])]
    before = prepared(tmp_path, rows, "rows.jsonl").train
    assert before is not None
    again = prepared(tmp_path, rows, "rows.jsonl").train
    assert again is not None
    assert "tokenised again" not in capsys.readouterr().out
    image(112, 112, 9).save(tmp_path / "0.png")
    changed = prepared(tmp_path, rows, "rows.jsonl").train
    assert changed is not None
    assert "0.png is not what it was" in capsys.readouterr().out
    assert changed.samples[0].segments[0].media[0].width == 112
    (tmp_path / "1.png").unlink()
    data = prepared(tmp_path, rows, "rows.jsonl")
    assert "1 × missing image; first" in "\n".join(data.report.lines())
    with pytest.raises(DataError, match="missing image"):
        prepared(tmp_path, rows, "rows.jsonl", strict=True)


def test_preview_shows_images_instead_of_tokens(folder: Path) -> None:
    console = Console(width=300, no_color=True, record=True, file=io.StringIO())
    encoded = encode(TWO, folder)
    console.print(preview(processor_of("qwen2_5_vl").tokenizer, encoded, encoding_of("chat")))
    shown = console.export_text()
    assert f"[image 56×56 → 4 tokens: {folder / '0.png'}]<|vision_end|>What is it" in shown
    assert "image_pad" not in shown
    assert "⟦red<|im_end|>⟧" in shown
