"""Processes of a run: which group they belong to, how they talk, and how they end."""
