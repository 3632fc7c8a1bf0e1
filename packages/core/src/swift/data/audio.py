"""Audio files: headers, and samples mixed down to mono at the sampling rate of a model.

WAV files of whole numbers are read by Python itself, everything else by the package soundfile.
"""

from __future__ import annotations

import math
import wave
from pathlib import Path
from typing import Any

import numpy as np

from swift.data.conversation import Unusable
from swift.data.media import MediaRef, needed, unusable_unless_readable

_SHORT = "it is shorter than its header declares"
_CROSSINGS = 6
"""Zeros of the sinc function on either side that a resampled value is made of."""
_CUT = 0.99
"""Where the filter cuts, as a part of the lower rate's half."""
_WIDEST = 4
"""Bytes of a whole number that are read."""
_RATES = range(1_000, 1_000_001)
"""Sample rates that a file may have. At a lower one, a small file would be hours long."""
_FILTER = 1 << 24
"""Values that a filter from one rate to another may have: 22254 to 16000 needs 90 million, 44100 a hundred thousand."""


def measure_audio(path: str, *, decode: bool = False) -> MediaRef:
    """Return the sizes in the header of an audio file; with `decode` all of it is read.

    Raise `Unusable` for one that is missing, broken or empty.
    """
    with unusable_unless_readable("audio", path):
        frames, rate = _header(path)
        if rate not in _RATES:
            raise ValueError(f"its header has the sample rate {rate} Hz, but 1000 to 1000000 are valid")
        if decode:
            _samples(path)
        size = Path(path).stat().st_size
    if not frames:
        raise Unusable("broken audio clip", f"{path} has no samples")
    return MediaRef("audio", path, size=size, frames=frames, rate=float(rate))


def open_audio(path: str, rate: int) -> np.ndarray:
    """Return the samples of a file as mono float32 at this rate; raise `OSError` or `ValueError` where it is broken."""
    samples, own = _samples(path)
    return resampled(samples.mean(axis=1, dtype=np.float32), own, rate)


def length_at(frames: int, own: float, rate: int) -> int:
    """Return how many samples audio has at another rate; raise `ValueError` where the rates do not go together."""
    step, phases = _steps(round(own), rate)
    if step * phases > _FILTER:
        raise ValueError(
            f"its sample rate of {round(own)} Hz cannot be converted to the model's {rate} Hz. Convert the file first, "
            f"for example with ffmpeg -i FILE -ar {rate} NEW.wav"
        )
    return math.ceil(frames * rate / round(own))


def _steps(own: int, rate: int) -> tuple[int, int]:
    """Return two rates without what they have in common."""
    common = math.gcd(own, rate)
    return own // common, rate // common


def resampled(samples: np.ndarray, own: int, rate: int) -> np.ndarray:
    """Return samples at another rate: each value is a windowed sum of sincs around its moment."""
    if own == rate:
        return samples.astype(np.float32)
    length = length_at(len(samples), own, rate)
    step, phases = _steps(own, rate)
    cut = min(step, phases) * _CUT
    width = math.ceil(_CROSSINGS * step / cut)
    moments = np.arange(-width, width + step)[None] / step - np.arange(phases)[:, None] / phases
    angles = np.clip(moments * cut, -_CROSSINGS, _CROSSINGS)
    kernel = np.sinc(angles) * np.cos(angles * np.pi / _CROSSINGS / 2) ** 2 * cut / step
    padded = np.pad(samples.astype(np.float32), (width, width + step))
    windows = np.lib.stride_tricks.sliding_window_view(padded, 2 * width + step)[::step]
    made: np.ndarray = (windows @ kernel.T.astype(np.float32)).reshape(-1)[:length]
    return made


def _header(path: str) -> tuple[int, int]:
    """Return how many samples a voice of a file has, and how many a second."""
    try:
        with wave.open(path, "rb") as file:
            frames = file.getnframes()
            if file.getsampwidth() > _WIDEST:
                raise ValueError(f"its samples have {8 * file.getsampwidth()} bits")
            if Path(path).stat().st_size < frames * file.getnchannels() * file.getsampwidth():
                raise ValueError(_SHORT)
            return frames, file.getframerate()
    except (wave.Error, EOFError):
        info = _soundfile(path).info(path)
        return int(info.frames), int(info.samplerate)


def _samples(path: str) -> tuple[np.ndarray, int]:
    """Return the samples of all voices, [samples, voices] from -1 to 1, and how many there are a second."""
    try:
        with wave.open(path, "rb") as file:
            width, voices, rate = file.getsampwidth(), file.getnchannels(), file.getframerate()
            count = file.getnframes()
            content = file.readframes(count)
    except (wave.Error, EOFError):
        try:
            samples, rate = _soundfile(path).read(path, dtype="float32", always_2d=True)
        except RuntimeError as error:  # soundfile's own are its kin
            raise OSError(str(error)) from None
        return samples, int(rate)
    if len(content) != count * voices * width:
        raise ValueError(_SHORT)
    return _as_floats(content, width).reshape(-1, voices), rate


def _as_floats(content: bytes, width: int) -> np.ndarray:
    if width == 1:  # without a sign, as WAV has it
        return (np.frombuffer(content, np.uint8).astype(np.float32) - 128) / 128
    if width == 3:  # put into the upper three of four bytes
        whole = np.zeros((len(content) // 3, 4), np.uint8)
        whole[:, 1:] = np.frombuffer(content, np.uint8).reshape(-1, 3)
        return whole.view("<i4")[:, 0].astype(np.float32) / 2**31
    return np.frombuffer(content, f"<i{width}").astype(np.float32) / np.float32(2 ** (8 * width - 1))


def _soundfile(path: str) -> Any:
    if Path(path).stat().st_size == 0:
        raise ValueError("the file is empty")
    what = f"{path} is not a WAV file of integers, and other formats need the package soundfile"
    return needed("soundfile", what, "audio")
