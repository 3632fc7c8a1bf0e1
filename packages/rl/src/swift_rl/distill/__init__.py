"""Distillation: a student learns a teacher's distribution on completions of either, or of the data."""
