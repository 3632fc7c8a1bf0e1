"""Objectives beyond `pt` and `sft` for swift."""

__version__ = "0.1.0"
