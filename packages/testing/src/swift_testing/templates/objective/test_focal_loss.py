"""The conformance kit: the loss does not depend on micro-batches, processes or interruptions."""

from swift_testing import TrainingConformance


class TestFocalLoss(TrainingConformance):
    settings = {"objective.name": "focal_loss", "tuner.kind": "full"}
