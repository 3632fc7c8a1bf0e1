"""Files of videos, drawn here: which of their images a model is shown, found without decoding what lies between."""

from __future__ import annotations

import base64
import json
import sys
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from encode_row import asked, encode_row, media_encoder
from PIL import Image
from tiny_images import image_model, processor_of

from swift.cli.main import run as swift
from swift.data.conversation import Unusable
from swift.data.encode import SampleEncoder
from swift.data.media import Medium
from swift.data.videos import VideoSampling, close_video, images_of, measure_video, open_frame
from swift.errors import ModelError
from swift.models.media_processor import MediaProcessor

RATE, SIZE = 8, (84, 56)


def shade(number: int) -> int:
    """How bright an image is, from 1."""
    return number * 5 % 250


def draw(file: Path, count: int, *, apart: int = 12, turned: int = 0) -> Path:
    """Write a video whose images tell their number by their brightness; one in `apart` stands by itself."""
    with av.open(str(file), "w") as container:
        stream: Any = container.add_stream("mpeg4", rate=RATE, options={"g": str(apart), "qmin": "1", "qmax": "2"})
        stream.width, stream.height, stream.pix_fmt = *SIZE, "yuv420p"
        if turned:
            stream.set_display_rotation(turned)
        for number in range(1, count + 1):
            pixels = np.full((SIZE[1], SIZE[0], 3), shade(number), np.uint8)
            pixels[:8, :8] = 255
            container.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
        container.mux(stream.encode())
    return file


def brightness(image: Image.Image) -> float:
    return float(np.asarray(image)[20:-20, 20:-20].mean())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("videos")
    draw(folder / "a.mp4", 48)
    draw(folder / "a.mkv", 48)
    draw(folder / "turned.mp4", 3, turned=90)
    (folder / "cut.mp4").write_bytes((folder / "a.mp4").read_bytes()[:600])
    (folder / "text.mp4").write_text("no video")
    return folder


@pytest.mark.parametrize("name", ["a.mp4", "a.mkv"])
def test_frames_are_found_in_any_order(name: str, folder: Path) -> None:
    seen = measure_video(str(folder / name))
    assert (seen.width, seen.height, seen.frames, seen.rate) == (*SIZE, 48, RATE)
    with av.open(str(folder / name)) as container:
        whole = [frame.to_image() for frame in container.decode(video=0)]
    for number in (*range(1, 49), *range(48, 0, -5), 40, 3, 4, 47, 1, 20):
        image = open_frame(str(folder / name), number, RATE)
        assert image.size == SIZE
        assert abs(brightness(image) - brightness(whole[number - 1])) < 1, number
        assert abs(brightness(image) - shade(number)) < 3, number
    close_video()


def test_video_frames_are_spread_from_first_to_last(folder: Path) -> None:
    """What is shown is spread from the first image to the last."""
    seen = measure_video(str(folder / "a.mp4"))  # 6 s
    assert VideoSampling(1.0, 100).numbers(seen) == [1, 10, 20, 29, 39, 48]
    assert VideoSampling(1.0, 3).numbers(seen) == [1, 25, 48]
    assert VideoSampling(0.01, 3).numbers(seen) == [1]
    assert VideoSampling(1000.0, 1000).numbers(seen) == list(range(1, 49))


def test_video_rotation_follows_file(folder: Path) -> None:
    seen = measure_video(str(folder / "turned.mp4"))
    assert (seen.width, seen.height) == SIZE[::-1]
    image = np.asarray(open_frame(str(folder / "turned.mp4"), 1, RATE))
    assert image[-4, 4].mean() > 200, "the bright corner, counter-clockwise from the upper left"
    assert image[4, 4].mean() < 50


def encoder_of(folder: Path, **changes: Any) -> SampleEncoder:
    return media_encoder(processor_of("qwen2_5_vl"), folder, max_length=4096, **changes)


def warm(folder: Path) -> SampleEncoder:
    """An encoder that has compared the first two rows with what the processor makes of their whole images."""
    encoder = encoder_of(folder)
    for _ in range(2):
        segment_of(encoder, asked("<video>What?", videos=["a.mkv"]), folder)
    return encoder


def segment_of(encoder: SampleEncoder, row: dict[str, Any], folder: Path) -> Any:
    (sample,) = encode_row(encoder, row, folder)
    return sample.segments[0]


def test_video_frames_are_found_in_any_container(folder: Path) -> None:
    """A file gives its frames at its position, in every container format."""
    for place, number in enumerate([1, 25, 48]):
        open_frame(str(folder / "a.mp4"), number, RATE).save(folder / f"a-{place}.png")
    encoder = encoder_of(folder, video_fps=1.0, video_max_frames=3)
    names = [f"a-{place}.png" for place in range(3)]
    expected = segment_of(encoder, asked("Look: <video> What?", videos=[names]), folder)
    content = (folder / "a.mp4").read_bytes()
    uri = f"data:video/mp4;base64,{base64.b64encode(content).decode()}"
    said = [{"type": "text", "text": text} for text in ("Look: ", " What?")]
    ways = [
        asked("Look: <video> What?", videos=["a.mp4"]),
        asked("Look: <video> What?", videos=[{"bytes": content, "path": "x.mp4"}]),
        asked([said[0], {"type": "video", "video": "a.mp4"}, said[1]]),
        asked([said[0], {"type": "video_url", "video_url": {"url": uri}}, said[1]]),
    ]
    processor = MediaProcessor(processor_of("qwen2_5_vl"), encoder.section)
    for row in ways:
        found = segment_of(encoder, row, folder)
        assert found.input_ids.tolist() == expected.input_ids.tolist()
        assert found.weights.tolist() == expected.weights.tolist()
        assert [(each.start, each.length) for each in found.media] == [
            (each.start, each.length) for each in expected.media
        ]
        for mine, file in zip(found.media, expected.media, strict=True):
            assert np.array_equal(np.asarray(processor.read(mine)), np.asarray(Image.open(file.source)))


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("none.mp4", "missing video"),
        ("cut.mp4", "broken video"),
        ("text.mp4", "broken video"),
        ("https://here.example/a.mp4", "video on the web"),
    ],
)
def test_rows_whose_videos_cannot_be_used_say_why(name: str, reason: str, folder: Path) -> None:
    with pytest.raises(Unusable, match=reason):
        segment_of(encoder_of(folder), asked("<video>What?", videos=[name]), folder)


def test_a_body_that_ends_early_is_found_where_all_is_looked_at(folder: Path) -> None:
    whole = (folder / "a.mkv").read_bytes()
    (folder / "early.mkv").write_bytes(whole[: len(whole) // 2])
    row = asked("<video>What?", videos=["early.mkv"])
    assert len(segment_of(warm(folder), row, folder).media) == 12, "the header promises six seconds"
    with pytest.raises(Unusable, match="ends before"):
        segment_of(encoder_of(folder, media_check="decode"), row, folder)


def test_token_count_reads_only_headers_and_first_image(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Headers and the first image are all that is read to count tokens."""
    encoder = warm(folder)
    monkeypatch.setattr("swift.models.media_processor.open_frame", lambda *_: pytest.fail("an image was decoded"))
    assert len(segment_of(encoder, asked("<video>What?", videos=["a.mp4"]), folder).media) == 12


def test_missing_pyav_names_install(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "av", None)
    other = folder / "other.mp4"
    other.write_bytes((folder / "a.mp4").read_bytes())
    with pytest.raises(ModelError, match="PyAV") as raised:
        images_of(Medium(str(other), kind="video"), str(other), VideoSampling(2.0, 32))
    assert raised.value.hint.endswith('core[video]"')


@pytest.mark.full
def test_video_is_trained_and_used_in_inference(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = image_model(tmp_path / "model", "qwen2_5_vl")
    rows = [asked("<video>What happens?", videos=["a.mp4"]), asked("<video>And here?", videos=["turned.mp4"])]
    (folder / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    words = ["sft", "--model", str(model), "--dataset", str(folder / "rows.jsonl"), "--data.cache", str(tmp_path / "c")]
    words += ["--max_steps", "2", "--train_type", "full", "--packing", "true", "--backend.cpu_threads", "1"]
    words += ["--max_length", "512", "--output_dir", str(tmp_path / "runs"), "--logging.run_name", "run"]
    assert swift(words) == 0
    capsys.readouterr()
    (shown,) = tmp_path.glob("runs/*/run/samples.json")
    pieces = json.loads(shown.read_text())["samples"][0]["segments"][0]["pieces"]
    thumbnails = [each["thumbnail"] for each in pieces if "thumbnail" in each]
    assert thumbnails
    assert all(str(each).startswith("data:image/jpeg;base64,") for each in thumbnails)
    # Of this short video, the first image alone is shown.
    first = str(tmp_path / "1.png")
    open_frame(str(folder / "turned.mp4"), 1, RATE).save(first)
    from_video = ["infer", str(model), "--prompt", "What happens?", "--video", str(folder / "turned.mp4")]
    from_images = ["infer", str(model), "--prompt", "What happens?", "--image", first]
    answers = []
    for asking in (from_video, from_images):
        assert swift([*asking, "--max_new_tokens", "8", "--torch_dtype", "float32"]) == 0
        answers.append(capsys.readouterr().out)
    assert answers[0] == answers[1]
