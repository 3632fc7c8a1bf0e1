"""Images are decoded while the step before runs, and never for steps that were made before."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from image_runs import ALL, image_folder
from image_runs import trained_on_images as trained
from image_vectors import GROUPS, files, trained_on_vectors
from tiny_images import image_model, processor_of

from swift.config.sections import DataSection
from swift.contracts import StepRecord
from swift.data.media import MediaRef
from swift.models.decoding import MediaDecoder
from swift.models.media_processor import MediaProcessor
from swift.train.loop import Loop

FIRST, SECOND, THIRD = ["0.png", "1.png", "2.png", "3.png"], ["0.png", "1.png"], ["1.png"]
"""The images of each step of these runs."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return image_folder(tmp_path)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return image_model(tmp_path_factory.mktemp("qwen"), "qwen2_5_vl")


class Opened:
    """Which images were opened, and on which threads."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.threads: set[str] = set()
        self.changed = threading.Condition()

    def count(self, wanted: int) -> bool:
        with self.changed:
            return self.changed.wait_for(lambda: len(self.names) >= wanted, timeout=60)


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Opened:
    seen = Opened()
    original: Callable[..., Any] = MediaProcessor.open

    def noted(self: MediaProcessor, each: MediaRef) -> Any:
        image = original(self, each)
        with seen.changed:
            seen.names.append(Path(each.source).name)
            seen.threads.add(threading.current_thread().name.rpartition("_")[0])
            seen.changed.notify_all()
        return image

    monkeypatch.setattr(MediaProcessor, "open", noted)
    return seen


def test_the_next_step_is_decoded_while_a_step_runs_and_once(
    folder: Path, model: Path, opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = trained(model, folder, "plain", {**ALL, "data.decode_threads": 0})
    opened.names.clear()  # data are tokenised now, which decodes a few
    opened.threads.clear()
    tell: Callable[..., None] = Loop.tell_observers

    def wait_for_the_next_step(self: Loop, record: StepRecord) -> None:
        if record.step == 1:  # nobody has asked for the images of step 2
            assert opened.count(len(FIRST) + len(SECOND))
        tell(self, record)

    monkeypatch.setattr(Loop, "tell_observers", wait_for_the_next_step)
    ahead = trained(model, folder, "ahead", {**ALL, "data.decode_threads": 1})
    assert [sorted(opened.names[:4]), sorted(opened.names[4:6]), opened.names[6:]] == [FIRST, SECOND, THIRD]
    assert opened.threads == {"swift-images"}
    assert ahead.losses == plain.losses
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("swift-images")]


@pytest.mark.full
def test_resuming_decodes_nothing_of_the_steps_before(folder: Path, model: Path, opened: Opened) -> None:
    whole = trained(model, folder, "whole", {"checkpoint.save_steps": 2, "checkpoint.save_last": True})
    opened.names.clear()
    resumed = {"checkpoint.resume": str(whole.folder / "checkpoint-2"), "checkpoint.save_last": True}
    again = trained(model, folder, "again", resumed)
    assert opened.names == THIRD
    assert again.losses == whole.losses[2:]


@pytest.mark.full
def test_a_step_that_asks_twice_decodes_once(folder: Path, model: Path, opened: Opened) -> None:
    settings = {"train.micro_batch": 2, "train.max_steps": 1}
    first = trained_on_vectors(model, folder, "first", settings)
    opened.names.clear()
    again = trained_on_vectors(model, folder, "again", settings)
    assert sorted(opened.names) == sorted(
        name for query, *sides in GROUPS[:4] for text in (query, *sides[0], *sides[1]) for name in files(text)
    )
    assert again.losses == first.losses


def test_memory_bounds_what_is_kept_for_the_next_pass(tmp_path: Path, opened: Opened) -> None:
    references = []
    for number in range(2):
        name = tmp_path / f"{number}.png"
        _white(name, 200)
        references.append([MediaRef("image", str(name), 0, 1, 200, 200, name.stat().st_size)])
    images = MediaProcessor(processor_of("llava"), DataSection())
    for megabytes, times in ((1, 2), (8, 1)):
        opened.names.clear()
        decoder = MediaDecoder(images, threads=1, megabytes=megabytes)
        decoder.announce(references * 2)
        assert all(decoder.take(held) is not None for held in references * 2)
        decoder.close()
        assert sorted(opened.names) == ["0.png"] * times + ["1.png"] * times


def test_memory_bounds_what_is_decoded_ahead(tmp_path: Path, opened: Opened) -> None:
    """Each of the images takes more than half of a MiB as inputs: one is held at a time."""
    references = []
    for number in range(3):
        name = tmp_path / f"{number}.png"
        _white(name, 200)
        references.append(MediaRef("image", str(name), 0, 1, 200, 200, name.stat().st_size))
    images = MediaProcessor(processor_of("llava"), DataSection())
    decoder = MediaDecoder(images, threads=1, megabytes=1)
    decoder.announce([[each] for each in references])
    assert opened.count(1)
    first = decoder.take(references[:1])
    assert first is not None
    torch.testing.assert_close(
        first["pixel_values"], images.inputs([("image", images.open(references[0]))])["pixel_values"]
    )
    assert decoder.take(references[2:]) is None  # not begun: whoever asks decodes it
    assert decoder.take(references[1:2]) is not None
    decoder.close()
    assert opened.names.count("2.png") == 0


def test_undecodable_image_is_left_to_reader(tmp_path: Path) -> None:
    """An image that cannot be decoded ahead is left to the reader."""
    images = MediaProcessor(processor_of("llava"), DataSection())
    decoder = MediaDecoder(images, threads=1, megabytes=1)
    gone = MediaRef("image", str(tmp_path / "gone.png"), 0, 1, 56, 56, 10)
    decoder.announce([[gone]])
    assert decoder.take([gone]) is None
    decoder.close()


def _white(file: Path, side: int) -> None:
    from PIL import Image

    Image.new("RGB", (side, side), "white").save(file)
