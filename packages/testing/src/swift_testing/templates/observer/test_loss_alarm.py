"""The observer sees a jump of the loss, and nothing else."""

from types import SimpleNamespace

from swift_loss_alarm import LossAlarm


def test_jump_is_reported():
    lines = []
    run, alarm = SimpleNamespace(say=lines.append), LossAlarm()
    for step, loss in enumerate((1.0, 1.5, 3.0), 1):
        alarm.swift_step_end(run, SimpleNamespace(step=step, result=SimpleNamespace(loss=loss)))
    assert [line.partition(":")[2] for line in lines] == [" step 3 has loss 3.000, twice the mean of 1.050"]
