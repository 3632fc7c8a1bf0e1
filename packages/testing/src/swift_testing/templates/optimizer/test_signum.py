"""The conformance kit: updates do not depend on micro-batches, processes or interruptions."""

from swift_testing import TrainingConformance


class TestSignum(TrainingConformance):
    settings = {"optim.name": "signum", "optim.lr": 1e-4, "tuner.kind": "full"}
