"""The inference engine that core brings: transformers, in this process."""

from __future__ import annotations

from typing import TYPE_CHECKING

from swift.contracts import HOOK_API
from swift.hookspecs import hookimpl

if TYPE_CHECKING:
    from swift.contracts import EngineRequest, InferenceEngine


class TransformersEngine:
    """`--engine transformers`: every model that can be trained here, in batches; the measure for other engines."""

    HOOK_API = HOOK_API

    @hookimpl
    def swift_open_engine(self, request: EngineRequest) -> InferenceEngine:
        """Load the model."""
        from swift.infer.local import LocalEngine

        return LocalEngine(request)
