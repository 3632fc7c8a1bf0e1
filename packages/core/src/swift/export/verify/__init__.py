"""Is what was exported what was trained? Compares an export with the training state."""
