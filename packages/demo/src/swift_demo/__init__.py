"""A tiny model, trained, exported and evaluated in minutes, for swift."""

__version__ = "0.1.0"
