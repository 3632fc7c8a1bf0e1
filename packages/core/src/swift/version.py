"""The version of swift, on the ground floor: everything may import it."""

__version__ = "0.1.0"
