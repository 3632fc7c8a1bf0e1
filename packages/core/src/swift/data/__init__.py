"""Data sets: their rows, how these become conversations, and how conversations become samples of tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

from swift.lazy import lazy_names

if TYPE_CHECKING:
    from swift.data.bounding_boxes import has_objects as has_objects
    from swift.data.conversation import RoleTags as RoleTags
    from swift.data.conversation import medium_in as medium_in
    from swift.data.conversation import parts_of as parts_of
    from swift.data.conversation import prompt_only as prompt_only
    from swift.data.corpus import DatasetPart as DatasetPart
    from swift.data.corpus import open_parts as open_parts
    from swift.data.encode import SampleEncoder as SampleEncoder
    from swift.data.global_segments import GlobalSegments as GlobalSegments
    from swift.data.media_tokens import MediaRules as MediaRules
    from swift.data.media_tokens import MediaTokens as MediaTokens
    from swift.data.offsets import TextEncoder as TextEncoder
    from swift.data.offsets import joined_pairs as joined_pairs
    from swift.data.offsets import joins_pairs as joins_pairs
    from swift.data.pipeline import Prepared as Prepared
    from swift.data.pipeline import media_tokens_of as media_tokens_of
    from swift.data.pipeline import prepare_data as prepare_data
    from swift.data.placing import placed as placed
    from swift.data.sources.dataset_info import DATASET_INFO_FILE as DATASET_INFO_FILE
    from swift.data.sources.rows import RowData as RowData
    from swift.data.store import SampleSet as SampleSet
    from swift.data.template import ChatTemplate as ChatTemplate
    from swift.data.text import Pair as Pair
    from swift.data.text import Text as Text
    from swift.data.videos import VideoSampling as VideoSampling

__getattr__ = lazy_names(__name__)
