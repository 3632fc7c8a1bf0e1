"""Where the numbers of a run go beyond the terminal."""

__version__ = "0.1.0"
