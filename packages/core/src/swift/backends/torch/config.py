"""The `backend` section when the backend is `torch`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, PositiveFloat

from swift.config.limits import Threads
from swift.config.sections import Section


class TorchConfig(Section):
    """Options of the built-in backend."""

    device: Literal["auto", "cpu", "cuda"] = Field("auto", description="Where to train; auto is a GPU if there is one")
    bucket_mb: PositiveFloat = Field(25.0, description="Gradients are added up across processes in pieces this large")
    cpu_threads: Threads | None = Field(
        None, description="Threads per process on the CPU; default: the cores divided by the processes here"
    )
