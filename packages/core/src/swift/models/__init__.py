"""Models: where they come from, what their weights are called, which of them are trained and in which precision."""
