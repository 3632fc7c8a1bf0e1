"""Encoding a whole corpus, in this process or in several, with progress that people can see."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import sys
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from swift.data.conversation import Unusable
from swift.data.corpus import Corpus
from swift.data.encode import SampleEncoder
from swift.data.encodings import ReadRow, Sample
from swift.data.report import DataReport, SourceCount, merge_columns
from swift.data.samples import Encoded
from swift.data.sources.rows import first_line
from swift.data.store import Spilled, StoreWriter, pack_arrays
from swift.errors import DataError, SwiftError
from swift.terminal import Say

CHUNK = 512
"""Rows that a worker takes at a time."""
_AHEAD = 4
"""Chunks that are asked of each worker at a time."""
_IN_PROCESS = 4 * CHUNK
"""Up to so many rows, starting workers takes longer than they save."""


@dataclass
class Chunk:
    """Result of encoding a chunk of rows."""

    arrays: dict[str, np.ndarray]
    """The samples; nothing where a worker has spilled them."""
    counts: list[tuple[int, int, int]]
    """Samples, tokens and learned tokens of each data set."""
    rejected: list[tuple[int, str, str]]
    """Row, reason, detail."""
    turn_by_turn: int
    unused_columns: list[str]
    rows: int
    media: dict[str, int] = field(default_factory=dict)
    """Images, videos and sounds, by kind."""
    media_tokens: int = 0
    unused_keys: dict[str, str] = field(default_factory=dict)
    """Keys of messages that the chat template does not write, and where the first of each is."""
    without_reasoning: int = 0
    formats: Counter[str] = field(default_factory=Counter)
    """Usable rows of each format."""


def encode_rows(corpus: Corpus, encoder: SampleEncoder, rows: range) -> Chunk:
    """Encode some rows of a corpus."""
    with _uncollected():
        return _encode_rows(corpus, encoder, rows)


@contextmanager
def _uncollected() -> Iterator[None]:
    """Keep Python from looking for cycles among rows under way: they have next to none, and are freed without it."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _encode_rows(corpus: Corpus, encoder: SampleEncoder, rows: range) -> Chunk:
    understood: list[tuple[int, Sample]] = []
    samples: list[tuple[int, Encoded]] = []
    rejected: list[tuple[int, str, str]] = []
    turn_by_turn = 0
    unused: dict[str, None] = {}
    formats: Counter[str] = Counter()
    reading = _understood(corpus, rows, understood, rejected)
    for number, made in enumerate(encoder.encode_many(reading)):
        row, sample = understood[number]
        if isinstance(made, Unusable):
            rejected.append((row, made.reason, made.detail))
            continue
        samples += [(row, encoded) for encoded in made.samples]
        turn_by_turn += made.turn_by_turn
        if not encoder.encoding.keeps_columns:
            unused |= dict.fromkeys(sample.extras)
        formats[sample.format] += bool(sample.format)
    with_images = encoder.images is not None
    arrays = pack_arrays(samples, encoder.encoding.values, encoder.encoding.token_values, media=with_images)
    held = [each for _, made in samples for segment in made.segments for each in segment.media] if with_images else []
    omissions = encoder.take_omissions()
    return Chunk(
        arrays,
        _counts(corpus, arrays),
        sorted(rejected),
        turn_by_turn,
        list(unused),
        len(rows),
        dict(Counter(each.kind for each in held)),
        sum(each.length for each in held),
        omissions.keys,
        len({corpus.location(row) for row in set(rows) - {row for row, _, _ in rejected}} & omissions.reasoning),
        +formats,
    )


def _understood(
    corpus: Corpus,
    rows: range,
    understood: list[tuple[int, Sample]],
    rejected: list[tuple[int, str, str]],
) -> Iterator[ReadRow]:
    """Read rows as they are asked for, and notes which of them are understood and which are not."""
    for row in rows:
        try:
            sample = corpus.sample(row)
            following = corpus.sample_after(row) if corpus.encoding.needs_following else None
        except Unusable as unusable:
            rejected.append((row, unusable.reason, unusable.detail))
            continue
        understood.append((row, sample))
        yield ReadRow(sample, corpus.location(row), following)


def _counts(corpus: Corpus, arrays: Mapping[str, np.ndarray]) -> list[tuple[int, int, int]]:
    parts = np.array([corpus.part_of(row)[0] for row in arrays["rows"].tolist()], dtype=np.int64)
    of_tokens = np.repeat(np.repeat(parts, arrays["segment_counts"]), arrays["segment_lengths"])
    count = len(corpus.parts)
    learned = of_tokens[arrays["weights"] != 0]
    each = [np.bincount(of, minlength=count).tolist() for of in (parts, of_tokens, learned)]
    return list(zip(*each, strict=True))


def encode_corpus(
    corpus: Corpus, encoder: SampleEncoder, writer: StoreWriter, *, workers: int, say: Say, rows: range | None = None
) -> DataReport:
    """Encode a corpus, or some rows of it, into a store, in order, and counts."""
    rows = range(len(corpus)) if rows is None else rows
    counts = zip(corpus.parts, corpus.counts(rows), strict=True)
    report = DataReport([SourceCount(part.name, count, len(part.rows)) for part, count in counts])
    report.ends_turns = encoder.ends_turns
    with _progress(len(rows), say) as advance:
        for chunk in _chunks(_Work(corpus, encoder, writer), rows, workers or _cores()):
            _count(report, corpus, chunk)
            advance(chunk.rows)
    return report


def _count(report: DataReport, corpus: Corpus, chunk: Chunk) -> None:
    for row, reason, detail in chunk.rejected:
        report.reject(reason, corpus.location(row), detail)
    report.turn_by_turn += chunk.turn_by_turn
    report.count_omissions(chunk.unused_keys, chunk.without_reasoning)
    report.count_formats(chunk.formats)
    report.count_media(chunk.media, chunk.media_tokens)
    report.unused_columns = merge_columns(report.unused_columns, chunk.unused_columns)
    for source, (samples, tokens, loss_tokens) in zip(report.sources, chunk.counts, strict=True):
        source.samples += samples
        source.tokens += tokens
        source.loss_tokens += loss_tokens


class _Work(NamedTuple):
    """All that encoding some rows takes."""

    corpus: Corpus
    encoder: SampleEncoder
    writer: StoreWriter


def _chunks(work: _Work, rows: range, workers: int) -> Iterator[Chunk]:
    """Chunks in order, each written to the store."""
    corpus, encoder, writer = work
    ranges = [rows[start : start + CHUNK] for start in range(0, len(rows), CHUNK)]
    can_fork = "fork" in multiprocessing.get_all_start_methods()
    if workers == 1 or len(rows) <= _IN_PROCESS or not can_fork:
        for some in ranges:
            chunk = encode_rows(corpus, encoder, some)
            writer.add(chunk.arrays)
            yield chunk
        return
    # Forked workers share corpus and tokenizer with this process: nothing is sent to them but numbers of rows, and
    # nothing comes back but counts. The tokens go through files, which this process appends to the store in order.
    _shared[:] = [work]
    context = multiprocessing.get_context("fork")
    count = min(workers, len(ranges))
    try:
        with ProcessPoolExecutor(count, mp_context=context, initializer=_begin_worker) as pool:
            try:
                under_way: deque[Future[tuple[Chunk, Spilled]]] = deque()
                for some in ranges:
                    under_way.append(pool.submit(_encode_shared, some))
                    if len(under_way) > count * _AHEAD:
                        yield _taken(under_way, writer)
                while under_way:
                    yield _taken(under_way, writer)
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise
    except BrokenProcessPool as error:
        raise DataError(
            "A process that tokenises was killed, most likely because memory ran out.",
            hint="Use fewer of them: --data.workers 1",
        ) from error
    finally:
        _shared.clear()


def _taken(under_way: deque[Future[tuple[Chunk, Spilled]]], writer: StoreWriter) -> Chunk:
    chunk, spilled = under_way.popleft().result()
    writer.take(spilled)
    return chunk


def _cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


_shared: list[_Work] = []


def _begin_worker() -> None:
    """Leave Ctrl-C, which reaches every process of a terminal, to the one that waits for the workers, and ends them.

    What was there before the fork is not looked at for cycles: its pages stay shared with the other processes.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.freeze()


def _encode_shared(rows: range) -> tuple[Chunk, Spilled]:
    corpus, encoder, writer = _shared[0]
    try:
        chunk = encode_rows(corpus, encoder, rows)
        spilled = writer.spill(chunk.arrays, str(rows.start))
    except SwiftError:
        raise
    except Exception as error:  # whatever it is, it may not be one that can be sent to another process
        raise DataError(
            f"Tokenising failed between {corpus.location(rows[0])} and {corpus.location(rows[-1])}: "
            f"{type(error).__name__}: {first_line(error)}",
            hint="--data.workers 1 shows where.",
        ) from None
    chunk.arrays = {}
    return chunk, spilled


@contextmanager
def _progress(total: int, say: Say) -> Iterator[Callable[[int], None]]:
    """Show a bar on a terminal; without one, print a line per quarter of a large data set."""
    if not sys.stderr.isatty():
        yield _Quarters(total, say).advance
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("Tokenising"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    # No thread that draws the bar: next to one, no process can be forked safely, nor its memory limited.
    with Progress(*columns, console=Console(stderr=True), transient=True, auto_refresh=False) as bar:
        task = bar.add_task("", total=total)
        yield lambda rows: bar.update(task, advance=rows, refresh=True)


class _Quarters:
    """Says how far it is, four times, when there is enough to do that somebody waits."""

    def __init__(self, total: int, say: Say) -> None:
        self._total = total
        self._say = say
        self._done = 0

    def advance(self, rows: int) -> None:
        before, self._done = self._done, self._done + rows
        if self._total > _IN_PROCESS and 4 * before // self._total < 4 * self._done // self._total:
            self._say(f"Tokenised {self._done:,} of {self._total:,} rows")
