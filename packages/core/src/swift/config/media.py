"""Kinds of media, and what people call them."""

from __future__ import annotations

KINDS = {"image": 1, "video": 2, "audio": 3}
"""The numbers that models know the kinds by; 0 is text."""
NAMES = {"image": "image", "video": "video", "audio": "sound"}
"""What people call one of a kind."""
LIMITS = ("max_pixels", "min_pixels", "video_fps", "video_max_frames")
"""The keys of a data section that say how much of images and videos a model is shown."""
