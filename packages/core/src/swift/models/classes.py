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
    pictures = picture_class(config)
    if pictures is None or text is pictures:
        return text
    named = getattr(config, "architectures", None) or ()
    return text if text is not None and text.__name__ in named else pictures


def picture_class(config: Any) -> Any:
    """Return the class that reads pictures and writes text; None where transformers has no such class."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING as CLASSES

    found = CLASSES.get(type(config), None)
    return found if found is not None and hasattr(found, "get_image_features") else None


def has_tower(config: Any) -> bool:
    """Return whether the model of this configuration is one that reads pictures."""
    found = picture_class(config)
    return found is not None and causal_class(config) is found


def causal_name(config: Any, section: ModelSection) -> str | None:
    """Return the name of the class, of code that comes with the model too where the user lets it run."""
    remote = (getattr(config, "auto_map", None) or {}).get("AutoModelForCausalLM")
    if remote and section.trust_remote_code:
        return str(remote).rpartition(".")[2]
    found = causal_class(config)
    return None if found is None else str(found.__name__)


def auto_class(config: Any) -> Any:
    """Return the class of transformers by which users load a language model of this configuration."""
    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

    by_text = MODEL_FOR_CAUSAL_LM_MAPPING.get(type(config), None)
    return (
        AutoModelForImageTextToText
        if has_tower(config) and by_text is not picture_class(config)
        else AutoModelForCausalLM
    )
