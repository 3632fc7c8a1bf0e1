"""Stores that independent jobs build, each a shard of the rows, and the manifest that joins them.

Job 3 of 8 tokenises the third eighth of the rows into `shard-00003-of-00008`, which appears in the folder when it is
whole. When all are there, joining them writes what is known of each sample into columns of the whole, and at last
`index.json`: a folder without it is no data set. Together the shards hold what one job would have written.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from swift.data.corpus import Corpus
from swift.data.encode import SampleEncoder
from swift.data.encode_corpus import cache_key, encode_corpus
from swift.data.report import DataReport
from swift.data.store import Store, StoreWriter
from swift.data.store_index import FORMAT, INDEX_FILE, SHARD_NAME, VALUE, write_column
from swift.errors import ConfigError, DataError, UsageError, listed
from swift.files import replace_file
from swift.terminal import Say
from swift.untrusted import read_json_object, shown

COLUMNS = ("lengths", "loss_weights", "rows")
"""Columns that are written for all shards end to end, besides numbers of samples; the rest stays in the shards."""


@dataclass(frozen=True)
class Shard:
    """One of several equal parts of the rows, counted from 1."""

    number: int
    count: int

    @classmethod
    def parse(cls, text: str) -> Shard:
        """Read `3/8`."""
        match = re.fullmatch(r"(\d{1,5})/(\d{1,5})", text.strip())
        if match is None or not 1 <= int(match[1]) <= int(match[2]):
            raise UsageError(
                f"'{shown(text)}' is no shard: it should be i/n, with i from 1 to n.",
                hint="The third of eight: --shard 3/8 (in a Slurm array 1-8: --shard $SLURM_ARRAY_TASK_ID/8)",
            )
        return cls(int(match[1]), int(match[2]))

    @property
    def folder(self) -> str:
        """Return the name of its folder."""
        return f"shard-{self.number:05}-of-{self.count:05}"

    def of(self, rows: int) -> range:
        """Return its part of so many rows; the parts differ by one row at most."""
        return range((self.number - 1) * rows // self.count, self.number * rows // self.count)

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"


def build_shard(corpus: Corpus, encoder: SampleEncoder, out: Path, shard: Shard, say: Say) -> DataReport:
    """Tokenise one shard of a corpus into a folder; one that is there already, of the same rows, stays as it is."""
    if encoder.encoding.keeps_columns:
        raise ConfigError(
            "Rewards and environments read the rows themselves, which tokenised data does not keep.",
            hint="Give the rows to the run: --dataset FILE. Prompts are tokenised in no time.",
        )
    about = {
        "format": FORMAT,
        "shard": [shard.number, shard.count],
        "rows": len(corpus),
        "content": corpus.fingerprint(),
        "key": cache_key(corpus, encoder),
        "identity": encoder.identity(),
        "sources": [[part.name, part.count] for part in corpus.parts],
    }
    folder = out / shard.folder
    if (folder / "manifest.json").exists():
        if (different := _unlike(_opened(folder).notes["build"], about)) is not None:
            raise DataError(
                f"{folder} is there already, and of other data or settings: {different} differs.",
                hint="Name another folder with --out, or remove this one.",
            )
        say(f"{folder} is there already, of the same rows and settings: nothing is done")
        return DataReport.from_dict(_opened(folder).notes["report"])
    with StoreWriter(folder, encoder.columns) as writer:
        report = encode_corpus(corpus, encoder, writer, say=say, rows=shard.of(len(corpus)))
        report.check(strict=encoder.section.strict, some=False)
        writer.finish({"build": about, "report": report.as_dict()})
    return report


def join_shards(out: Path) -> DataReport:
    """Check that all shards of a folder are there and fit together, and write the manifest that joins them."""
    shards = _found(out)
    stores = [_opened(out / shard.folder) for shard in shards]
    first = stores[0].notes["build"]
    for shard, store in zip(shards, stores, strict=True):
        if (different := _unlike(first, store.notes["build"])) is not None:
            raise DataError(
                f"The shards {shards[0]} and {shard} in {out} do not belong together: {different} differs.",
                hint=f"Build one of them again with what the other has, after removing its folder: rm -r "
                f"{out / shard.folder}",
            )
    report, *others = (DataReport.from_dict(store.notes["report"]) for store in stores)
    for other in others:
        report.add(other)
    report.check(strict=False)
    values = tuple(dict.fromkeys(name for store in stores for name in store.values))
    for name in COLUMNS:
        write_column(out / f"{name}.bin", (block for store in stores for block in store.blocks(name)))
    for name in values:
        write_column(out / f"{VALUE}{name}.bin", (block for store in stores for block in store.blocks_of_value(name)))
    index = {
        **{name: first[name] for name in ("format", "key", "content", "identity", "sources")},
        "rows": first["rows"],
        "shards": [[shard.folder, len(store)] for shard, store in zip(shards, stores, strict=True)],
        "longest": max(store.longest for store in stores),
        "values": list(values),
        "media": any(store.holds_media for store in stores),
        "report": report.as_dict(),
    }
    replace_file(out / INDEX_FILE, json.dumps(index))
    return report


def read_index(folder: Path) -> dict[str, Any]:
    """Return what joins the shards of a folder; raise `DataError` where they have not been joined."""
    if not (folder / INDEX_FILE).is_file():
        raise DataError(
            f"The shards in {folder} have not been joined.",
            hint=f"When all of them are built: swift data join {folder}",
        )
    index = read_json_object(folder / INDEX_FILE, DataError)
    if index.get("format") != FORMAT:
        raise DataError(f"{folder / INDEX_FILE} has another format, '{shown(str(index.get('format')))}'.")
    return index


def check_identity(folder: Path, index: Mapping[str, Any], encoder: SampleEncoder) -> None:
    """Refuse tokenised data that was made with something else than what a run would make it with."""
    if different := _differences(index["identity"], encoder.identity()):
        raise ConfigError(
            f"{folder} was tokenised with something else than this run has: {', '.join(different)}.",
            hint="Give the run what the data was built with (a bracket has that first, then the run's), or build "
            "the data again with the run's own flags: swift data build ... --out FOLDER",
        )


def _found(out: Path) -> list[Shard]:
    """Return all shards of a folder, in order; raise `DataError` unless they are complete."""
    names = [match for path in (out.iterdir() if out.is_dir() else ()) if (match := SHARD_NAME.fullmatch(path.name))]
    found = sorted((Shard(int(match[1]), int(match[2])) for match in names), key=lambda shard: shard.number)
    build = f"swift data build ... --out {out} --shard"
    if not found:
        raise DataError(f"There are no shards in {out}.", hint=f"Build them first: {build} 1/8, and so on to 8/8")
    counts = sorted({shard.count for shard in found})
    if len(counts) > 1:
        per_count = " and ".join(f"{sum(shard.count == count for shard in found)} of {count}" for count in counts)
        raise DataError(
            f"{out} holds shards of different splits: {per_count}.", hint="Remove those that do not belong together."
        )
    there = {shard.number for shard in found}
    missing = [Shard(number, counts[0]) for number in range(1, counts[0] + 1) if number not in there]
    if missing:
        raise DataError(
            f"Not all of the {counts[0]} shards are in {out}; missing: {listed(missing, 10)}.",
            hint=f"Build them: {build} {missing[0]}",
        )
    return found


def _opened(folder: Path) -> Store:
    try:
        store = Store(folder)
        if store.notes["build"]["format"] != FORMAT:
            raise ValueError(store.notes["build"]["format"])
    except (OSError, ValueError, KeyError, TypeError):
        raise DataError(
            f"The shard {folder} is damaged.", hint=f"Remove it (rm -r {folder}) and build it again."
        ) from None
    return store


def _unlike(one: Mapping[str, Any], other: Mapping[str, Any]) -> str | None:
    """Return what differs between the data and settings of two shards."""
    if different := _differences(one["identity"], other["identity"]):
        return ", ".join(different)
    if one["content"] != other["content"]:
        return "the content of the data set"
    return None if one["key"] == other["key"] else "the folder that paths of images begin at"


def _differences(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """Return what differs between two identities, a few words each; `one` is named first."""
    found = []
    for name in dict.fromkeys([*one, *other]):
        if one.get(name) != other.get(name):
            plain = name.startswith(("data.", "the version", "the encoding"))
            shown = f" ({_shown(name, one.get(name))} and {_shown(name, other.get(name))})" if plain else ""
            found.append(f"{name}{shown}")
    return found


def _shown(name: str, value: object) -> str:
    return str(value).partition(" ")[0] if name == "the encoding" else json.dumps(value)
