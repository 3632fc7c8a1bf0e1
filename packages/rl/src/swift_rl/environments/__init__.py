"""Environments: what a model talks with, turn by turn, while it learns."""
