"""Encoded samples: what the data pipeline makes of a row of a data set, before anything is batched."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from swift.data.media import MediaRef

TOKEN_TYPES = "token_types"
"""The name of a segment's token values that say which text of a pair a token is of: 0 or 1, as tokenizers give it."""


class SampleFacts(Protocol):
    """Facts of a sample that the normalisation of a batch may use: none needs its tokens to be read.

    An `Encoded` has these members too.
    """

    @property
    def tokens(self) -> int:
        """Tokens of all segments."""

    @property
    def loss_weight(self) -> float:
        """Summed weights of all segments."""

    @property
    def values(self) -> Mapping[str, float]:
        """Numbers that objectives read."""

    @property
    def media(self) -> Mapping[str, int]:
        """How many images, videos and sounds all segments hold, by kind."""


@dataclass(frozen=True)
class Segment:
    """One stretch of tokens that attends only to itself."""

    input_ids: np.ndarray
    """int32, shape [n]."""
    weights: np.ndarray
    """float32, shape [n]: how much predicting token i counts; 0 for what is not learned. weights[0] is always 0."""
    token_values: Mapping[str, np.ndarray] = field(default_factory=dict)
    """Numbers that objectives read, name → float32, shape [n] or [n, ...]: value i belongs to token i (an advantage,
    an old log-probability). All segments of a batch have the same names, with the same shapes of one token's."""
    candidates: np.ndarray | None = None
    """int, shape [n, K]: row i holds K different tokens that might stand instead of token i; see
    `Need.CANDIDATE_LOGPS`. All segments of a batch have as many, or none."""
    media: tuple[MediaRef, ...] = ()
    """Images, videos and sounds that some of the tokens stand for, in order."""
    values: Mapping[str, np.ndarray] = field(default_factory=dict)
    """Numbers of the whole segment that objectives read, name → float32 of any fixed shape. All segments of a batch
    have the same names, with the same shapes."""

    def __len__(self) -> int:
        return len(self.input_ids)


@dataclass(frozen=True)
class Encoded:
    """One encoded sample of one or more segments.

    'text' and 'chat' have one segment; 'preference' has (chosen, rejected); 'kto' has (completion, completion of
    another sample after the same prompt).
    """

    sample_id: int
    """Stable within the data set: its index among all samples of the concatenated, unshuffled source."""
    segments: tuple[Segment, ...]
    values: Mapping[str, float] = field(default_factory=dict)
    """Numbers that objectives read: 'label' (1.0 or 0.0), 'margin'."""
    reference_logps: np.ndarray | None = None
    """float32, one per segment, when a reference model has scored the sample."""

    @property
    def tokens(self) -> int:
        return sum(len(segment) for segment in self.segments)

    @property
    def loss_weight(self) -> float:
        return float(sum(float(segment.weights.sum(dtype=np.float64)) for segment in self.segments))

    @property
    def media(self) -> Mapping[str, int]:
        return Counter(each.kind for segment in self.segments for each in segment.media)
