"""Third-party checkpoints, read and written (`swift convert`)."""
