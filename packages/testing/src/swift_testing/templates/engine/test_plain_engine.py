"""The conformance kit: completions, scores and log-probabilities are those of transformers."""

from swift_testing import EngineConformance


class TestPlainEngine(EngineConformance):
    engine = "plain-engine"
