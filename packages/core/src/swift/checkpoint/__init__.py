"""Checkpoints: one format, whoever writes it; no process ever holds the whole model."""

from swift.checkpoint.boxes import Boxes, flat_boxes, part_boxes
from swift.checkpoint.folders import clean_stale, find_checkpoint, link, prune
from swift.checkpoint.load import check_resume, open_checkpoint
from swift.checkpoint.manifest import Manifest
from swift.checkpoint.save import PendingSave, save_checkpoint, wait_for_saves

__all__ = [
    "Boxes",
    "Manifest",
    "PendingSave",
    "check_resume",
    "clean_stale",
    "find_checkpoint",
    "flat_boxes",
    "link",
    "open_checkpoint",
    "part_boxes",
    "prune",
    "save_checkpoint",
    "wait_for_saves",
]
