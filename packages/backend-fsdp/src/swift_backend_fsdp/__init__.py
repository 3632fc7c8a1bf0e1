"""The FSDP2 backend of swift: `--backend fsdp`."""

__version__ = "0.1.0"
