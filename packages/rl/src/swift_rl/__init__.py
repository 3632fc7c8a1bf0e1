"""Online learning for swift: objectives whose data are completions of the model in training."""

__version__ = "0.1.0"
