"""Rewards: selecting them, computing them in processes that can be ended, and the ones that come with swift-rl.

Kept empty: the processes that compute rewards import this package, and start fast.
"""
