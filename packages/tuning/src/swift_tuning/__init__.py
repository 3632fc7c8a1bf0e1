"""Optimizers besides core's own, as plugins."""

__version__ = "0.1.0"
