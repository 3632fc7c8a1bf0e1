"""Fixtures of `environments`."""

from environments import alone, built

__all__ = ["alone", "built"]
