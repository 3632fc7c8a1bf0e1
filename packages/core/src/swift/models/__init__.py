"""Models: where they come from, what their weights are called, which of them are trained and in which precision."""

from __future__ import annotations

from typing import TYPE_CHECKING

from swift.lazy import lazy_names

if TYPE_CHECKING:
    from swift.models.attention import FLASH as FLASH
    from swift.models.attention import FLASHES as FLASHES
    from swift.models.attention import AttentionChoice as AttentionChoice
    from swift.models.attention import choose_attention as choose_attention
    from swift.models.attention import use_attention as use_attention
    from swift.models.classes import is_encoder as is_encoder
    from swift.models.config_file import read_config as read_config
    from swift.models.load_adapter import attach_adapter as attach_adapter
    from swift.models.load_adapter import peft_config as peft_config
    from swift.models.locate import folder_of as folder_of
    from swift.models.locate import locate_model as locate_model
    from swift.models.media import ProcessorReader as ProcessorReader
    from swift.models.media_processor import MediaProcessor as MediaProcessor
    from swift.models.media_processor import without_video_processor as without_video_processor
    from swift.models.memory import available_bytes as available_bytes
    from swift.models.names import base_model as base_model
    from swift.models.names import cache_argument as cache_argument
    from swift.models.names import name_map as name_map
    from swift.models.opening import as_model_error as as_model_error
    from swift.models.pair_template import renders_pairs as renders_pairs
    from swift.models.pair_template import stored_pair_template as stored_pair_template
    from swift.models.pair_template import stored_yes_no_tokens as stored_yes_no_tokens
    from swift.models.pair_template import template_of_export as template_of_export
    from swift.models.pair_template import with_pairs as with_pairs
    from swift.models.pair_template import write_pair_template as write_pair_template
    from swift.models.plain_lora import is_start as is_start
    from swift.models.precision import DTYPES as DTYPES
    from swift.models.precision import resolve_dtype as resolve_dtype
    from swift.models.sentence_files import add_prompts as add_prompts
    from swift.models.sentence_files import stored_prompts as stored_prompts
    from swift.models.source import HfSource as HfSource
    from swift.models.source import open_source as open_source
    from swift.models.stored_task import holds_head as holds_head
    from swift.models.stored_task import settings_of_adapter as settings_of_adapter
    from swift.models.stored_task import settings_of_folder as settings_of_folder
    from swift.models.tokenizer import check_tokenizer as check_tokenizer
    from swift.models.tokenizer import copy_tokenizer as copy_tokenizer
    from swift.models.view import ViewModule as ViewModule
    from swift.models.weights_check import check_finite as check_finite
    from swift.models.weights_check import check_weights as check_weights

__getattr__ = lazy_names(
    __name__,
    {
        "attention": "AttentionChoice FLASH FLASHES choose_attention use_attention",
        "classes": "is_encoder",
        "config_file": "read_config",
        "load_adapter": "attach_adapter peft_config",
        "locate": "folder_of locate_model",
        "media": "ProcessorReader",
        "media_processor": "MediaProcessor without_video_processor",
        "memory": "available_bytes",
        "names": "base_model cache_argument name_map",
        "opening": "as_model_error",
        "pair_template": "renders_pairs stored_pair_template stored_yes_no_tokens template_of_export "
        "with_pairs write_pair_template",
        "plain_lora": "is_start",
        "precision": "DTYPES resolve_dtype",
        "sentence_files": "add_prompts stored_prompts",
        "source": "HfSource open_source",
        "stored_task": "holds_head settings_of_adapter settings_of_folder",
        "tokenizer": "check_tokenizer copy_tokenizer",
        "view": "ViewModule",
        "weights_check": "check_finite check_weights",
    },
)
