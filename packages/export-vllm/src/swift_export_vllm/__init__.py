"""vLLM for swift. Nothing here imports vLLM before it is asked to work."""

__version__ = "0.1.0"
