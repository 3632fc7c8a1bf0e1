"""Decode images and audio on threads of its own while a step runs, so that the next step need not wait for them."""

from __future__ import annotations

import copy
import threading
import time
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING

from swift.data.media import MediaRef
from swift.models.media_processor import MediaProcessor

if TYPE_CHECKING:
    import torch

_BYTES_OF_A_PIXEL = 24
"""Of an encoder's input: three colours in float32, twice for models that take an image for two frames of a video."""
_BYTES_OF_A_SAMPLE = 8
"""Of a sound: itself in float32, and less of its spectrum."""
_Key = tuple[MediaRef, ...]


class MediaDecoder:
    """Makes the inputs of encoders for micro-batches that are announced, within a budget of memory."""

    def __init__(self, images: MediaProcessor, *, threads: int, megabytes: int) -> None:
        """Take a model's processor; each thread works with a copy of its own."""
        self._images = images
        self._threads = threads
        self._budget = megabytes * 2**20
        self._own = threading.local()
        self._pool: ThreadPoolExecutor | None = None
        self._waiting: deque[_Key] = deque()
        self._begun: dict[_Key, Future[dict[str, torch.Tensor]]] = {}
        self._uses: Counter[_Key] = Counter()
        """How often each micro-batch will still be asked for."""
        self._held = 0
        self.seconds = 0.0
        """Time for which steps waited for their images."""

    def announce(self, micro_batches: Iterable[Sequence[MediaRef]]) -> None:
        """Name the images of all micro-batches that will be asked for next, in this order; others are forgotten.

        A micro-batch that is named twice will be asked for twice, and is kept in between as far as memory goes.
        """
        if not self._threads or not self._budget:
            return
        upcoming = self._uses = Counter(tuple(held) for held in micro_batches if held)
        for key in [key for key in self._begun if key not in upcoming]:
            self._begun.pop(key).cancel()
            self._held -= _bytes_of(key)
        self._waiting = deque(key for key in upcoming if key not in self._begun)
        self._begin()

    def take(self, held: Sequence[MediaRef]) -> dict[str, torch.Tensor] | None:
        """Return what was made of these images ahead; None where the caller has to make it, and see why.

        That is so for images that were not announced, and for those that could not be decoded.
        """
        key = tuple(held)
        future = self._begun.get(key)
        self._uses[key] -= 1
        if future is None:
            if key in self._waiting and self._uses[key] <= 0:
                self._waiting.remove(key)
            return None
        failure = future.exception()  # waits for it
        if self._uses[key] <= 0 or failure is not None or self._lack_memory():
            del self._begun[key]
            self._held -= _bytes_of(key)
            if self._uses[key] > 0 and failure is None:
                self._waiting.append(key)  # to be made again, after those that are asked for sooner
            self._begin()
        return None if failure is not None else future.result()

    def _lack_memory(self) -> bool:
        """Return whether something that is announced cannot begin while all this is held."""
        return bool(self._waiting) and self._held + _bytes_of(self._waiting[0]) > self._budget

    def waited(self, began: float) -> None:
        """Count what a step has waited since a moment of `time.monotonic`."""
        self.seconds += time.monotonic() - began

    def close(self) -> None:
        """Forget what was announced, and end the threads."""
        self._waiting.clear()
        self._uses.clear()
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
            self._pool = None
        self._begun.clear()
        self._held = 0

    def _begin(self) -> None:
        """Begin with what is announced, as far as memory goes: the first of it always."""
        while self._waiting and (not self._held or self._held + _bytes_of(self._waiting[0]) <= self._budget):
            key = self._waiting.popleft()
            if self._pool is None:
                self._pool = ThreadPoolExecutor(self._threads, thread_name_prefix="swift-images")
            self._held += _bytes_of(key)
            self._begun[key] = self._pool.submit(self._made, key)

    def _made(self, key: _Key) -> dict[str, torch.Tensor]:
        if not hasattr(self._own, "images"):
            self._own.images = copy.deepcopy(self._images)  # tokenizers cannot be asked by two threads at a time
        images: MediaProcessor = self._own.images
        return images.inputs([(each.kind, images.read(each)) for each in key])


def _bytes_of(key: _Key) -> int:
    """Return about how much memory the inputs take, by the sizes that headers say."""
    return sum(
        each.width * each.height * _BYTES_OF_A_PIXEL + (each.frames * _BYTES_OF_A_SAMPLE if each.kind == "audio" else 0)
        for each in key
    )
