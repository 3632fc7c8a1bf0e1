"""FP8 as Transformer Engine declares it: off, and refused when it is switched on."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from enum import Enum
from typing import Any

from torch import Tensor

from swift_backend_megatron.cpu.unsupported import refuse


def fp8_autocast(enabled: bool = True, *_: Any, **__: Any) -> AbstractContextManager[None]:
    """Do nothing, or refuse."""
    return nullcontext() if not enabled else refuse("fp8")


class FP8GlobalStateManager:
    """Reports that fp8 is off."""

    @staticmethod
    def is_fp8_enabled() -> bool:
        return False

    @staticmethod
    def get_fp8_recipe() -> None: ...


class Fp8Recipe:
    """Is refused when it is made: every recipe of fp8."""

    def __init__(self, *_: Any, **__: Any) -> None:
        refuse(f"fp8 with {type(self).__name__}")


class Format(Enum):
    """Names fp8's formats."""

    E4M3 = "e4m3"
    HYBRID = "hybrid"


class QuantizedTensor(Tensor):
    """Is the type of no tensor here; megatron-core asks `isinstance`."""
