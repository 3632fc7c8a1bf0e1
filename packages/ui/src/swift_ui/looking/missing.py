"""The error for what a request names and is not there."""

from __future__ import annotations


class NotThere(Exception):
    """A run or a file of it that is not below the roots: answered with 404."""
