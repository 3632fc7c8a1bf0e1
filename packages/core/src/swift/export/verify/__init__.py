"""Verifies an export: every tensor, the reloaded model's outputs, and the rendering of conversations."""
