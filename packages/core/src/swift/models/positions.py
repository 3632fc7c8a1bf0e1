"""How many positions a model has, by its configuration, and texts that are longer.

This module does not import torch: `swift config show` asks with the content of config.json.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from swift.errors import DataError
from swift.models.config_file import StoredConfig

_KEYS = ("max_position_embeddings", "n_positions", "max_seq_len", "max_sequence_length")
"""What architectures call the number of positions; the first that a configuration has counts."""
_ORIGINAL = "original_max_position_embeddings"
LONGROPE, DYNAMIC = "longrope", "dynamic"
"""Kinds of rope scaling that depend on the length of a sample; see `swift.models.sample_rope`."""


@dataclass(frozen=True)
class Positions:
    """Numbers of positions of a model."""

    count: int
    """As its configuration gives it."""
    reach: float
    """With scaling of its rotary positions; without, `count`."""
    scaling: str = ""
    """The kind of scaling."""


def positions_of(model_config: Any) -> Positions | None:
    """Return the positions of a model; None where its configuration sets no limit."""
    text = model_config.get_text_config()
    found = count_of(text)
    if found is None or getattr(text, "alibi", False):
        return None
    count = found - _first(model_config)
    reach, scaling = float(count), ""
    for rope in ropes(text):
        kind = rope_kind(rope)
        factor, original = rope.get("factor"), rope.get("original_max_position_embeddings") or count
        scaled = float("inf") if kind == "dynamic" else float(factor or 1) * float(original)
        if kind != "default" and scaled > reach:
            reach, scaling = scaled, kind
    return Positions(count, reach, scaling)


def count_of(text: Any) -> int | None:
    """Return the number of positions that a configuration gives."""
    found = [value for key in _KEYS if isinstance(value := getattr(text, key, None), int) and value > 0]
    return found[0] if found else None


def _first(model_config: Any) -> int:
    """Return the first position that a token has, of a configuration of transformers; 0 of the content of a file."""
    if isinstance(model_config, StoredConfig):
        return 0
    from swift.models.encoders import first_position

    return first_position(model_config)


def rope_by_length(longest: int, model_config: Any) -> str | None:
    """Return the kind of rope scaling that depends on a sample's length, where samples are so long; None without."""
    text = model_config.get_text_config()
    for rope in ropes(text):
        kind = rope.get("rope_type", rope.get("type"))
        if kind not in (LONGROPE, DYNAMIC):
            continue
        original = rope.get(_ORIGINAL) or getattr(text, _ORIGINAL, None) or text.max_position_embeddings
        if longest > original:
            return str(kind)
    return None


def check_longest(longest: int, model_config: Any, name: str) -> str | None:
    """Refuse texts that are longer than the model has positions; return what to print of scaled positions, or None."""
    positions = positions_of(model_config)
    if positions is None or longest <= positions.count:
        return None
    if longest > positions.reach:
        kinds = {rope_kind(rope) for rope in ropes(model_config.get_text_config())}
        longer = f" To train on all of it, add --rope_scaling yarn --max_model_len {longest}"
        raise DataError(
            f"The longest sample has {longest:,} tokens, but {name} has only {positions.reach:,.0f} positions.",
            hint=f"Type --max_length {positions.reach:.0f}: longer samples are then dropped or truncated, see "
            f"--truncation_strategy.{longer if kinds == {'default'} else ''}",
        )
    return (
        f"The longest sample has {longest:,} tokens; {name} has {positions.count:,} positions, which its rope scaling "
        f"({positions.scaling}) stretches."
    )


def check_text(length: int, model_config: Any, name: str, what: str) -> None:
    """Refuse a text that a model is to read and that has more tokens than the model has positions."""
    positions = positions_of(model_config)
    if positions is not None and length > positions.reach:
        raise DataError(
            f"{what} has {length:,} tokens, but {name} has only {positions.reach:,.0f} positions.",
            hint="Shorten it, or set rope_scaling in config.json.",
        )


def limit_note(max_length: int, model_config: Any, name: str) -> str | None:
    """Return what to say of a limit for samples above the model's positions, before any sample is known."""
    positions = positions_of(model_config)
    if positions is None or max_length <= positions.reach:
        return None
    return (
        f"data.max_length is {max_length:,}, and {name} has {positions.reach:,.0f} positions: a run with a longer "
        "sample will fail"
    )


def rope_kind(rope: Mapping[str, Any]) -> str:
    """Return the kind of scaling that such settings name: 'yarn', 'llama3', ...; 'default' for none."""
    return str(rope.get("rope_type", rope.get("type", "default")))


def ropes(text: Any) -> Iterator[Mapping[str, Any]]:
    """Yield the settings of rotary positions; some models have several, by the kind of layer."""
    for key in ("rope_parameters", "rope_scaling"):
        settings = getattr(text, key, None)
        if isinstance(settings, dict):
            nested = [value for value in settings.values() if isinstance(value, dict)]
            yield from nested or [settings]
