"""ms-swift's environment variables, and the options that they set."""

from __future__ import annotations

from collections.abc import Mapping

from swift.config import Draft
from swift.errors import ConfigError

_RERANKER = {
    "LISTWISE_RERANKER_TEMPERATURE": "temperature",
    "MAX_POSITIVE_SAMPLES": "max_positives",
    "MAX_NEGATIVE_SAMPLES": "max_negatives",
}
VARIABLES_OF_OBJECTIVE: dict[str, dict[str, str]] = {
    "embedding": {
        "INFONCE_TEMPERATURE": "temperature",
        "INFONCE_USE_BATCH": "in_batch_negatives",
        "INFONCE_HARD_NEGATIVES": "hard_negatives",
        "INFONCE_MASK_FAKE_NEGATIVE": "mask_false_negatives",
        "INFONCE_FAKE_NEG_MARGIN": "false_negative_margin",
        "INFONCE_INCLUDE_QQ": "include_qq",
        "INFONCE_INCLUDE_DD": "include_dd",
    },
    "reranker": _RERANKER,
    "generative_reranker": {
        **_RERANKER,
        "GENERATIVE_RERANKER_POSITIVE_TOKEN": "positive_token",
        "GENERATIVE_RERANKER_NEGATIVE_TOKEN": "negative_token",
    },
}
"""Objective → variable → the option that it sets."""
MEDIA_VARIABLES = {
    "MAX_PIXELS": "data.max_pixels",
    "MIN_PIXELS": "data.min_pixels",
    "FPS": "data.video_fps",
    "FPS_MAX_FRAMES": "data.video_max_frames",
}
"""Variable → the key that it sets for any objective."""
IGNORED_MEDIA_VARIABLES = {
    **dict.fromkeys(
        ("VIDEO_MAX_PIXELS", "VIDEO_MIN_PIXELS", "VIDEO_TOTAL_PIXELS", "IMAGE_MAX_TOKEN_NUM", "VIDEO_MAX_TOKEN_NUM"),
        "--max_pixels and --min_pixels limit images and frames",
    ),
    **dict.fromkeys(("NFRAMES", "FPS_MIN_FRAMES"), "--video_fps and --video_max_frames select the frames"),
    "SIZE_FACTOR": "it comes from the model's processor",
    **dict.fromkeys(("ENABLE_AUDIO_OUTPUT", "USE_AUDIO_IN_VIDEO"), "the audio track of a video is not used"),
}
"""Variable of ms-swift for media that is ignored → the reason, as the end of a sentence."""
_SMALLEST_GROUP = "LISTWISE_RERANKER_MIN_GROUP_SIZE"


def set_by_environment(draft: Draft, environment: Mapping[str, str]) -> None:
    """Set the keys of variables that neither flags nor files set, with a note for each variable."""
    for variable, key in MEDIA_VARIABLES.items():
        _set(draft, environment, variable, key)
    for name, reason in IGNORED_MEDIA_VARIABLES.items():
        if environment.get(name):
            draft.note(f"{name} has no effect: {reason}.")
    options = VARIABLES_OF_OBJECTIVE.get(str(draft.value("objective.name", "")), {})
    if "LISTWISE_RERANKER_TEMPERATURE" in options and environment.get(_SMALLEST_GROUP, "2") not in ("", "2"):
        raise ConfigError(
            f"{_SMALLEST_GROUP} {environment[_SMALLEST_GROUP]} is not supported: every query with at least two "
            "documents is used.",
            hint="Unset it, and remove queries with fewer documents from the data set.",
        )
    loss = draft.value("objective.loss", "infonce")
    for variable, option in options.items():
        if variable.startswith("INFONCE_") and loss != "infonce" and environment.get(variable):
            draft.note(f"{variable} has no effect: the loss is {loss}.")
        else:
            _set(draft, environment, variable, f"objective.{option}")


def _set(draft: Draft, environment: Mapping[str, str], variable: str, key: str) -> None:
    """Set a key from a variable, unless it is already set."""
    value = environment.get(variable)
    if not value:
        return
    if (earlier := draft.get(key)) is not None:
        draft.note(f"{variable} has no effect: {earlier.source} sets {key}.")
        return
    draft.set(key, value, f"the environment variable {variable}")
    draft.note(f"The environment variable {variable} sets --{key} {value}.")
