"""`samples.json` in a run's folder: the first samples as the model reads them, and what was left out and why."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from swift.data.encodings import encoding_of
from swift.data.images import thumbnail
from swift.data.preview import PreviewPiece, PreviewSegment, preview_segments
from swift.files import replace_file

if TYPE_CHECKING:
    from swift.data.pipeline import PreparedData
    from swift.data.report import DataReport
    from swift.train.job import Job

SAMPLES_FILE = "samples.json"
SHOWN = 24
"""Samples that are written, in the order of the data sets."""
MOST_TOKENS = 60_000
"""Tokens that are written in all: long samples are fewer."""
THUMBNAIL = 192
"""Pixels of an image's longer side, as it is shown beside the text."""


def write_samples(job: Job) -> None:
    """Write what `swift config show --samples` would print, and the data report.

    Of a stream nothing is known before its rows are read, and reading them twice may give others.
    """
    data = job.data
    content = {
        "encoding": encoding_of(job.objective.encoding).segment_names,
        "streamed": data.stream is not None,
        "samples": _samples(job, data),
        "sources": [vars(source) for source in data.report.sources],
        "left_out": left_out(data.report),
    }
    replace_file(job.run.folder / SAMPLES_FILE, json.dumps(content, ensure_ascii=False) + "\n")


def left_out(report: DataReport) -> list[dict[str, Any]]:
    """Return why samples were left out: how many, where the first stands and what is wrong with it."""
    return [
        {"reason": reason, "count": each.count, "first": f"{each.location}: {each.detail}"}
        for reason, each in report.rejected.items()
    ]


def _samples(job: Job, data: PreparedData) -> list[dict[str, Any]]:
    if data.train is None:
        return []
    encoding = encoding_of(job.objective.encoding)
    chosen: list[dict[str, Any]] = []
    tokens = 0
    for index in range(min(SHOWN, len(data.train.samples))):
        encoded = data.train.samples[index]
        tokens += encoded.tokens
        if chosen and tokens > MOST_TOKENS:
            break
        segments = preview_segments(job.source.tokenizer, encoded, encoding)
        chosen.append(
            {
                "place": data.train.location(encoded.sample_id),
                "segments": [_segment(each) for each in segments],
                "values": dict(encoded.values),
            }
        )
    return chosen


def _segment(segment: PreviewSegment) -> dict[str, Any]:
    return {
        "name": segment.name,
        "tokens": segment.tokens,
        "learned": segment.learned,
        "pieces": [_piece(piece) for piece in segment.pieces],
    }


def _piece(piece: PreviewPiece) -> dict[str, Any]:
    if piece.media is not None:
        image = piece.media
        return {
            "image": Path(image.source).name,
            "width": image.width,
            "height": image.height,
            "tokens": image.length,
            "thumbnail": thumbnail(image, THUMBNAIL) if image.kind == "image" else None,
        }
    return {"weight": piece.weight, "text": piece.text, "ids": list(piece.ids)}
