"""Encoding a whole corpus, in this process or in several, with progress that people can see."""

from __future__ import annotations

import gc
import json
import multiprocessing
import os
import signal
import sys
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from swift.data.conversation import Unusable
from swift.data.corpus import Corpus
from swift.data.encode import SampleEncoder
from swift.data.encodings import ReadRow, Sample
from swift.data.report import DataReport, SourceCount
from swift.data.samples import Encoded
from swift.data.sources.rows import first_line
from swift.data.store import StoreWriter, hash_of, pack_arrays
from swift.errors import DataError, SwiftError
from swift.terminal import Say

CHUNK = 512
"""Rows that a worker takes at a time."""
_AHEAD = 4
"""Chunks that are asked of each worker at a time."""
_IN_PROCESS = 4 * CHUNK
"""Up to so many rows, starting workers takes longer than they save."""


def cache_key(corpus: Corpus, encoder: SampleEncoder) -> str:
    """Return a hash of all that decides which samples there are: content, tokenizer, template and settings."""
    roots = [] if encoder.images is None else [str(part.root) for part in corpus.parts]
    return hash_of(corpus.fingerprint(), json.dumps([encoder.identity(), roots], sort_keys=True))


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


@_uncollected()
def encode_rows(corpus: Corpus, encoder: SampleEncoder, rows: range) -> tuple[dict[str, np.ndarray], DataReport]:
    """Encode some rows of a corpus into the arrays of a store, and count."""
    understood: list[tuple[int, Sample]] = []
    samples: list[tuple[int, Encoded]] = []
    rejected: dict[int, Unusable] = {}
    counts = zip(corpus.parts, corpus.counts(rows), strict=True)
    report = DataReport([SourceCount(part.name, count, len(part.rows)) for part, count in counts])
    reading = _understood(corpus, rows, understood, rejected)
    for number, made in enumerate(encoder.encode_many(reading)):
        row, sample = understood[number]
        if isinstance(made, Unusable):
            rejected[row] = made
            continue
        samples += [(row, encoded) for encoded in made.samples]
        unused = () if encoder.encoding.keeps_columns else sample.extras
        report.count_usable(sample.format, unused, turn_by_turn=made.turn_by_turn)
    for row in sorted(rejected):
        report.reject(rejected[row].reason, corpus.location(row), rejected[row].detail)
    omissions = encoder.take_omissions()
    report.unused_keys = omissions.keys
    used = {corpus.location(row) for row, _ in understood if row not in rejected}
    report.without_reasoning = len(used & omissions.reasoning)
    if encoder.images is not None:
        held = [each for _, made in samples for segment in made.segments for each in segment.media]
        report.media = dict(Counter(each.kind for each in held))
        report.media_tokens = sum(each.length for each in held)
    arrays = pack_arrays(samples, encoder.columns)
    _count_tokens(report, corpus, arrays)
    return arrays, report


def _understood(
    corpus: Corpus, rows: range, understood: list[tuple[int, Sample]], rejected: dict[int, Unusable]
) -> Iterator[ReadRow]:
    """Read rows as they are asked for, and note which of them are understood and which are not."""
    for row in rows:
        try:
            sample = corpus.sample(row)
            following = corpus.sample_after(row) if corpus.encoding.needs_following else None
        except Unusable as unusable:
            rejected[row] = unusable
            continue
        understood.append((row, sample))
        yield ReadRow(sample, corpus.location(row), following)


def _count_tokens(report: DataReport, corpus: Corpus, arrays: Mapping[str, np.ndarray]) -> None:
    """Count samples, tokens and learned tokens of each data set."""
    parts = np.array([corpus.part_of(row)[0] for row in arrays["rows"].tolist()], dtype=np.int64)
    of_tokens = np.repeat(np.repeat(parts, arrays["segment_counts"]), arrays["segment_lengths"])
    learned = of_tokens[arrays["weights"] != 0]
    each = (np.bincount(of, minlength=len(corpus.parts)).tolist() for of in (parts, of_tokens, learned))
    for source, counts in zip(report.sources, zip(*each, strict=True), strict=True):
        source.samples, source.tokens, source.loss_tokens = counts


def encode_corpus(
    corpus: Corpus, encoder: SampleEncoder, writer: StoreWriter, *, say: Say, rows: range | None = None
) -> DataReport:
    """Encode a corpus, or some rows of it, into a store, in order, and count."""
    rows = range(len(corpus)) if rows is None else rows
    report = DataReport([SourceCount(part.name, 0, len(part.rows)) for part in corpus.parts])
    report.ends_turns = encoder.ends_turns
    with _progress(len(rows), say) as advance:
        for part in _parts(corpus, encoder, writer, rows):
            report.add(part)
            advance(part.rows)
    return report


def _parts(corpus: Corpus, encoder: SampleEncoder, writer: StoreWriter, rows: range) -> Iterator[DataReport]:
    """Yield the reports on chunks of rows in order, each written to the store."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    workers = encoder.section.workers or cores
    ranges = [rows[start : start + CHUNK] for start in range(0, len(rows), CHUNK)]
    can_fork = "fork" in multiprocessing.get_all_start_methods()
    if workers == 1 or len(rows) <= _IN_PROCESS or not can_fork:
        for some in ranges:
            arrays, report = encode_rows(corpus, encoder, some)
            writer.add(arrays)
            yield report
        return
    # Forked workers share corpus and tokenizer with this process: nothing is sent to them but numbers of rows, and
    # nothing comes back but counts. The tokens go through files, which this process appends to the store in order.
    context = multiprocessing.get_context("fork")
    count = min(workers, len(ranges))
    try:
        with ProcessPoolExecutor(count, context, _begin_worker, (corpus, encoder, writer)) as pool:
            try:
                under_way: deque[Future[tuple[DataReport, Path]]] = deque()
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


def _taken(under_way: deque[Future[tuple[DataReport, Path]]], writer: StoreWriter) -> DataReport:
    report, spilled = under_way.popleft().result()
    writer.take(spilled)
    return report


_shared: list[tuple[Corpus, SampleEncoder, StoreWriter]] = []
"""In a worker: what it shares with the process that it was forked from."""


def _begin_worker(corpus: Corpus, encoder: SampleEncoder, writer: StoreWriter) -> None:
    """Leave Ctrl-C, which reaches every process of a terminal, to the one that waits for the workers, and ends them.

    What was there before the fork is not looked at for cycles: its pages stay shared with the other processes.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.freeze()
    _shared.append((corpus, encoder, writer))


def _encode_shared(rows: range) -> tuple[DataReport, Path]:
    corpus, encoder, writer = _shared[0]
    try:
        arrays, report = encode_rows(corpus, encoder, rows)
        return report, writer.spill(arrays, str(rows.start))
    except SwiftError:
        raise
    except Exception as error:  # whatever it is, it may not be one that can be sent to another process
        raise DataError(
            f"Tokenising failed between {corpus.location(rows[0])} and {corpus.location(rows[-1])}: "
            f"{type(error).__name__}: {first_line(error)}",
            hint="--data.workers 1 shows where.",
        ) from None


@contextmanager
def _progress(total: int, say: Say) -> Iterator[Callable[[int], None]]:
    """Show a bar on a terminal; without one, print a line per quarter of a large data set."""
    if not sys.stderr.isatty():
        done = 0

        def quarters(rows: int) -> None:
            nonlocal done
            before, done = done, done + rows
            if total > _IN_PROCESS and 4 * before // total < 4 * done // total:
                say(f"Tokenised {done:,} of {total:,} rows")

        yield quarters
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("Tokenising"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    # No thread that draws the bar: next to one, no process can be forked safely, nor its memory limited.
    with Progress(*columns, console=Console(stderr=True), transient=True, auto_refresh=False) as bar:
        task = bar.add_task("", total=total)
        yield lambda rows: bar.update(task, advance=rows, refresh=True)
