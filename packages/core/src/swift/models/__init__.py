"""Models: where they come from, what their weights are called, which of them are trained and in which precision."""

from __future__ import annotations

from typing import TYPE_CHECKING

from swift.lazy import lazy_names

if TYPE_CHECKING:
    from swift.models.config_file import read_config as read_config
    from swift.models.load_adapter import peft_config as peft_config
    from swift.models.opening import as_model_error as as_model_error
    from swift.models.plain_lora import is_start as is_start
    from swift.models.source import HfSource as HfSource
    from swift.models.source import open_source as open_source
    from swift.models.stored_task import settings_of_adapter as settings_of_adapter
    from swift.models.stored_task import settings_of_folder as settings_of_folder
    from swift.models.tokenizer import copy_tokenizer as copy_tokenizer
    from swift.models.weights_check import check_finite as check_finite

__getattr__ = lazy_names(
    __name__,
    {
        "config_file": "read_config",
        "load_adapter": "peft_config",
        "opening": "as_model_error",
        "plain_lora": "is_start",
        "source": "HfSource open_source",
        "stored_task": "settings_of_adapter settings_of_folder",
        "tokenizer": "copy_tokenizer",
        "weights_check": "check_finite",
    },
)
