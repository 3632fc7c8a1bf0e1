"""Which cases of the conformance kit a layout is tried with: all of them once per backend, and by `make conformance`.

A layout that shares its code with another is tried with cases that between them go through each part: clipping,
accumulation, packing, adapters, a reference model.
"""

from __future__ import annotations

import os

WHOLE_KIT = bool(os.environ.get("SWIFT_WHOLE_KIT"))


def covering(*more: str) -> frozenset[str] | None:
    """Names of the cases, and of others that this layout is special in; None is all."""
    return None if WHOLE_KIT else frozenset({"clipped", "accumulated", "packed", "lora", "dpo, lora", *more})


def combined(*more: str) -> frozenset[str] | None:
    """Of a layout of four processes that combines what layouts of two try one by one."""
    return None if WHOLE_KIT else frozenset({"clipped", "packed", "dpo, lora", *more})
