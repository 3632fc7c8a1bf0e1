"""Learning vectors of texts: those that belong together become similar.

Every loss is a mean over the samples of the *global* batch. A sample is a query, its positives and its negatives
(InfoNCE), or a pair with a label (the other losses). Where a loss compares samples with each other, they are those of
the whole global batch on every layout; see `AcrossRows`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from swift.errors import ConfigError
from swift.objectives.across_rows import AcrossRows, Compared
from swift_objectives.embedding_options import EmbeddingOptions

if TYPE_CHECKING:
    import torch

    from swift.contracts import BatchSchedule, ExportContext, ScheduleContext
    from swift.data import GlobalSegments
    from swift_objectives.encodings.embedding import EmbeddingEncoding, Labels


_LOOKED_AT = 100
"""Rows that are looked at for negatives."""


class Embedding(AcrossRows[EmbeddingOptions]):
    """Vectors by InfoNCE (arXiv 1807.03748, with the extensions of Qwen3-Embedding), or by pairs with labels."""

    options_model = EmbeddingOptions
    name = "embedding"
    command = "sft"
    task = "embedding"

    def __init__(self, options: EmbeddingOptions) -> None:
        super().__init__(options)
        alone = options.loss in ("cosine_similarity", "contrastive")
        if alone or (options.loss == "infonce" and not options.in_batch_negatives):
            self.first_pass = None  # no sample is compared with another

    @property
    def encoding(self) -> EmbeddingEncoding:  # type: ignore[override] # the base class has a plain member
        """Return how rows are read: groups for InfoNCE, pairs with labels for the other losses."""
        from swift_objectives.encodings.embedding import EmbeddingEncoding

        options = self.options
        labels: dict[str, Labels] = {"infonce": "none", "cosine_similarity": "similarity"}
        return EmbeddingEncoding(
            labels.get(options.loss, "binary"),
            query_prompt=options.query_prompt,
            document_prompt=options.document_prompt,
            most_negatives=options.hard_negatives,
            needs_negatives=not options.in_batch_negatives,
        )

    def check_config(self, config: Any) -> None:
        """Raise `ConfigError` where a shortened vector would be longer than the model's."""
        longest, size = max(self.options.matryoshka_dims, default=0), config.get_text_config().hidden_size
        if longest > size:
            raise ConfigError(
                f"objective.matryoshka_dims has {longest}, but the model's embeddings have {size} dimensions.",
                hint=f"Pass dimensions up to {size}.",
            )

    def finish_export(self, context: ExportContext) -> None:
        """Store the prompts, and whether vectors have unit length, where sentence-transformers finds them."""
        from swift.models import add_prompts

        prompts = {"query": self.options.query_prompt, "document": self.options.document_prompt}
        add_prompts(context.folder, prompts, unit_length=self.options.normalize)

    def batch_schedule(self, context: ScheduleContext) -> BatchSchedule:
        """Return the usual schedule; refuse one of which a step has nothing to compare."""
        if self.first_pass is not None and context.layout.global_rows == 1 and not context.layout.packing:
            self._check_single_rows(context)
        return context.default()

    def _check_single_rows(self, context: ScheduleContext) -> None:
        """Raise `ConfigError` unless rows have negatives of their own."""
        known = context.samples
        first = [] if known is None else [known[index] for index in range(min(len(known), _LOOKED_AT))]
        negatives = any(len(each.segments) - 1 > each.values["positives"] for each in first)
        if self.options.loss != "infonce" or (known is not None and not negatives):
            raise ConfigError(
                f"The loss {self.options.loss} compares the rows of a step with each other, but a step has one row: "
                "nothing would be learned.",
                hint="Type --per_device_train_batch_size 32, or to save memory --gradient_accumulation_steps N: "
                "rows are compared across both.",
            )
        context.say(
            "A step has one row, so its query is compared only with its own negatives, and rows without negatives "
            "teach nothing. To compare with other rows, type --per_device_train_batch_size N."
        )

    def compare(self, vectors: torch.Tensor, samples: GlobalSegments) -> Compared:
        """Return the loss of each sample; with matryoshka_dims the weighted sum of those of the shortened vectors."""
        dims, options = self.options.matryoshka_dims, self.options
        if not dims:
            return self._compare(vectors, samples)
        weights = options.matryoshka_weights or [1.0] * len(dims)
        parts = {dim: self._compare(vectors[:, :dim], samples) for dim in dims}
        losses = sum(
            (weight * part.losses for weight, part in zip(weights, parts.values(), strict=True)),
            start=vectors.new_zeros(len(samples.sample_segments)),
        )
        return Compared(losses, parts[max(dims)].metrics)

    def _compare(self, vectors: torch.Tensor, samples: GlobalSegments) -> Compared:
        from torch.nn.functional import normalize

        from swift_objectives.embedding_losses import Roles, infonce, labelled_pairs

        options = self.options
        if options.normalize:
            vectors = normalize(vectors, dim=1)
        roles = Roles.of(samples, options.hard_negatives)
        if options.loss == "infonce":
            return infonce(vectors, roles, options)
        return labelled_pairs(vectors, roles, samples.values["label"].to(vectors.dtype), options)
