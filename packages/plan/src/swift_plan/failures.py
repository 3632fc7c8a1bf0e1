"""The cost of machines that fail to a long run: how often to save, and how much of the time is learned in."""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, expm1, sqrt

HOURS_OF_A_DEVICE = 50_000.0
"""Hours that a device runs until something stops its job, assumed: 419 interruptions in 54 days of 16,384 H100 (the
Llama 3 report, table 5) are 50,700."""

_DAYS = 7


@dataclass(frozen=True)
class Reliability:
    """A job on so many devices, all of which wait where one fails."""

    devices: int
    save: float
    """Seconds in which a checkpoint keeps training waiting."""
    restart: float
    """Seconds from a failure until training goes on: noticing it, starting, reading the checkpoint."""
    device_hours: float = HOURS_OF_A_DEVICE

    @property
    def between_failures(self) -> float:
        """Return the mean seconds between two failures of the job."""
        return self.device_hours * 3600 / self.devices

    @property
    def matters(self) -> bool:
        """Return whether a run of a few days would see one."""
        return self.between_failures < _DAYS * 86400

    @property
    def interval(self) -> float:
        """Return the seconds of training between two checkpoints that cost least.

        Daly's estimate, of which Young's, the root of twice the save's and the failures' time, is the first term.
        """
        mean, save = self.between_failures, self.save
        if save >= 2 * mean:
            return mean
        share = sqrt(save / (2 * mean))
        return sqrt(2 * save * mean) * (1 + share / 3 + share * share / 9) - save

    def useful(self, interval: float | None = None) -> float:
        """Return the share of the time that training gets on in, with checkpoints after so many seconds of training.

        Exact for failures that know no history (Daly 2006, equation 20): restarts and repeated work may fail as well.
        """
        every, mean = interval or self.interval, self.between_failures
        if every / mean > 500:
            return 0.0
        return every / (mean * exp(self.restart / mean) * expm1((every + self.save) / mean))
