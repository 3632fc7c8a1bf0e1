"""DeepSpeed as these tests start it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module")
def deepspeed_on_cpu() -> Iterator[None]:
    """Have DeepSpeed run on the CPU; it is imported once, for all processes that are forked."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DS_ACCELERATOR", "cpu")
        import deepspeed  # noqa: F401

        yield
