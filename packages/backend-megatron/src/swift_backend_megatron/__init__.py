"""The Megatron-Core backend of swift. This release reserves the name and registers no backend."""

__version__ = "0.1.0"
