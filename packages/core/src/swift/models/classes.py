"""Choose the transformers class of a configuration of a causal language model, with or without an encoder."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from swift.errors import ModelError

if TYPE_CHECKING:
    from swift.config.sections import ModelSection

ENCODERS = frozenset(
    {"albert", "bert", "big_bird", "camembert", "convbert", "data2vec-text", "deberta", "deberta-v2",
     "distilbert", "electra", "ernie", "esm", "esmc", "eurobert", "flaubert", "fnet", "funnel", "gte", "ibert",
     "jina_embeddings_v3", "longformer", "mobilebert", "modernbert", "mpnet", "mra", "neomme",
     "nomic_bert", "nystromformer", "rembert", "roberta", "roberta-prelayernorm", "roc_bert", "roformer",
     "squeezebert", "xlm", "xlm-roberta", "xlm-roberta-xl", "xmod", "yoso"}
)  # fmt: skip
"""Types of encoders, to be refused as language models without torch; `is_encoder` finds all."""
ENCODER_TASKS = ("embedding", "seq_cls")

DECODERS = "Use a decoder such as qwen3-0.6b or, for embeddings, Qwen/Qwen3-Embedding-0.6B."
"""What to type where a model is not a causal language model."""
OF_ENCODERS = (
    "Type --task_type embedding, --task_type reranker, or --task_type seq_cls --num_labels N. To train a language "
    "model, use a decoder such as qwen3-0.6b."
)
"""What to type where an encoder is to be a language model."""
OF_HALVES = "Type --task_type embedding. To train a language model, use a decoder such as qwen3-0.6b."
"""What to type for an encoder-decoder of which the encoder can be trained alone."""


def is_encoder(config: Any) -> bool:
    """Return whether a model of text sees the tokens before and after each: transformers trains it by masking."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING

    if encoder_half(config) is not None:
        return True
    decodes = getattr(config, "is_decoder", False) or _encodes_first(config)
    return type(config) in MODEL_FOR_MASKED_LM_MAPPING and not decodes and config.get_text_config() is config


def body_class(config: Any) -> Any:
    """Return the class whose flags say which attention kernels a model supports; None where there is no class."""
    return encoder_body(config) if is_encoder(config) else causal_class(config)


def encoder_body(config: Any) -> Any:
    """Return transformers' class of an encoder without a head; of Funnel, which has two, the one for each token."""
    from transformers.models.auto.modeling_auto import MODEL_MAPPING

    found = encoder_half(config) or MODEL_MAPPING[type(config)]
    return found[0] if isinstance(found, tuple) else found


def encoder_half(config: Any) -> Any:
    """Return the class of the encoder alone of an encoder-decoder such as T5; None where transformers has none."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_TEXT_ENCODING_MAPPING

    found = MODEL_FOR_TEXT_ENCODING_MAPPING.get(type(config), None)
    return found if found is not None and found.__name__.endswith("EncoderModel") and not config.sub_configs else None


def causal_class(config: Any) -> Any:
    """Return the transformers class that predicts tokens for this configuration; None where there is none.

    Where one configuration has a class with an encoder and one for text, `architectures` of config.json says which
    of them the weights were saved by, and the one with the encoder is taken where it says neither.
    """
    from transformers.models.auto import modeling_auto as auto

    text = auto.MODEL_FOR_CAUSAL_LM_MAPPING.get(type(config), None) or _text_alone(config)
    with_encoder = encoder_class(config)
    if with_encoder is None or text is with_encoder:
        return text
    named = getattr(config, "architectures", None) or ()
    return text if text is not None and text.__name__ in named else with_encoder


def encoder_class(config: Any) -> Any:
    """Return the class that reads images or audio and writes text; None where transformers has no such class."""
    from transformers.models.auto import modeling_auto as auto

    images = auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING.get(type(config), None)
    if images is not None:
        return images if _puts_images_among_tokens(images, config) else None
    found = auto.MODEL_FOR_MULTIMODAL_LM_MAPPING.get(type(config), None)
    # Models that also speak (Qwen-Omni) are several in one, of which none is `get_text_config`'s alone.
    parts = set(config.sub_configs)
    hears = "text_config" in parts and not parts.isdisjoint({"audio_config", "encoder_config"})
    return found if hears and getattr(config.get_text_config(), "vocab_size", None) else None


def _puts_images_among_tokens(kind: Any, config: Any) -> bool:
    """Return whether a decoder reads what an encoder makes of images among the tokens of its text."""
    from transformers.models.auto import modeling_auto as auto

    # The weights of ShieldGemma 2 are those of a classifier, with other names than the class that writes text has.
    if type(config) in auto.MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING:
        return False
    if _encodes_first(config) or _encodes_first(config.get_text_config()):
        return False
    body = auto.MODEL_MAPPING.get(type(config), None)
    both = ("get_image_features", "get_placeholder_mask")
    return hasattr(kind, both[0]) or all(hasattr(body, name) for name in both)


def _text_alone(config: Any) -> Any:
    """Return the class of a language model that transformers lists with those for images, as Mistral 4's; or None."""
    from transformers.models.auto import modeling_auto as auto

    found = auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING.get(type(config), None)
    return found if found is not None and not config.sub_configs and not _encodes_first(config) else None


def refusal(config: Any, name: str) -> str:
    """Return why swift does not train the model `name`, for which `causal_class` is no decoder, in a sentence."""
    from transformers.models.auto import modeling_auto as auto

    kind = f"{name} is a {config.model_type} model"
    if encoder_half(config) is not None:
        return f"{kind}, an encoder-decoder. swift trains only its encoder, as an embedding model."
    if _encodes_first(config) or _encodes_first(config.get_text_config()):
        return f"{kind}, an encoder-decoder. swift trains decoder-only models."
    if is_encoder(config):
        return no_encoders(name, config.model_type)
    if type(config) in auto.MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING:
        found = auto.MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING[type(config)].__name__
        return f"{kind}. {found} classifies images and writes no text; swift trains language models."
    if type(config) in auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING:
        found = auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING[type(config)].__name__
        return (
            f"{kind}. swift does not train {found}: it does not put images among the tokens of its text "
            "(it has no get_image_features)."
        )
    if type(config) in auto.MODEL_FOR_MULTIMODAL_LM_MAPPING:
        found = auto.MODEL_FOR_MULTIMODAL_LM_MAPPING[type(config)].__name__
        return f"{kind}. swift does not train {found}: it is not one audio encoder followed by a language model."
    return f"{kind}; transformers has no causal language model of this type."


def _encodes_first(config: Any) -> bool:
    return bool(getattr(config, "is_encoder_decoder", False))


def no_encoders(name: str, model_type: str) -> str:
    """Return the sentence that refuses an encoder as a language model."""
    return f"{name} is an encoder ({model_type}). swift trains encoders as embedding models, rerankers and classifiers."


def check_no_encoder(name: str, content: Mapping[str, Any], task: str) -> None:
    """Refuse an encoder for a task that it does not have by the content of its config.json, without transformers."""
    if is_encoder_type(content) and task not in ENCODER_TASKS:
        raise ModelError(no_encoders(name, str(content["model_type"])), hint=OF_ENCODERS)


def is_encoder_type(content: Mapping[str, Any]) -> bool:
    """Return whether the content of a config.json is of an encoder that is known without transformers."""
    return content.get("model_type") in ENCODERS and not content.get("is_decoder")


def has_encoder(config: Any) -> bool:
    """Return whether the model of this configuration is one that reads images or audio."""
    found = encoder_class(config)
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
    import transformers
    from transformers.models.auto import modeling_auto as auto

    by_text = auto.MODEL_FOR_CAUSAL_LM_MAPPING.get(type(config), None)
    if by_text is None and not has_encoder(config) and _text_alone(config) is not None:
        return transformers.AutoModelForImageTextToText
    if not has_encoder(config) or by_text is encoder_class(config):
        return transformers.AutoModelForCausalLM
    by_image = type(config) in auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING
    return transformers.AutoModelForImageTextToText if by_image else transformers.AutoModelForMultimodalLM
