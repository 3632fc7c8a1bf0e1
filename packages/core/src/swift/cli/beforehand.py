"""Refusals of a run, as far as they show without torch and without weights: data, packages, a missing GPU.

`swift config show` asks here, and a run does before it imports anything. `swift config validate` leaves out what
another machine may have.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

from swift.config.obstacles import (
    endless_stream,
    flash_needs_gpu,
    gpu_optimizer,
    no_bitsandbytes,
    no_flash,
    no_gpu_to_see,
    no_liger,
    unsplit_stream,
)
from swift.data.sources.spec import parse_source

if TYPE_CHECKING:
    from swift.config.sections import Config


def check_anywhere(config: Config) -> None:
    """Raise the error with which a run of this configuration would end on any machine."""
    if config.data.streaming and config.data.split_ratio:
        raise unsplit_stream()
    if config.data.streaming and config.train.max_steps is None:
        raise endless_stream()


def check_here(config: Config) -> None:
    """Raise the error with which a run of this configuration would end on this machine before its first step."""
    check_anywhere(config)
    for name in (*config.data.train, *config.data.validation):
        parse_source(name)
    if config.model.liger and find_spec("liger_kernel") is None:
        raise no_liger()
    on_cpu = no_gpu_to_see(getattr(config.backend, "device", "auto"))
    if config.optim.name == "adamw_8bit":
        if find_spec("bitsandbytes") is None:
            raise no_bitsandbytes()
        if on_cpu:
            raise gpu_optimizer()
    if config.model.attention == "flash_attention_2" and on_cpu:
        raise no_flash(flash_needs_gpu("cpu"))
