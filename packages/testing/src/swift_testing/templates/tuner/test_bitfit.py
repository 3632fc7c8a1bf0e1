"""The conformance kit: training does not depend on micro-batches, processes or interruptions."""

from swift_testing import TrainingConformance


class TestBitfit(TrainingConformance):
    settings = {"tuner.kind": "bitfit"}
