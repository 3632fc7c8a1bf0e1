"""Encoding a whole corpus, in this process or in several, with progress that people can see."""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from swift.data.conversation import Unusable
from swift.data.corpus import Corpus
from swift.data.encode import SampleEncoder
from swift.data.report import DataReport, SourceCount, merge_columns
from swift.data.samples import Encoded
from swift.data.store import StoreWriter, pack_arrays
from swift.errors import DataError

Say = Callable[[str], None]

CHUNK = 512
"""Rows that a worker takes at a time."""
_IN_PROCESS = 4 * CHUNK
"""Up to so many rows, starting workers takes longer than they save."""


@dataclass
class Chunk:
    """What became of some rows."""

    arrays: dict[str, np.ndarray]
    rejected: list[tuple[int, str, str]]
    """Row, reason, detail."""
    turn_by_turn: int
    unused_columns: list[str]
    rows: int


def encode_rows(corpus: Corpus, encoder: SampleEncoder, rows: range) -> Chunk:
    """Encodes some rows of a corpus."""
    samples: list[tuple[int, Encoded]] = []
    rejected: list[tuple[int, str, str]] = []
    turn_by_turn = 0
    unused: list[str] = []
    for row in rows:
        try:
            sample = corpus.sample(row)
            following = corpus.sample_after(row) if corpus.encoding == "unpaired" else None
            pieces = encoder.encode(sample, corpus.place(row), following)
        except Unusable as unusable:
            rejected.append((row, unusable.reason, unusable.detail))
            continue
        samples += [(row, encoded) for encoded in pieces.samples]
        turn_by_turn += pieces.turn_by_turn
        if not sample.extras.keys() <= set(unused):
            unused = merge_columns(unused, sample.extras)
    return Chunk(pack_arrays(samples), rejected, turn_by_turn, unused, len(rows))


def encode_corpus(corpus: Corpus, encoder: SampleEncoder, writer: StoreWriter, *, workers: int, say: Say) -> DataReport:
    """Encodes a corpus into a store, in order, and counts."""
    report = DataReport([SourceCount(part.name, part.count, len(part.rows)) for part in corpus.parts])
    report.ends_turns = encoder.template is None or encoder.template.ends_turns
    with _progress(len(corpus), say) as advance:
        for chunk in _chunks(corpus, encoder, workers or _cores()):
            writer.add(chunk.arrays)
            _count(report, corpus, chunk)
            advance(chunk.rows)
    return report


def _count(report: DataReport, corpus: Corpus, chunk: Chunk) -> None:
    for row, reason, detail in chunk.rejected:
        report.reject(reason, corpus.place(row), detail)
    report.turn_by_turn += chunk.turn_by_turn
    report.unused_columns = merge_columns(report.unused_columns, chunk.unused_columns)
    counts, lengths = chunk.arrays["segment_counts"], chunk.arrays["segment_lengths"]
    segment, token = 0, 0
    for row, count in zip(chunk.arrays["rows"].tolist(), counts.tolist(), strict=True):
        size = int(lengths[segment : segment + count].sum())
        source = report.sources[corpus.part_of(row)[0]]
        source.samples += 1
        source.tokens += size
        source.loss_tokens += int(np.count_nonzero(chunk.arrays["weights"][token : token + size]))
        segment, token = segment + count, token + size


def _chunks(corpus: Corpus, encoder: SampleEncoder, workers: int) -> Iterator[Chunk]:
    ranges = [range(start, min(start + CHUNK, len(corpus))) for start in range(0, len(corpus), CHUNK)]
    can_fork = "fork" in multiprocessing.get_all_start_methods()
    if workers == 1 or len(corpus) <= _IN_PROCESS or not can_fork:
        for rows in ranges:
            yield encode_rows(corpus, encoder, rows)
        return
    # Forked workers share corpus and tokenizer with this process: nothing is sent to them but numbers of rows.
    _shared[:] = [(corpus, encoder)]
    context = multiprocessing.get_context("fork")
    try:
        with ProcessPoolExecutor(min(workers, len(ranges)), mp_context=context, initializer=_quiet) as pool:
            try:
                yield from pool.map(_encode_shared, ranges)
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise
    except BrokenProcessPool as error:
        raise DataError(
            "A process that tokenises was killed, most likely for want of memory.",
            hint="Use fewer of them: --data.workers 1",
        ) from error
    finally:
        _shared.clear()


def _cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


_shared: list[tuple[Corpus, SampleEncoder]] = []


def _quiet() -> None:
    """The tokenizers library must not start threads of its own in a forked process."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"


def _encode_shared(rows: range) -> Chunk:
    corpus, encoder = _shared[0]
    return encode_rows(corpus, encoder, rows)


@contextmanager
def _progress(total: int, say: Say) -> Iterator[Callable[[int], None]]:
    """A bar on a terminal; without one, a line per quarter of a large data set."""
    if not sys.stderr.isatty():
        yield _Quarters(total, say).advance
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("Tokenising"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=total)
        yield lambda rows: bar.advance(task, rows)


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
