"""Fixtures of `environments`."""

from environments import alone, built

__all__ = ["alone", "built"]

collect_ignore = ["backend_of_hook_api_1_0"]
"""Its tests are run where it is installed."""
