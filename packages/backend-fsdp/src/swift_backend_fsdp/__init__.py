"""The FSDP2 backend of swift: `pip install "swift-core[fsdp]"`, then `--backend fsdp`."""

__version__ = "0.1.0"
