"""Tiny models of every type that reads images, with processors that read small images as those of released models.

A type keeps its own image processor, vision encoder and way of placing images in a text. Its processor is made twice:
first with a tokenizer that has every token that it is asked for, then with one that has just those.
"""

from __future__ import annotations

import inspect
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers
from tiny_images import chat_template, image, tokenizer_with
from tiny_types import CHANGES as TEXT_CHANGES
from tiny_types import HIDDEN, SIZES, WINDOW, small_config, with_weights_that_matter
from transformers import AutoModelForImageTextToText, PreTrainedTokenizerFast
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.feature_extraction_auto import FEATURE_EXTRACTOR_MAPPING_NAMES
from transformers.models.auto.image_processing_auto import IMAGE_PROCESSOR_MAPPING_NAMES
from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING as CLASSES
from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES
from transformers.models.auto.processing_auto import PROCESSOR_MAPPING_NAMES
from transformers.models.auto.video_processing_auto import VIDEO_PROCESSOR_MAPPING_NAMES
from transformers.utils import is_torchvision_available

from swift.models.classes import causal_class, refusal
from swift.models.media_processor import without_video_processor

PATCH, SIDE = 16, 64
"""Sides of a patch, and of an image or a tile as an encoder sees it."""
CODES, FIRST_CODE = 32, 350
"""Quantized values of images, and the first token that stands for one."""
SQUARE = {"height": SIDE, "width": SIDE}
LARGEST = 2 * SIDE
PINS = [[SIDE, LARGEST], [LARGEST, SIDE], [LARGEST, LARGEST]]
BUDGET = {"shortest_edge": 32 * 32, "longest_edge": LARGEST * LARGEST}
"""Limits of pixels, where an image processor's size is that."""
IMAGE_SIZES: dict[str, Any] = {
    **SIZES,
    **dict.fromkeys(("vocab_size", "vocab_size_per_layer_input"), 400),
    "max_position_embeddings": 2048,
    **dict.fromkeys(("image_size", "img_size", "resolution", "max_image_size", "max_img_size"), SIDE),
    "patch_size": PATCH,
    "image_grid_pinpoints": PINS,
    **dict.fromkeys(("embed_dim", "out_hidden_size", "projection_dim", "projector_hidden_size"), HIDDEN),
    **dict.fromkeys(("alignment_intermediate_size", "text_hidden_size", "encoder_hidden_size"), HIDDEN),
    **dict.fromkeys(("projection_hidden_size", "vision_hidden_size", "output_dim"), HIDDEN),
    "depth": 4,
    "resampler_depth": 2,
    "deepstack_visual_indexes": [0, 2],
    "insert_layer_id": 1,
    "fullatt_block_indexes": [1, 3],
    "global_attn_indexes": [1, 3],
    **dict.fromkeys(("image_seq_length", "num_image_tokens", "num_patches"), (SIDE // PATCH) ** 2),
    **dict.fromkeys(("mm_tokens_per_image", "num_query_tokens", "resampler_n_latents"), 4),
    "num_position_embeddings": 64,
    **dict.fromkeys(("pos_emb_height", "pos_emb_width"), 8),
    **dict.fromkeys(("base_channels", "latent_channels", "num_embeddings"), 32),
}
"""Names of sizes in the configurations of models that read images → what a tiny one has."""
OF_IMAGES: dict[str, Any] = {
    **dict.fromkeys(("crop_size", "pad_size", "high_res_size"), SQUARE),
    "image_grid_pinpoints": PINS,
    **dict.fromkeys(("max_patches", "max_image_tiles", "max_num_tiles"), 4),
    "tile_size": SIDE,
    "max_image_size": {"longest_edge": SIDE},
    "patch_size": PATCH,
}
"""The same for settings of image processors."""


@dataclass(frozen=True)
class Change:
    """What a type needs besides small sizes."""

    config: Mapping[str, Any] = field(default_factory=dict)
    parts: Mapping[str, str] = field(default_factory=dict)
    """Parts of the configuration that are of another type than the default."""
    images: Mapping[str, Any] = field(default_factory=dict)
    videos: Mapping[str, Any] = field(default_factory=dict)
    processor: Mapping[str, Any] = field(default_factory=dict)
    kind: str = ""
    """The processor's class, where transformers does not name it."""
    sees: str = ""
    """The same for the part that reads images."""
    hears: str = ""
    """The same for the part that hears."""
    shown: str = "image_token"
    """The processor's attribute that a chat template writes for an image."""
    names_tokens: bool = True
    """Whether the tokenizer has attributes for the tokens of images."""
    codes: Callable[[int], str] | None = None
    """The name of the token of a quantized value, where each has one in the vocabulary."""
    ends: bool = False
    """Whether its processor ends every text with the tokenizer's separator."""


_ROPE = {"rope_type": "default", "rope_theta": 10000.0}
_HEAD = SIZES["head_dim"]
_CLIP = {"num_additional_image_tokens": 1}  # the encoder's own class token
_FOUR = {"image_seq_length": 4}
_THINKER = {"hears": "WhisperFeatureExtractor", "config": {"vision_start_token_id": 1}}
CHANGES: dict[str, Change] = {
    "aria": Change(
        config={
            "projector_patch_to_query_dict": {196: 4}, "max_value_projector_patch_to_query_dict": 4,
            "vision_config": {"patch_size": 70, "image_size": 980},
        },
        images={"max_image_size": 980},
        processor={"size_conversion": {980: 4}},
    ),
    "aya_vision": Change(processor={"img_size": SIDE}),
    "chameleon": Change(
        codes=lambda code: f"IMGIMG{''.join(chr(ord('A') + int(each)) for each in str(code))}Z",
        ends=True, processor={"image_seq_length": 16},
    ),
    "cohere2_vision": Change(
        # Its processor writes as many tokens as a patch has pixels.
        config={"vision_config": {"patch_size": 4, "image_size": 32}},
        images={"patch_size": 4, "size": {"height": 32, "width": 32}},
    ),
    "cohere_compass": Change(
        config={"text_config": {"rope_parameters": {"full_attention": {**_ROPE, "mrope_section": [2, 3, 3]}}}},
        names_tokens=False,
    ),
    "cosmos3_omni": Change(kind="Qwen3VLProcessor"),
    "deepseek_ocr2": Change(
        config={
            "text_config": {"num_experts_per_tok": 2, "mlp_layer_types": ["dense", "sparse", "sparse", "sparse"]},
            "vision_config": {
                "sam_config": {
                    "patch_size": 4, "image_size": 256, "num_hidden_layers": 2, "num_attention_heads": 1,
                    "global_attn_indexes": [1],
                    "downsample_channels": [HIDDEN, HIDDEN],
                },
            },
        },
        # The encoder makes 256 tokens of an image, and 144 of a tile, whatever their sizes.
        images={"size": {"height": 256, "width": 256}, "tile_size": 192},
        processor={"patch_size": 4},
    ),
    "deepseek_vl": Change(processor={"num_image_tokens": 16}),
    "deepseek_vl_hybrid": Change(processor={"num_image_tokens": 16}),
    "emu3": Change(
        config={"vq_config": {"codebook_size": CODES, "hidden_size": 2 * HIDDEN}},
        images={"min_pixels": SIDE * SIDE, "max_pixels": LARGEST * SIDE},
        codes=lambda code: f"<|visual token {code:06d}|>",
    ),
    "ernie4_5_vl_moe": Change(
        config={"text_config": {"rope_parameters": {**_ROPE, "mrope_section": [3, 3, 2]}}},
        videos={"draw_on_frames": False},
    ),
    "fast_vlm": Change(
        config={
            "vision_config": {
                "architecture": "fastvit_mci3", "do_pooling": True, "hidden_size": 2 * HIDDEN,
                "model_args": {"inference_mode": True, "layers": [1] * 5, "embed_dims": [16, 16, 32, HIDDEN, HIDDEN]},
            },
        },
        kind="LlavaProcessor", sees="CLIPImageProcessor",
        images={"size": {"shortest_edge": LARGEST}, "crop_size": {"height": LARGEST, "width": LARGEST}},
        processor={"patch_size": 64, "num_additional_image_tokens": 0, "vision_feature_select_strategy": "full"},
    ),
    "gemma3": Change(processor=_FOUR),
    "gemma3n": Change(
        config={
            "text_config": TEXT_CHANGES["gemma3n_text"],
            "vision_config": {"model_args": {"channel_multiplier": 0.125}, "hidden_size": 2048},
        },
    ),
    "gemma4": Change(parts={"vision_config": "gemma4_vision"}, images={"max_soft_tokens": 70}),
    "gemma4_unified": Change(parts={"vision_config": "gemma4_unified_vision"}, images={"max_soft_tokens": 70}),
    "glm_ocr": Change(kind="Glm46VProcessor"),
    "glmga": Change(kind="Glm46VProcessor"),
    "got_ocr2": Change(
        # As many patches as of a page: its processor writes 256 tokens, whatever the size.
        config={
            "vision_config": {
                "patch_size": 1, "num_hidden_layers": 2, "num_attention_heads": 1, "global_attn_indexes": [1],
            },
        },
    ),
    "granite4_vision": Change(
        config={
            "downsample_rate": "1/2", "vision_feature_select_strategy": "full", "spatial_target_layers": [0, 1, 2, 3],
            "deepstack_layer_map": [[-2, 0], [-1, 1]],
        },
        parts={"text_config": "granite"},
    ),
    "hunyuan_vl": Change(config={"text_config": {"head_dim": _HEAD}}),
    "idefics2": Change(processor={"image_seq_len": 4}),
    "idefics3": Change(processor={"image_seq_len": 4}),
    "inkling_mm_model": Change(
        config={"vision_config": {"patch_size": 40}}, images={"size": {"height": 40, "width": 40}}
    ),
    "internvl": Change(config=_FOUR),
    "llama4": Change(
        config={
            "vision_config": {
                "intermediate_size": 4 * HIDDEN, "projector_input_dim": HIDDEN, "projector_output_dim": HIDDEN,
                "vision_output_dim": HIDDEN,
            },
        },
    ),
    "llava": Change(processor=_CLIP),
    "llava_next": Change(processor=_CLIP),
    "llava_next_video": Change(processor=_CLIP),
    "llava_onevision": Change(processor={"num_image_tokens": 16}),
    "muse_glimmer": Change(config={"out_hidden_size": 4 * HIDDEN}),
    "ovis2": Change(processor={"image_seq_length": 16}),
    "paligemma": Change(
        # Its processor adds a thousand tokens for places in an image.
        config={"text_config": {"vocab_size": 1500}}, names_tokens=False, images={"image_seq_length": 16}),
    "perception_lm": Change(
        config={
            "vision_config": {
                "architecture": "vit_pe_core_tiny_patch16_384", "do_pooling": False,
                "model_args": {
                    "img_size": [SIDE, SIDE], "embed_dim": HIDDEN, "depth": 2, "num_heads": 4, "global_pool": "",
                    "use_post_transformer_norm": False,
                },
            },
            "projector_pooling_ratio": 2,
        },
        # Of tiles it makes as many as an image has, and does not stack them where images differ.
        images={"vision_input_type": "vanilla"}, processor={"patch_size": PATCH, "pooling_ratio": 2},
    ),
    "qianfan_ocr": Change(config=_FOUR, shown="image_placeholder_token"),
    "qwen2_5_omni_thinker": Change(kind="Qwen2_5OmniProcessor", **_THINKER),
    "qwen3_omni_moe_thinker": Change(kind="Qwen3OmniMoeProcessor", **_THINKER),
    "qwen4_exp": Change(config=TEXT_CHANGES["qwen4_exp"]),
    "shieldgemma2": Change(kind="Gemma3Processor", processor=_FOUR),
    "smolvlm": Change(processor={"image_seq_len": 4}),
    "step3p7": Change(
        config={"text_config": {"sliding_window": WINDOW}}, images={"patch_size": SIDE, "vision_patch_size": PATCH}
    ),
    "video_llava": Change(images={"size": {"shortest_edge": SIDE}, "crop_size": SQUARE}),
    "vipllava": Change(
        config={"vision_feature_layers": [-2, -1]}, processor={**_CLIP, "vision_feature_select_strategy": "default"}
    ),
}  # fmt: skip
_FIRST = "its processor puts one image before all text, and takes no other"
NOT_MADE: dict[str, str] = {
    "blip-2": _FIRST,
    "fuyu": _FIRST,
    "git": _FIRST,
    "instructblip": _FIRST,
    "mllama": "reads images by cross-attention; swift trains its language model alone",
    "mistral4": "reads no images, and is in the table above",
    "nemotron_h_omni": "the part of its processor that hears needs librosa, which is not installed",
    "pp_chart2table": _FIRST,
    "vision-encoder-decoder": "a pair of any two models, an encoder and a decoder with cross-attention",
}
"""Types without a tiny model, and why."""


def types() -> list[str]:
    """Return every type that transformers lists as reading images and writing text."""
    return sorted(MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES)


def refused_type(name: str) -> str:
    """Return why swift trains no model of a type on images, if its configuration tells; '' if it does."""
    config = CONFIG_MAPPING[name]()
    return "" if causal_class(config) is not None else refusal(config, name)


def tiny_image_parts(name: str) -> tuple[Any, Any]:
    """Return a tiny configuration of a type, and its processor."""
    change, kind = CHANGES.get(name, Change()), CONFIG_MAPPING[name]
    own = dict(change.config)
    own |= {part: small_config(CONFIG_MAPPING[each], {}, IMAGE_SIZES) for part, each in change.parts.items()}
    if "text_config" not in change.parts and _has_rows_of_positions(kind):
        own["text_config"] = {"rope_parameters": _rows_of(kind), **own.get("text_config", {})}
    config = small_config(kind, own, IMAGE_SIZES)
    processor, placeholder = _processor(name, config, change)
    tokenizer = processor.tokenizer
    if change.codes is not None:
        codes = {change.codes(code): FIRST_CODE + code for code in range(CODES)}
        image_id = tokenizer.convert_tokens_to_ids(placeholder)
        config.vocabulary_map = {"<image>": image_id, "<|extra_200|>": FIRST_CODE + CODES, **codes}
    for part in _parts(config):
        for token_name, setting in _token_settings(part):
            token = placeholder if token_name == "image_token" else _token(token_name, processor)
            setattr(part, setting, tokenizer.convert_tokens_to_ids(token))
        part.pad_token_id, part.eos_token_id = tokenizer.pad_token_id, tokenizer.eos_token_id
        part.bos_token_id = tokenizer.bos_token_id
    return config, processor


def _parts(config: Any) -> list[Any]:
    return [config, *(part for name in config.sub_configs if (part := getattr(config, name)) is not None)]


def _token_settings(config: Any) -> Iterator[tuple[str, str]]:
    """Yield the names of special tokens of media, each with the setting that holds its id."""
    for setting, value in config.to_dict().items():
        found = re.fullmatch(r"(\w+_token)_(?:id|index)", setting)
        is_id = isinstance(value, int) or (value is None and found and found[1] in ("image_token", "video_token"))
        if found and is_id and found[1] not in ("bos_token", "eos_token", "pad_token"):
            yield found[1], setting


def _token(name: str, processor: Any) -> str:
    token = getattr(processor, name, None) or getattr(processor.tokenizer, name, None)
    return token if isinstance(token, str) else f"<|{name.removesuffix('_token')}|>"


def _has_rows_of_positions(kind: Any) -> bool:
    module = inspect.getmodule(CLASSES[kind])
    return any(hasattr(each, "get_rope_index") for each in vars(module).values() if inspect.isclass(each))


def _rows_of(kind: Any) -> dict[str, Any]:
    """Return a type's own rotary positions, divided into three rows for a small head."""
    default = kind().get_text_config().rope_parameters or {}
    part = max(default.get("partial_rotary_factor", 1.0), 0.5)
    pairs = int(_HEAD * part) // 2
    rows = [pairs - 2 * (pairs // 3), pairs // 3, pairs // 3]
    return {**_ROPE, **default, "partial_rotary_factor": part, "mrope_section": rows}


def _processor(name: str, config: Any, change: Change) -> tuple[Any, str]:
    """Return the processor of a type, and the token that it repeats for an image."""
    kind = getattr(transformers, change.kind or PROCESSOR_MAPPING_NAMES[name])
    plain = tokenizer_with((), {})
    asked = AskedTokenizer(
        tokenizer_object=plain._tokenizer, names_tokens=change.names_tokens, bos_token="<|endoftext|>",
        eos_token=plain.eos_token, pad_token=plain.pad_token,
        **({"sep_token": "<|endoftext|>"} if change.ends else {}),
    )  # fmt: skip
    first = _with_tokenizer(kind, name, config, change, asked)
    asked.learn(*(value for key, value in vars(first).items() if key.endswith("token") and isinstance(value, str)))
    asked.learn(*(_token(each, first) for each, _ in _token_settings(config)))
    template = _shown(first, config, change)
    shown = image(90, 61, 0)
    ids = first(text=[template], images=[shown], add_special_tokens=False, return_tensors="pt")["input_ids"][0]
    asked.learn(*re.findall(r"<[^<>\s]+>", asked.decode(ids)))
    tokens = Counter(token for token in asked.tokenize(asked.decode(ids)) if token in asked.get_added_vocab())
    tokenizer = tokenizer_with(asked.learned, asked.named)
    tokenizer.bos_token = "<|endoftext|>"
    tokenizer.sep_token = asked.sep_token
    processor = _with_tokenizer(kind, name, config, change, tokenizer)
    processor.chat_template = tokenizer.chat_template = chat_template(template)
    return processor, tokens.most_common(1)[0][0]


def _shown(processor: Any, config: Any, change: Change) -> str:
    """Return what a chat template writes for an image: between two tokens where the type has such."""
    shown = str(getattr(processor, change.shown))
    for kind in ("vision", "image"):
        first, last = f"{kind}_start_token", f"{kind}_end_token"
        if hasattr(config, f"{first}_id") or hasattr(processor, first):
            start, end = _token(first, processor), _token(last, processor)
            processor.tokenizer.learn(start, end)
            return f"{start}{shown}{end}"
    return shown


class AskedTokenizer(PreTrainedTokenizerFast):
    """A tokenizer that has every special token that it is asked for."""

    def __init__(self, *, names_tokens: bool, **settings: Any) -> None:
        self.__dict__.update(learned=[], named={}, names_tokens=names_tokens)
        super().__init__(**settings)

    def learn(self, *tokens: str) -> None:
        """Add tokens that are not there."""
        for token in tokens:
            if token and token not in self.get_vocab():
                self.learned.append(token)
                self.add_special_tokens({"additional_special_tokens": [token]}, replace_extra_special_tokens=False)

    def __getattr__(self, name: str) -> Any:
        found = re.fullmatch(r"([a-z]\w*_token)(_id)?", name)
        ours = found and self.names_tokens and not name.startswith("add_")
        if not found or not ours or found[1] in self.SPECIAL_TOKENS_ATTRIBUTES:
            return super().__getattr__(name)
        token = self.named.setdefault(found[1], f"<|{found[1].removesuffix('_token')}|>")
        self.learn(token)
        return self.convert_tokens_to_ids(token) if found[2] else token

    def convert_tokens_to_ids(self, tokens: Any) -> Any:
        if isinstance(tokens, str):
            self.learn(tokens)
        return super().convert_tokens_to_ids(tokens)


def _with_tokenizer(kind: Any, name: str, config: Any, change: Change, tokenizer: Any) -> Any:
    """Return a processor of a class with all its parts, and settings from the configuration."""
    parts: dict[str, Any] = {}
    for part in kind.get_attributes():
        if part == "image_processor":
            parts[part] = _image_processor(name, change)
        elif part == "feature_extractor":
            parts[part] = _class_of(change.hears or FEATURE_EXTRACTOR_MAPPING_NAMES[name])()
        elif part.endswith("tokenizer"):
            parts[part] = tokenizer
        elif part == "video_processor" and is_torchvision_available():
            classes = VIDEO_PROCESSOR_MAPPING_NAMES.get(name) or "Qwen2VLVideoProcessor"
            parts[part] = _class_of(classes)(**change.videos)
        else:
            kind = without_video_processor(kind)
    settings: dict[str, Any] = {}
    for parameter in set(inspect.signature(kind.__init__).parameters) - {*parts, "chat_template"}:
        values = [getattr(part, parameter, None) for part in _parts(config)]
        if not parameter.endswith("token") and (known := [value for value in values if value is not None]):
            settings[parameter] = known[0]
    return kind(**parts, **{**settings, **change.processor})


def _class_of(classes: Any) -> Any:
    """Return the class that the installed packages allow."""
    if isinstance(classes, dict):
        by_vision = classes.get("torchvision") if is_torchvision_available() else None
        classes = by_vision or classes.get("pil") or classes["torchvision"]
    return getattr(transformers, classes)


def _image_processor(name: str, change: Change) -> Any:
    kind = _class_of(
        change.sees or IMAGE_PROCESSOR_MAPPING_NAMES.get(name) or IMAGE_PROCESSOR_MAPPING_NAMES["qwen2_vl"]
    )
    settings: dict[str, Any] = {}
    for setting, small in OF_IMAGES.items():
        value = getattr(kind, setting, None)
        if isinstance(value, dict) and not isinstance(small, dict):
            small = dict.fromkeys(value, small)
        if type(value) is type(small):
            settings[setting] = small
    if size := getattr(kind, "size", None):
        settings["size"] = _size(size)
    return kind(**{**settings, **change.images})


def _size(size: Mapping[str, int]) -> Mapping[str, int]:
    if set(size) == {"shortest_edge", "longest_edge"}:
        is_budget = size["longest_edge"] > 5000  # pixels in all, and not along an edge
        return BUDGET if is_budget else {"shortest_edge": SIDE, "longest_edge": LARGEST}
    return dict.fromkeys(size, LARGEST if set(size) == {"longest_edge"} else SIDE)


def tiny_image_model(config: Any, seed: int = 0) -> Any:
    """Return a tiny model whose weights all matter."""
    torch.manual_seed(seed)
    model = with_weights_that_matter(AutoModelForImageTextToText.from_config(config, dtype=torch.float32))
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, torch.nn.Conv2d):  # so that deep encoders pass images on
                module.weight.normal_(std=(2 / module.weight[0].numel()) ** 0.5)
    return model


def write_tiny_image(name: str, folder: Path) -> Any:
    """Write a tiny model and its processor; return the processor, read again as some settings change by that."""
    config, processor = tiny_image_parts(name)
    tiny_image_model(config).save_pretrained(folder)
    # Once more: code of some types zeroes the padding token's row when it loads.
    AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32).save_pretrained(folder)
    processor.save_pretrained(folder)
    stored = type(processor).from_pretrained(folder)
    stored.chat_template = stored.tokenizer.chat_template
    return stored
