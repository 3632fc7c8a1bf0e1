"""Settings, configuration files and checkpoints of third-party training programs."""

__version__ = "0.1.0"
