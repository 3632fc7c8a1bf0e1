"""The inference engine of this package: transformers, in this process."""

from __future__ import annotations

from swift.contracts import HOOK_API
from swift.hookspecs import lazy_hook


class TransformersEngine:
    """`--engine transformers`: every model that can be trained, in batches; the reference for other engines."""

    HOOK_API = HOOK_API
    swift_open_engine = lazy_hook("swift_infer.local:LocalEngine")
