"""Rounds: prompts, their completions and rewards, and the steps that learn from them."""
