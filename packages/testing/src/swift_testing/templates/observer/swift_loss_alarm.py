"""Warn when the loss jumps, and report the time spent in steps."""

import time

from swift import hookimpl


class LossAlarm:
    """Compares the loss of each step with a running mean."""

    def __init__(self):
        self.mean = None
        self.seconds = 0.0

    @hookimpl
    def swift_step_end(self, run, record):
        loss = record.result.loss
        if self.mean is not None and loss > 2 * self.mean:
            run.say(f"loss-alarm: step {record.step} has loss {loss:.3f}, twice the mean of {self.mean:.3f}")
        self.mean = loss if self.mean is None else 0.9 * self.mean + 0.1 * loss

    @hookimpl
    def swift_run_end(self, run, summary):
        run.say(f"loss-alarm: {summary.steps} steps took {self.seconds:.1f} s, loss about {self.mean:.3f}")

    @hookimpl(wrapper=True)
    def swift_train_step(self):
        begin = time.monotonic()
        result = yield
        self.seconds += time.monotonic() - begin
        return result
