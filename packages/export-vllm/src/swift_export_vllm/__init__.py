"""The vLLM exporter of swift. This release reserves the name and registers no exporter."""

__version__ = "0.1.0"
