"""From what the user named to encoded samples: read, understood, tokenised once and cached."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from swift.config.incompatibilities import unsplit_stream
from swift.config.sections import DataSection
from swift.data.corpus import Corpus, cache_folder, corpus_of, open_corpus
from swift.data.encode import SampleEncoder
from swift.data.encode_corpus import cache_key, encode_corpus
from swift.data.encodings import Encoding, encoding_of
from swift.data.media_tokens import MediaRules, MediaTokens
from swift.data.rendering import template_location
from swift.data.report import DataReport
from swift.data.schedules.epochs import shuffler
from swift.data.shards import check_identity
from swift.data.store import SampleSet, Store, StoredSamples, StoreWriter, open_store
from swift.data.streaming import SampleStream
from swift.data.tokenised import JoinedStore, tokenised_among, tokenised_corpus
from swift.data.videos import VideoSampling
from swift.errors import ConfigError, DataError, SwiftError, UnsupportedLayout, UsageError
from swift.terminal import Say


@dataclass(frozen=True)
class Prepared:
    """One encoded data set, and the rows that it was made of."""

    samples: SampleSet
    report: DataReport
    corpus: Corpus
    rows: np.ndarray | range
    """Rows of the corpus that belong to it; all of them take no memory."""
    store: StoredSamples

    def location(self, sample_id: int) -> str:
        """Return where the row stands that a sample was made of, for people: `train.jsonl:17`.

        A schedule that makes samples of its own may number them otherwise: then it is the number.
        """
        if not 0 <= sample_id < len(self.store):
            return f"sample {sample_id}"
        return self.corpus.location(int(self.store.rows[sample_id]))

    def write_rows(self, path: Path) -> None:
        """Its rows as they were read, one JSON object per line."""
        with path.open("w", encoding="utf-8") as file:
            for row in self.rows:
                file.write(json.dumps(self.corpus.row(int(row)), ensure_ascii=False, default=str) + "\n")


@dataclass(frozen=True)
class PreparedData:
    """The data of a run."""

    train: Prepared | None
    """None when the training data is streamed."""
    stream: SampleStream | None
    validation: Prepared | None

    @property
    def report(self) -> DataReport:
        """Return the report on the training data."""
        if self.train is not None:
            return self.train.report
        return self.stream.report if self.stream is not None else DataReport()


@dataclass(frozen=True)
class DataPreparation:
    """Makes encoded data sets; of the processes of a run, the main one tokenises and the others wait for it."""

    encoder: SampleEncoder
    seed: int
    """Decides which rows data.split_ratio holds out."""
    say: Say
    barrier: Callable[[], None] = lambda: None
    """Called twice or less, as often on every process."""
    is_main: bool = True

    def prepare(self, rows: Any = None, validation_rows: Any = None) -> PreparedData:
        """Make samples of all that data.train and data.validation name, or of rows in memory."""
        section = self.encoder.section
        if rows is None and not section.train:
            raise UsageError(
                "There is no data set to learn from.",
                hint="Name one: --dataset data/train.jsonl (a line of it: "
                '{"messages": [{"role": "user", "content": "..."}, {"role": "assistant", "content": "..."}]})',
            )
        validation = self._encoded(validation_rows, "validation set", section.validation)
        if section.streaming and rows is None:
            if section.split_ratio:
                raise unsplit_stream()
            return PreparedData(None, SampleStream(section.train, self.encoder), validation)
        train = self._encoded(rows, "train_dataset", section.train)
        assert train is not None
        if validation is None and section.split_ratio:
            train, validation = hold_out(train, section.split_ratio, self.seed)
        return PreparedData(train, None, validation)

    def _encoded(self, rows: Any, name: str, sources: Sequence[str]) -> Prepared | None:
        """Encode rows in memory, or else the data sets that are named; None where there are none."""
        section, encoding = self.encoder.section, self.encoder.encoding
        if rows is not None:
            return self._encode(corpus_of(rows, name, section, encoding))
        if (tokenised := tokenised_among(sources, section)) is not None:
            return self._built(tokenised)
        return self._encode(open_corpus(sources, section, encoding)) if sources else None

    def _built(self, folder: Path) -> Prepared:
        """Open tokenised data that was built beforehand."""
        section = self.encoder.section
        store = JoinedStore(folder)
        check_identity(folder, store.index, self.encoder)
        if section.split_ratio:
            raise ConfigError(
                f"data.split_ratio holds rows out, and {folder} is tokenised data, which has none.",
                hint="Leave it out, and name a validation set: --data.validation FILE",
            )
        if section.media_check != "none" and (changed := _changed(store)) is not None:
            raise DataError(
                f"{changed} is not what it was when {folder} was built.", hint="Build the data again: swift data build"
            )
        report = DataReport.from_dict(store.notes)
        report.check(strict=section.strict)
        corpus = tokenised_corpus(store.index, self.encoder.encoding)
        return Prepared(store, report, corpus, range(len(corpus)), store)

    def _encode(self, corpus: Corpus) -> Prepared:
        section = self.encoder.section
        folder = cache_folder(section) / cache_key(corpus, self.encoder)
        if self.is_main:
            try:
                store = self._store(corpus, folder)
            except UnsupportedLayout:
                self.barrier()  # the others find nothing, and refuse for themselves what the schedule cannot have
                raise
            self.barrier()
        else:
            self.barrier()
            # A cache that is not shared between machines has nothing here yet.
            store = self._store(corpus, folder)
        report = DataReport.from_dict(store.notes).under_names([part.name for part in corpus.parts])
        self._check(report)
        return Prepared(store, report, corpus, range(len(corpus)), store)

    def _check(self, report: DataReport) -> None:
        """Refuse what cannot be used; where the chat template is the reason, say which one it is."""
        try:
            report.check(strict=self.encoder.section.strict)
        except DataError as error:
            if not any("template" in reason for reason in report.rejected):
                raise
            location = template_location(self.encoder.tokenizer)
            which = f"The chat template is that {location}; another one is given by --model.chat_template FILE"
            raise DataError(error.message, hint=f"{error.hint}\n{which}") from None

    def _store(self, corpus: Corpus, folder: Path) -> Store:
        if store := open_store(folder):
            if self.encoder.section.media_check == "none" or (changed := _changed(store)) is None:
                return store
            self.say(f"{changed} is not what it was when it was tokenised: the data set is tokenised again")
            shutil.rmtree(folder, ignore_errors=True)
        with StoreWriter(folder, self.encoder.columns) as writer:
            report = encode_corpus(corpus, self.encoder, writer, say=self.say)
            self._check(report)
            return writer.finish(report.as_dict())


def _changed(store: StoredSamples) -> str | None:
    """Return the first image whose file is gone or has another size than when its tokens were counted."""
    for each in store.media():
        try:
            if Path(each.source).stat().st_size == each.size:
                continue
        except OSError:
            pass
        return each.source
    return None


def prepare_data(
    section: DataSection,
    tokenizer: Any,
    *,
    encoding: str | Encoding,
    seed: int,
    say: Say,
    rows: Any = None,
    images: MediaRules | None = None,
) -> PreparedData:
    """Make the encoded data sets of a `data` section, or of rows in memory, in one process alone."""
    encoder = SampleEncoder(tokenizer, section, encoding_of(encoding), media_tokens_of(images, section))
    return DataPreparation(encoder, seed, say).prepare(rows)


def media_kinds(data: PreparedData) -> frozenset[str]:
    """Return which kinds of media samples hold; of a stream, which they may hold."""
    of_parts = [part.store.media_kinds for part in (data.train, data.validation) if part is not None]
    return frozenset().union(*of_parts, () if data.stream is None else data.stream.media_kinds)


def media_tokens_of(
    rules: MediaRules | None, section: DataSection, refusal_of: Callable[[str], SwiftError | None] = lambda _: None
) -> MediaTokens | None:
    """Return what makes tokens of images and sounds by a model's rules; None for a model that reads text alone."""
    if rules is None:
        return None
    decode = section.media_check == "decode"
    return MediaTokens(
        rules,
        cache_folder(section) / "media",
        decode=decode,
        web=section.web,
        shown=VideoSampling(section.video_fps, section.video_max_frames),
        refusal_of=refusal_of,
    )


def hold_out(prepared: Prepared, ratio: float, seed: int) -> tuple[Prepared, Prepared]:
    """Split by rows, so that samples of one row stay together; which rows are held out depends on the seed alone."""
    of_sample = np.asarray(prepared.store.rows)
    usable = np.unique(of_sample)
    count = min(max(1, round(ratio * len(usable))), len(usable) - 1)
    if count < 1:
        raise ConfigError(
            f"data.split_ratio holds samples out, and there are only {len(usable)}.",
            hint="Name a validation set with --data.validation instead.",
        )
    held_out = np.sort(usable[shuffler(seed, 0).permutation(len(usable))[:count]])
    return _part(prepared, np.setdiff1d(usable, held_out)), _part(prepared, held_out)


def _part(prepared: Prepared, rows: np.ndarray) -> Prepared:
    samples = np.flatnonzero(np.isin(prepared.store.rows, rows))
    return replace(prepared, samples=prepared.samples.subset(samples), rows=rows)
