"""Observers that show a run outside the terminal: TensorBoard, the HTML report and experiment trackers."""

__version__ = "0.1.0"
