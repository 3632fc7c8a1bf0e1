"""Inference with trained models."""

__version__ = "0.1.0"
