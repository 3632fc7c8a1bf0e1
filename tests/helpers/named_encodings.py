"""Encodings by name: core's own, and those of pairs and of KTO."""

from __future__ import annotations

from swift.data.encodings import BY_NAME, Encoding
from swift_objectives import KtoEncoding, PreferenceEncoding

_NAMED = {**BY_NAME, "preference": PreferenceEncoding(), "kto": KtoEncoding()}


def encoding_of(encoding: str | Encoding) -> Encoding:
    """The encoding of a name, or the one that is given."""
    return _NAMED[encoding] if isinstance(encoding, str) else encoding
