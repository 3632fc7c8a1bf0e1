"""Which transformers class a configuration of a causal language model stands for, with or without a tower."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from swift.config.sections import ModelSection


def causal_class(config: Any) -> Any:
    """Return the transformers class that predicts tokens for this configuration; None where there is none.

    Where one configuration has a class with a tower and one for text alone, `architectures` of config.json says which
    of them the weights were saved by, and the one with the tower is taken where it says neither.
    """
    from transformers.models.auto import modeling_auto as auto

    text = auto.MODEL_FOR_CAUSAL_LM_MAPPING.get(type(config), None)
    towered = towered_class(config)
    if towered is None or text is towered:
        return text
    named = getattr(config, "architectures", None) or ()
    return text if text is not None and text.__name__ in named else towered


def towered_class(config: Any) -> Any:
    """Return the class that reads pictures or sounds and writes text; None where transformers has no such class."""
    from transformers.models.auto import modeling_auto as auto

    pictures = auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING.get(type(config), None)
    if pictures is not None:
        return pictures if hasattr(pictures, "get_image_features") else None
    found = auto.MODEL_FOR_MULTIMODAL_LM_MAPPING.get(type(config), None)
    # Models that also speak (Qwen-Omni) are several in one, of which none is `get_text_config`'s alone.
    heard = found is not None and getattr(config.get_text_config(), "vocab_size", None) and _hears(config)
    return found if heard else None


def has_tower(config: Any) -> bool:
    """Return whether the model of this configuration is one that reads pictures or hears sounds."""
    found = towered_class(config)
    return found is not None and causal_class(config) is found


def _hears(config: Any) -> bool:
    """Return whether a configuration has one part for sounds, and one for text."""
    return {"audio_config", "encoder_config"} & set(config.sub_configs) != set() and "text_config" in config.sub_configs


def causal_name(config: Any, section: ModelSection) -> str | None:
    """Return the name of the class, of code that comes with the model too where the user lets it run."""
    remote = (getattr(config, "auto_map", None) or {}).get("AutoModelForCausalLM")
    if remote and section.trust_remote_code:
        return str(remote).rpartition(".")[2]
    found = causal_class(config)
    return None if found is None else str(found.__name__)


def auto_class(config: Any) -> Any:
    """Return the class of transformers by which users load a language model of this configuration."""
    import transformers
    from transformers.models.auto import modeling_auto as auto

    by_text = auto.MODEL_FOR_CAUSAL_LM_MAPPING.get(type(config), None)
    if not has_tower(config) or by_text is towered_class(config):
        return transformers.AutoModelForCausalLM
    by_picture = type(config) in auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING
    return transformers.AutoModelForImageTextToText if by_picture else transformers.AutoModelForMultimodalLM
