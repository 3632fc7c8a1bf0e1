"""`samples.json`: the same samples, token for token, that the terminal shows."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from named_encodings import encoding_of
from PIL import Image
from rich.console import Console

from swift.config.sections import DataSection
from swift.data.media import MediaRef
from swift.data.pipeline import PreparedData, prepare_data
from swift.data.preview import preview
from swift.data.samples import Encoded, Segment
from swift.terminal import say_nothing
from swift.train.sample_file import MOST_TOKENS, SAMPLES_FILE, SHOWN, write_samples
from swift_testing.tokenizer import byte_tokenizer

TOKENIZER = byte_tokenizer()


def written(data: Any, encoding: str, folder: Path) -> dict[str, Any]:
    job = SimpleNamespace(
        data=data,
        objective=SimpleNamespace(encoding=encoding_of(encoding)),
        source=SimpleNamespace(tokenizer=TOKENIZER),
        run=SimpleNamespace(folder=folder),
    )
    write_samples(job)  # type: ignore[arg-type]  # as much of a job as it needs
    assert [path.name for path in folder.glob("*samples*")] == [SAMPLES_FILE]
    return json.loads((folder / SAMPLES_FILE).read_text())  # type: ignore[no-any-return]


def prepared(rows: list[dict[str, Any]], encoding: str, **section: Any) -> PreparedData:
    read = encoding_of(encoding)
    return prepare_data(DataSection(**section), TOKENIZER, encoding=read, seed=1, say=say_nothing, rows=rows)


def in_terminal(encoded: Encoded, encoding: str) -> str:
    out = io.StringIO()
    Console(file=out, width=10_000).print(preview(TOKENIZER, encoded, encoding_of(encoding)))
    return out.getvalue()


def test_sample_file_matches_encoded_texts_and_masks(tmp_path: Path) -> None:
    """Samples have the texts and masks of the encoded ones and of the terminal."""
    rows = [{"prompt": f"Größe {number}?", "chosen": "yes ✓", "rejected": "no"} for number in range(5)]
    data = prepared(rows, "preference")
    content = written(data, "preference", tmp_path)
    assert data.train is not None
    assert len(content["samples"]) == 5
    for told, encoded in zip(content["samples"], (data.train.samples[index] for index in range(5)), strict=True):
        assert told["place"] == data.train.location(encoded.sample_id)
        screen = in_terminal(encoded, "preference")
        marked = re.findall(r"⟦(.*?)⟧", screen, re.DOTALL)
        assert "".join(
            piece["text"] for each in told["segments"] for piece in each["pieces"] if piece["weight"]
        ) == "".join(mark for mark in marked if mark.strip())
        for segment, own in zip(told["segments"], encoded.segments, strict=True):
            pieces = segment["pieces"]
            assert [token for piece in pieces for token in piece["ids"]] == own.input_ids.tolist()
            weights = [piece["weight"] for piece in pieces for _ in piece["ids"]]
            assert weights == own.weights.tolist()
            assert segment["learned"] == np.count_nonzero(own.weights)
            assert " ".join(map(str, own.input_ids.tolist())) in screen


def test_skipped_samples_are_counted_by_reason_with_example(tmp_path: Path) -> None:
    """Skipped samples are counted by reason, with the first of each."""
    rows = [
        {"prompt": "q", "completion": "a"},
        {"prompt": "q", "completion": "a" * 90},
        {"prompt": "q", "completion": "b" * 99},
    ]
    content = written(prepared(rows, "chat", max_length=60), "chat", tmp_path)
    (told,) = content["left_out"]
    assert told["count"] == 2
    assert "row 2" in told["first"]
    assert len(content["samples"]) == 1
    assert content["sources"][0]["samples"] == 1


def test_only_the_first_samples_are_written_and_few_of_long_ones(tmp_path: Path) -> None:
    short = [{"prompt": "q", "completion": "a"}] * (SHOWN + 9)
    assert len(written(prepared(short, "chat"), "chat", tmp_path)["samples"]) == SHOWN
    long = [{"prompt": "q", "completion": "a" * (MOST_TOKENS // 2)}] * 4
    assert len(written(prepared(long, "chat", max_length=MOST_TOKENS), "chat", tmp_path)["samples"]) == 1


def test_images_are_small_and_paths_omit_folders(tmp_path: Path) -> None:
    """Images are small and their files are not named with their folders."""
    Image.new("RGB", (900, 300), "red").save(tmp_path / "big.png")
    image = MediaRef("image", str(tmp_path / "big.png"), start=1, length=6, width=900, height=300)
    lost = MediaRef("image", str(tmp_path / "gone.png"), start=8, length=2)
    segment = Segment(np.arange(65, 77, dtype=np.int32), np.zeros(12, np.float32), media=(image, lost))
    samples = [Encoded(0, (segment,))]
    report = SimpleNamespace(sources=[], rejected={})
    data = SimpleNamespace(
        train=SimpleNamespace(samples=samples, location=lambda _: "row 1"), stream=None, report=report
    )
    (sample,) = written(data, "chat", tmp_path)["samples"]
    first, shown, between, gone, last = sample["segments"][0]["pieces"]
    assert [piece["ids"] for piece in (first, between, last)] == [[65], [72], [75, 76]]
    assert shown["image"] == "big.png"
    assert shown["thumbnail"].startswith("data:image/jpeg;base64,")
    assert len(shown["thumbnail"]) < 5000
    assert gone["thumbnail"] is None
