"""The tuners that core brings: all weights, and low-rank adapters."""
