"""The DeepSpeed backend of swift: ZeRO in all stages, offload, AutoTP and Ulysses."""

__version__ = "0.1.0"
