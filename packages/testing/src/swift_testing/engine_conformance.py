"""The conformance kit of inference engines: a test class to inherit from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import pytest

from swift.contracts import EngineRequest, InferenceEngine
from swift.plugins import load_plugin, open_inference
from swift.terminal import say_nothing
from swift_testing.engine_checks import CHECKS, Check, TransformersReference
from swift_testing.subjects import write_model

__tracebackhide__ = True  # pytest shows the sentence alone


class EngineConformance:
    """Opens the engine once, on a tiny model in fp32, and compares it with transformers."""

    engine: ClassVar[str]
    """The name that users type."""
    options: ClassVar[Mapping[str, Any]] = {}
    """Settings of the engine's own."""
    tolerance: ClassVar[float] = 1e-4
    """Of log-probabilities."""
    without: ClassVar[frozenset[str]] = frozenset()
    """Names of checks that the engine does without, such as `weights_can_be_replaced`."""

    @pytest.fixture(scope="class")
    @classmethod
    def reference(cls, tmp_path_factory: pytest.TempPathFactory) -> TransformersReference:
        """Return the same model in transformers."""
        folder = write_model(tmp_path_factory.mktemp("engine") / "tiny", head_dim=32)
        return TransformersReference(folder, tolerance=cls.tolerance)

    @pytest.fixture(scope="class")
    @classmethod
    def opened(cls, reference: TransformersReference) -> Iterator[InferenceEngine]:
        """Yield the engine, with the model loaded."""
        request = request_of(reference, cls.options)
        engine = open_inference(load_plugin("swift.engines", cls.engine), request)
        yield engine
        engine.close()

    @pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
    def test_engine(self, check: Check, opened: InferenceEngine, reference: TransformersReference) -> None:
        """Run one check that every engine must pass."""
        if check.__name__ in self.without:
            pytest.skip("listed in `without`")
        check(opened, reference)


def request_of(reference: TransformersReference, options: Mapping[str, Any]) -> EngineRequest:
    """Return how the kit opens an engine."""
    return EngineRequest(
        model=reference.folder,
        dtype="float32",
        max_length=256,
        end_tokens=reference.end_tokens,
        options=options,
        say=say_nothing,
    )
