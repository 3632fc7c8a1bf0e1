"""Identity of tokenised data: all that decides how rows become samples, each by a name that a message can say."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from swift.data.encode import ENCODER_VERSION, SampleEncoder
from swift.data.store import hash_of

if TYPE_CHECKING:
    from swift.data.corpus import Corpus

SETTINGS = ("system", "max_length", "truncation", "loss_on", "template_kwargs")
"""Keys of the section `data` that decide what a row becomes."""


def cache_key(corpus: Corpus, encoder: SampleEncoder) -> str:
    """Return a hash of all that decides which samples there are: content, tokenizer, template and settings."""
    roots = [] if encoder.images is None else [str(part.root) for part in corpus.parts]
    return hash_of(corpus.fingerprint(), json.dumps([identity_of(encoder), roots], sort_keys=True))


def identity_of(encoder: SampleEncoder) -> dict[str, Any]:
    """Return what decides how a row is encoded, as JSON: settings by their flags, the rest by hashes."""
    tokenizer = encoder.tokenizer
    special = {name: str(token) for name, token in tokenizer.special_tokens_map.items()}
    settings = encoder.section.model_dump(mode="json", include=set(SETTINGS))
    return {
        "the encoding": f"{encoder.encoding.name} {hash_of(encoder.encoding.cache_key())}",
        "the tokenizer": hash_of(tokenizer.backend_tokenizer.to_str(), json.dumps(special, sort_keys=True)),
        "the chat template": hash_of(str(tokenizer.chat_template)),
        "the rules for images": None if encoder.images is None else hash_of(encoder.images.cache_key()),
        "the version of the encoder": ENCODER_VERSION,
        **{f"data.{name}": settings[name] for name in SETTINGS},
    }


def differences(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
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
