"""Flags of online learning: options without their section, and third-party flags of GRPO, PPO and GKD."""
