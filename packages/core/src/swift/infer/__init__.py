"""Asking a trained model: in batches, in a conversation, and for a score. Runs on transformers."""
