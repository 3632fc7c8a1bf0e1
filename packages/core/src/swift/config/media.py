"""Kinds of media, and their names in messages."""

from __future__ import annotations

KINDS = {"image": 1, "video": 2, "audio": 3}
"""Kind → its number in `mm_token_type_ids`; 0 is text."""
NAMES = {"image": "image", "video": "video", "audio": "audio clip"}
"""Kind → the name of one item in messages."""
ONE = {"image": "an image", "video": "a video", "audio": "an audio clip"}
"""Kind → the name of one item with its article."""
PLURALS = {"image": "images", "video": "videos", "audio": "audio"}
LIMITS = ("max_pixels", "min_pixels", "video_fps", "video_max_frames")
"""Keys of the data section that limit images and videos."""
