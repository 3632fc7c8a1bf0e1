"""Options of the objective `embedding`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from swift.config.sections import Section

_INFONCE_ONLY = (
    "in_batch_negatives",
    "hard_negatives",
    "mask_false_negatives",
    "mask_duplicates",
    "include_qq",
    "include_dd",
    "symmetric",
    "normalize",
)
_IN_BATCH_ONLY = ("include_qq", "include_dd", "symmetric")


class EmbeddingOptions(Section):
    """Options of `embedding`. Defaults as in ms-swift."""

    loss: Literal["infonce", "cosine_similarity", "contrastive", "online_contrastive"] = Field(
        "infonce", description="InfoNCE over documents, or a loss for labelled pairs"
    )
    temperature: PositiveFloat = Field(
        0.1, description="InfoNCE: divisor of the similarities (sentence-transformers' scale 20 is 0.05)"
    )
    in_batch_negatives: bool = Field(
        True, description="InfoNCE: the documents of all other queries of the global batch are negatives"
    )
    hard_negatives: PositiveInt | None = Field(
        None,
        description="InfoNCE: negatives per row; more are dropped, fewer are repeated (default: all, once)",
    )
    mask_false_negatives: bool = Field(
        False, description="InfoNCE: drop negatives that are more similar to the query than the positive by the margin"
    )
    false_negative_margin: float = Field(
        0.1, description="Margin of mask_false_negatives, a difference of similarities"
    )
    mask_duplicates: bool = Field(
        True, description="InfoNCE: drop negatives from other rows that equal a positive of the query"
    )
    include_qq: bool = Field(False, description="InfoNCE: also use the other queries as negatives of a query")
    include_dd: bool = Field(False, description="InfoNCE: also use the other documents as negatives of the positive")
    symmetric: bool = Field(
        False, description="InfoNCE: average the loss with that of finding the query given its positive"
    )
    normalize: bool = Field(True, description="InfoNCE: compare by cosine similarity; otherwise by the dot product")
    margin: PositiveFloat = Field(
        0.5, description="contrastive, online_contrastive: distance beyond which a negative pair has no loss"
    )
    query_prompt: str = Field("", description="Prefix of every query (or of the first text of a pair)")
    document_prompt: str = Field("", description="Prefix of every document (or of the second text of a pair)")
    matryoshka_dims: list[PositiveInt] = Field(
        [],
        description="Matryoshka learning: also train the embeddings truncated to their first N dimensions, for each N",
    )
    matryoshka_weights: list[PositiveFloat] = Field([], description="Weight of each of matryoshka_dims (default: 1)")

    @model_validator(mode="after")
    def _options_fit_the_loss(self) -> EmbeddingOptions:
        changed = self.model_dump(exclude_defaults=True)
        other_loss, in_batch = self.loss != "infonce", self.in_batch_negatives
        unread = _INFONCE_ONLY if other_loss else () if in_batch else _IN_BATCH_ONLY
        for name in unread:
            if name in changed:
                raise ValueError(f"{name} needs {'loss infonce' if other_loss else 'in_batch_negatives'}")
        if self.matryoshka_weights and len(self.matryoshka_weights) != len(self.matryoshka_dims):
            raise ValueError("matryoshka_weights must have as many numbers as matryoshka_dims")
        return self
