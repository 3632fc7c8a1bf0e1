"""Distillation: a student learns what a teacher says about the answers of both, or of the data."""
