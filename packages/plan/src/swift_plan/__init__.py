"""The planner of swift: `swift plan MODEL --gpus 8xH100`."""

__version__ = "0.1.0"
