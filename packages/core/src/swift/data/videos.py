"""Videos: which of their images a model is shown, and one of these images at a time.

An image of a video is named by its number, counted from 1, at the rate that the file's header says. Files are read by
the package PyAV.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from swift.data.media import MediaRef, Medium, needed, unusable_unless_readable

if TYPE_CHECKING:
    from PIL.Image import Image

_PATIENCE = 2.0
"""Seconds of video that are decoded rather than jumped over."""
_EARLY = 1.0
"""Seconds by which a video may be shorter than its header says."""
_MICROSECONDS = 1_000_000


@dataclass(frozen=True)
class VideoSampling:
    """Which images of a video a model is shown."""

    fps: float
    """How many of each second."""
    most: int
    """Of a whole video; those of a longer one are further apart."""

    def numbers(self, video: MediaRef) -> list[int]:
        """Return which images of a file, from its first to its last, evenly."""
        count = min(max(1, round(video.frames / video.rate * self.fps)), self.most, video.frames)
        if count == 1:
            return [1]
        return [1 + round(index * (video.frames - 1) / (count - 1)) for index in range(count)]


EVENLY = VideoSampling(2.0, 32)
"""Where nothing is said."""


def images_of(video: Medium, path: str, shown: VideoSampling, *, decode: bool = False) -> list[Medium]:
    """Return the images of a video that is in a file; raise `Unusable` for one that is missing or broken."""
    measured = measure_video(path)
    numbers = shown.numbers(measured)
    if decode:
        with unusable_unless_readable("video", path):
            for number in numbers:
                open_frame(path, number, measured.rate)
    return [replace(video, kind="image", path=path, content=b"", url="", frame=number) for number in numbers]


def measure_video(path: str) -> MediaRef:
    """Return what a video's header says, and its first image, which knows which way up it is.

    Raise `Unusable` for a video that is missing, broken or empty.
    """
    with unusable_unless_readable("video", path):
        size = Path(path).stat().st_size
        width, height, frames, rate = _header(path, size)
    return MediaRef("video", path, width=width, height=height, size=size, frames=frames, rate=rate)


def open_frame(path: str, number: int, rate: float) -> Image:
    """Return one image of a video, upright and in three colours; raise `OSError` or `ValueError` where it is broken.

    The file stays open until another is asked for on this thread, so that the next image is found where this one
    ended.
    """
    reader = getattr(_OPENED, "reader", None)
    if reader is None or reader.path != path or reader.size != Path(path).stat().st_size:
        close_video()
        reader = _OPENED.reader = _Reader(path)
    try:
        return reader.at((number - 1) / rate, 1 / rate)
    except BaseException:
        close_video()
        raise


def close_video() -> None:
    """Close the file that this thread has read last."""
    reader = _OPENED.__dict__.pop("reader", None)
    if reader is not None:
        reader.close()


_OPENED = threading.local()


class _Reader:
    """Finds images of one file by their time."""

    def __init__(self, path: str) -> None:
        self.path, self.size = path, Path(path).stat().st_size
        with _errors():
            self._container = _av().open(path)
            self._stream = _stream(self._container)
            self._start = float((self._stream.start_time or 0) * self._stream.time_base)
            self._frames: Iterator[Any] = self._container.decode(self._stream)
        self._last: Any = None

    def at(self, moment: float, length: float) -> Image:
        """Return the image that is seen at a moment; each is seen for `length` seconds."""
        with _errors():
            if self._is_far(moment, length):
                self._container.seek(round((moment + self._start) * _MICROSECONDS))  # back to one that stands by itself
                self._frames, self._last = self._container.decode(self._stream), None
            while self._time() < moment - length / 2:
                found = next(self._frames, None)
                if found is None:
                    break
                self._last = found
            if self._last is None or self._time() < moment - max(length, _EARLY):
                raise OSError(f"it ends before {moment:.1f} s, which its header promises")
            return _upright(self._last)

    def close(self) -> None:
        self._container.close()

    def _is_far(self, moment: float, length: float) -> bool:
        """Return whether a moment is before what was decoded last, or long after."""
        seen = max(self._time(), 0.0)
        return moment + length / 2 < seen or moment > seen + _PATIENCE

    def _time(self) -> float:
        return -math.inf if self._last is None else float(self._last.time) - self._start


@lru_cache(maxsize=64)
def _header(path: str, size: int) -> tuple[int, int, int, float]:
    """Return width, height, how many images, and how many a second; `size` is there to notice a changed file."""
    with _errors(), _av().open(path) as container:
        stream = _stream(container)
        rate = float(stream.average_rate or stream.guessed_rate or 0)
        frames = stream.frames
        if not frames and container.duration:  # some formats say how long, not how many
            frames = round(container.duration / _MICROSECONDS * rate)
        if not frames or not rate:
            raise ValueError(f"its header of {size} bytes does not say how long it is")
        first = next(container.decode(stream), None)
        if first is None:
            raise ValueError("its first image cannot be decoded")
        first = _upright(first)
    return first.width, first.height, int(frames), rate


@contextmanager
def _errors() -> Iterator[None]:
    """Raise PyAV's errors as `OSError`: some of them are of no other kind than its own."""
    try:
        yield
    except _av().FFmpegError as error:
        raise OSError(str(error)) from None


def _stream(container: Any) -> Any:
    if not container.streams.video:
        raise ValueError("it holds no images")
    return container.streams.video[0]


def _upright(frame: Any) -> Image:
    image: Image = frame.to_image()
    return image.rotate(frame.rotation, expand=True) if frame.rotation else image


def _av() -> Any:
    return needed("av", "Files of videos need the package PyAV", "video")
