"""The `backend` section when the backend is `deepspeed`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import Field, field_validator

from swift import TorchOptions
from swift.errors import about
from swift_backend_deepspeed.ds_json import implied_settings, read_config

DEFAULT = "zero2"


class DeepSpeedOptions(TorchOptions):
    """Options of the DeepSpeed backend."""

    config: dict[str, Any] | str = Field(
        default_factory=lambda: read_config(DEFAULT),
        description="DeepSpeed's JSON: a file, or zero0, zero1, zero2, zero3, zero2_offload, zero3_offload",
    )

    @field_validator("config", mode="before")
    @classmethod
    def _read(cls, given: Any) -> dict[str, Any]:
        """Return the content of the file, so that a run's own configuration says all that it was made of."""
        with about("backend.config"):
            return read_config(given)

    @property
    def content(self) -> dict[str, Any]:
        """The JSON itself."""
        assert isinstance(self.config, dict)
        return self.config


def core_settings(options: DeepSpeedOptions) -> Mapping[str, tuple[Any, str]]:
    """Return the values of core's keys that the JSON sets, and where."""
    return implied_settings(options.content)
