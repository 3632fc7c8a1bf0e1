"""Single rows as samples, what of them is learned, and conversations about a file."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import groupby
from pathlib import Path
from typing import Any

from named_encodings import encoding_of

from swift.config.sections import DataSection
from swift.data.encode import SampleEncoder
from swift.data.encodings import Encoding
from swift.data.samples import Encoded, Segment


def encoder_of(tokenizer: Any, encoding: str | Encoding = "chat", **section: Any) -> SampleEncoder:
    return SampleEncoder(tokenizer, DataSection(**section), encoding_of(encoding))


def media_encoder(processor: Any, folder: Path, encoding: str | Encoding = "chat", **section: Any) -> SampleEncoder:
    """An encoder of rows whose media lie in a folder."""
    from swift.data.pipeline import media_tokens_of
    from swift.models.media_processor import MediaProcessor

    settings = DataSection(media_root=folder, cache=folder / "cache", **section)
    tokens = media_tokens_of(MediaProcessor(processor, settings), settings)
    return SampleEncoder(processor.tokenizer, settings, encoding_of(encoding), tokens)


def encode_row(encoder: SampleEncoder, row: Mapping[str, Any], root: Path | None = None) -> tuple[Encoded, ...]:
    return encoder.encode(encoder.encoding.understand(dict(row), "row 1", root=root), "row 1").samples


def learned_runs(tokenizer: Any, segment: Segment) -> list[tuple[str, float]]:
    """The runs of tokens of one weight that are learned, as strings."""
    pairs = zip(segment.weights.tolist(), segment.input_ids.tolist(), strict=True)
    runs = groupby(pairs, key=lambda pair: pair[0])
    return [(tokenizer.decode([token for _, token in run]), weight) for weight, run in runs if weight]


def asked(content: Any, answer: str = "red", **columns: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": content}, {"role": "assistant", "content": answer}], **columns}
