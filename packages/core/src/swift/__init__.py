"""swift: train large language models on any parallel engine, and take the result to a served model."""

__version__ = "0.1.0"
