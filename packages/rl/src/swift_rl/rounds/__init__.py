"""Rounds: prompts, the answers to them, their rewards, and the steps that learn from them."""
