"""Sounds of rows: what their headers say, their samples at another rate, and the tokens that they become."""

from __future__ import annotations

import base64
import io
import wave
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from encode_row import asked, encode_row, media_encoder
from rich.console import Console
from tiny_images import processor_of, sound_files

from swift.data.audio import length_at, measure_audio, open_audio, resampled
from swift.data.conversation import Unusable
from swift.data.encodings import encoding_of
from swift.data.preview import preview
from swift.data.samples import Encoded, Segment

LENGTHS = [0.5, 1.3]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sounds")
    sound_files(folder, LENGTHS)
    return folder


def written(path: Path, values: np.ndarray, *, width: int, rate: int = 8000) -> str:
    """Write values from -1 to 1, [samples, voices], as whole numbers of some bytes."""
    largest = 2 ** (8 * width - 1) - 1
    whole = np.round(values * largest).astype(np.int64)
    if width == 1:
        whole += 128
    bytes_of_each = whole.astype("<i8").view(np.uint8).reshape(*values.shape, 8)[..., :width]
    with wave.open(str(path), "wb") as file:
        file.setparams((values.shape[1], width, rate, 0, "NONE", ""))
        file.writeframes(bytes_of_each.tobytes())
    return str(path)


def encoded(row: dict[str, Any], folder: Path, kind: str = "qwen2_audio") -> Segment:
    ((segment,),) = (each.segments for each in encode_row(media_encoder(processor_of(kind), folder), row, folder))
    return segment


@pytest.mark.parametrize("width", [1, 2, 3, 4])
def test_integer_audio_keeps_written_values(tmp_path: Path, width: int) -> None:
    """Whole numbers of any width are the values that were written."""
    values = np.random.RandomState(0).uniform(-1, 1, (500, 2))
    path = written(tmp_path / "a.wav", values, width=width)
    seen = measure_audio(path, decode=True)
    assert (seen.frames, seen.rate) == (500, 8000)
    np.testing.assert_allclose(open_audio(path, 8000), values.mean(1), atol=2.0 / 2 ** (8 * width - 1) + 1e-6)


@pytest.mark.parametrize(("own", "rate"), [(44100, 16000), (8000, 16000), (48000, 16000), (16000, 22050)])
def test_a_tone_at_another_rate_is_the_same_tone(own: int, rate: int) -> None:
    def tone(at: int) -> np.ndarray:
        return np.sin(2 * np.pi * 440 * np.arange(at) / at)

    made = resampled(tone(own), own, rate)
    assert len(made) == length_at(own, own, rate) == rate
    inner = slice(rate // 50, -rate // 50)  # at its ends a sound begins from nothing
    np.testing.assert_allclose(made[inner], tone(rate)[inner], atol=2e-3)


def test_what_a_lower_rate_cannot_hold_is_left_out() -> None:
    high = np.sin(2 * np.pi * 15000 * np.arange(44100) / 44100)
    assert np.abs(resampled(high, 44100, 16000)[200:-200]).max() < 0.01


def test_tokens_of_rows_are_those_of_the_processor(folder: Path) -> None:
    segment = encoded(asked("Hear <audio> and <audio>.", audios=["1.wav", "0.wav"]), folder)
    processor = processor_of("qwen2_audio")
    said: list[dict[str, Any]] = [{"type": "text", "text": text} for text in ("Hear ", " and ", ".")]
    parts = [said[0], {"type": "audio"}, said[1], {"type": "audio"}, said[2]]
    messages = [{"role": "user", "content": parts}, {"role": "assistant", "content": "red"}]
    text = processor.apply_chat_template(messages, tokenize=False)
    sounds = []
    for name in ("1.wav", "0.wav"):
        with wave.open(str(folder / name), "rb") as file:
            sounds.append(np.frombuffer(file.readframes(file.getnframes()), "<i2") / np.float32(32768))
    expected = processor(text=[text], audio=sounds, sampling_rate=16000, add_special_tokens=False)["input_ids"][0]
    assert segment.input_ids.tolist() == list(expected)
    heard = processor.tokenizer.convert_tokens_to_ids("<|AUDIO|>")
    assert not segment.weights[segment.input_ids == heard].any()
    assert [each.kind for each in segment.media] == ["audio", "audio"]
    assert [each.frames / each.rate for each in segment.media] == LENGTHS[::-1]


def test_preview_shows_audio_duration(folder: Path) -> None:
    segment = encoded(asked("<audio>?", audios=["1.wav"]), folder)
    console = Console(file=io.StringIO(), width=400)
    console.print(preview(processor_of("qwen2_audio").tokenizer, Encoded(0, (segment,)), encoding_of("chat")))
    shown = console.file.getvalue()  # type: ignore[attr-defined]  # a StringIO
    assert f"[audio 1.3 s → {segment.media[0].length} tokens: {folder / '1.wav'}]" in shown


def test_all_audio_notations_give_same_row(folder: Path) -> None:
    content = (folder / "0.wav").read_bytes()
    uri = f"data:audio/wav;base64,{base64.b64encode(content).decode()}"
    question = {"type": "text", "text": "?"}
    ways = [
        asked("<audio>?", audios=["0.wav"]),
        asked("?", audio=str(folder / "0.wav")),
        asked("<audio>?", audios=[{"bytes": content, "path": None}]),
        asked("<audio>?", audios=[uri]),
        asked([{"type": "audio", "path": "0.wav"}, question]),
        asked([{"type": "audio_url", "audio_url": {"url": uri}}, question]),
        asked([{"type": "input_audio", "input_audio": {"data": uri.partition(",")[2], "format": "wav"}}, question]),
    ]
    first, *others = (encoded(way, folder).input_ids.tolist() for way in ways)
    assert all(other == first for other in others)


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (asked("<audio> and <audio>", audios=["0.wav"]), "audio clips do not match"),
        (asked([{"type": "audio"}, {"type": "text", "text": "?"}]), "no audio clips"),
        (asked("<audio>", audios=["none.wav"]), "missing audio clip"),
        (asked("<audio>", audios=["cut.wav"]), "broken audio clip"),
        (asked("<audio>", audios=["empty.wav"]), "broken audio clip"),
        (asked("<audio>", audios=["long.wav"]), "reads only the first 2 s of it"),
        (asked("<audio>", audios=["https://here.example/a.wav"]), "audio clip on the web"),
        (asked("<audio>", audios=[7]), "an audio clip is a number"),
        (asked("<audio>say <|AUDIO|>", audios=["0.wav"]), "own token"),
        (asked("<image>what?", images=["a.png"]), "the model does not accept images"),
    ],
)
def test_unusable_audio_reports_reason(row: dict[str, Any], reason: str, folder: Path) -> None:
    (folder / "cut.wav").write_bytes((folder / "0.wav").read_bytes()[:5000])
    (folder / "empty.wav").write_bytes(b"")
    written(folder / "long.wav", np.zeros((5000, 1)), width=2, rate=2000)
    with pytest.raises(Unusable, match=reason):
        encoded(row, folder)
