"""Learning to rank: which of the documents of a query answer it.

A sample is a query with its documents, one segment each, those that answer it first. The score of a document is the
output of a head of one label, or what a language model says: how much rather `yes` than `no`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, PositiveFloat, PositiveInt

from swift.config.sections import Section
from swift.contracts import LossSums, ModelView, Need, ServedScores
from swift.errors import ConfigError, ModelError
from swift.objectives.base import BaseObjective, Options, log_sigmoid, viewed

if TYPE_CHECKING:
    import torch

    from swift.contracts import ExportContext
    from swift.data.batch import MicroBatch
    from swift.data.encodings import Conversation, Sample
    from swift.data.samples import SampleFacts
    from swift_objectives.encodings.reranker import Documents, GenerativeRerankerEncoding, RerankerEncoding


class RerankerOptions(Section):
    """Options of `reranker`."""

    loss: Literal["pointwise", "listwise"] = Field(
        "pointwise",
        description="pointwise: score each document by itself; listwise: pick the relevant one among those of a query",
    )
    temperature: PositiveFloat = Field(1.0, description="Temperature of the listwise loss (divisor of the scores)")
    instruction: str | None = Field(None, description="Instruction in front of every query; a row may have its own")
    max_positives: PositiveInt | None = Field(
        None, description="Relevant documents per row; the first N are used (default: all)"
    )
    max_negatives: PositiveInt | None = Field(
        None, description="Irrelevant documents per row; the first N are used (default: all)"
    )


class GenerativeRerankerOptions(RerankerOptions):
    """Options of `generative_reranker`."""

    instruction: str | None = Field(
        "Given a web search query, retrieve relevant passages that answer the query",
        description="Instruction in front of every query; a row may have its own",
    )
    positive_token: str = Field("yes", description="Token that means that a document is relevant")
    negative_token: str = Field("no", description="Token that means that a document is irrelevant")


@dataclass
class Groups:
    """The scores of a micro-batch, [groups, documents of the longest], and what they belong to."""

    scores: torch.Tensor
    """-inf where a group has no such document."""
    exists: torch.Tensor
    """bool: whether a group has such a document."""
    positive: torch.Tensor
    """bool: whether the document answers the query."""
    active: torch.Tensor
    """bool [groups]: False for a dummy."""

    @classmethod
    def of(cls, scores: torch.Tensor, batch: MicroBatch) -> Groups:
        """Return the scores, one per segment, by group."""
        import torch

        sizes = batch.sample_segments.to(scores.device)
        index = torch.arange(int(sizes.max()), device=scores.device)
        exists = index < sizes[:, None]
        counts = torch.zeros_like(exists).masked_scatter(exists, batch.segment_sum((batch.weights > 0).float()) > 0)
        return cls(
            scores.new_full(exists.shape, -torch.inf).masked_scatter(exists, scores),
            exists,
            index < batch.values["positives"][:, None],
            counts.any(1),
        )


class _Reranker(BaseObjective[Options]):
    """A loss over the documents of each query; a subclass reads their scores from the view."""

    command = "sft"
    options: Any
    encoding: RerankerEncoding

    def scores(self, view: ModelView, batch: MicroBatch) -> torch.Tensor:
        """Return the score of each segment, [segments]."""
        raise TypeError(f"{type(self).__name__} must define scores(view, batch)")

    @property
    def documents(self) -> Documents:
        """Return which documents of a row make a sample."""
        from swift_objectives.encodings.reranker import Documents

        options = self.options
        listwise = options.loss == "listwise"
        return Documents(listwise, options.instruction, options.max_positives, options.max_negatives)

    def row_weight(self, samples: Iterable[SampleFacts]) -> float:
        """Return the number of queries (listwise) or of documents (pointwise) that count."""
        active = [sample for sample in samples if sample.loss_weight > 0]
        return float(
            len(active) if self.options.loss == "listwise" else sum(each.values["documents"] for each in active)
        )

    def loss(self, view: ModelView, batch: MicroBatch) -> LossSums:
        """Return the sum over the queries of the micro-batch, or over their documents."""
        scores = self.scores(view, batch).float()
        groups = Groups.of(scores, batch)
        counts = groups.exists & groups.active[:, None]
        if self.options.loss == "listwise":
            # One document of each group is right, and it is the first one.
            losses = -(groups.scores / self.options.temperature).log_softmax(1)[:, 0]
            loss = (losses * groups.active).sum()
        else:
            signed = groups.scores.masked_fill(~groups.exists, 0) * (2 * groups.positive.float() - 1)
            loss = -(log_sigmoid(signed) * counts).sum()
        return LossSums(loss=loss, metrics=_metrics(groups, counts), segments=scores.detach())


class Reranker(_Reranker[RerankerOptions]):
    """A head of one label scores each document with its query (a cross encoder).

    A decoder reads both in one text and scores its end. An encoder reads a pair as its tokenizer joins them, and its
    own head scores it.

    The loss pointwise is the binary cross entropy, a mean over the documents of the global batch; listwise the cross
    entropy of the right document among those of its query, a mean over queries.
    """

    options_model = RerankerOptions
    name = "reranker"
    needs = frozenset({Need.SCORES})
    task = "seq_cls"
    num_labels = 1

    def __init__(self, options: RerankerOptions, *, pairs: bool = False) -> None:
        super().__init__(options)
        from swift_objectives.encodings.reranker import PairEncoding, RerankerEncoding

        self._pairs = pairs
        self.encoding = PairEncoding(self.documents) if pairs else RerankerEncoding(self.documents)

    def for_tokenizer(self, tokenizer: Any) -> Reranker:
        """Return the objective that reads pairs where the tokenizer joins them."""
        from swift.data import joins_pairs

        return Reranker(self.options, pairs=joins_pairs(tokenizer))

    def check_config(self, config: Any) -> None:
        """Raise `ConfigError` for an encoder without pairs, a decoder with them, and an instruction for an encoder."""
        from swift.models import is_encoder

        if is_encoder(config) != self._pairs:
            raise ConfigError(
                f"{config.model_type} is {'a decoder' if self._pairs else 'an encoder'}, and its tokenizer "
                f"{'joins' if self._pairs else 'does not join'} a query and a document with special tokens.",
                hint="Use the tokenizer that belongs to the model.",
            )
        if self._pairs and self.options.instruction is not None:
            raise ConfigError(
                "objective.instruction needs a decoder: an encoder reads the query and the document alone.",
                hint="Leave it out, or write it into the queries.",
            )

    def finish_export(self, context: ExportContext) -> None:
        """Let the chat template render a query with a document, as sentence-transformers and vLLM ask for it.

        They give an encoder pairs by themselves.
        """
        if context.has_model and not _reads_pairs(context.folder):
            from swift.models import template_of_export, with_pairs, write_pair_template

            template = with_pairs(template_of_export(context.folder), self.options.instruction)
            write_pair_template(context.folder, template)

    def scores(self, view: ModelView, batch: MicroBatch) -> torch.Tensor:
        """Return the head's output at the end of each segment."""
        return viewed(view.scores, Need.SCORES)[:, 0]


class GenerativeReranker(_Reranker[GenerativeRerankerOptions]):
    """A language model says yes or no to each document; its score is logit(yes) - logit(no).

    The losses are those of `reranker`: pointwise is the cross entropy between the two answers.
    """

    options_model = GenerativeRerankerOptions
    name = "generative_reranker"
    returns = "scores"
    asks = ("query", "document")
    needs = frozenset({Need.CANDIDATE_LOGPS})
    encoding: GenerativeRerankerEncoding

    def __init__(self, options: GenerativeRerankerOptions, candidates: tuple[int, ...] = ()) -> None:
        super().__init__(options)
        from swift_objectives.encodings.reranker import GenerativeRerankerEncoding

        self.encoding = GenerativeRerankerEncoding(self.documents, options.positive_token, options.negative_token)
        self.candidates = candidates

    def for_tokenizer(self, tokenizer: Any) -> GenerativeReranker:
        """Return the objective with the two answers as tokens."""
        options = self.options
        tokens = {
            "positive_token": _single_token(tokenizer, "positive_token", options.positive_token),
            "negative_token": _single_token(tokenizer, "negative_token", options.negative_token),
        }
        if len(set(tokens.values())) < len(tokens):
            raise ConfigError(f"objective.positive_token and negative_token are both {options.positive_token!r}.")
        return GenerativeReranker(options, tuple(tokens.values()))

    def question(self, *columns: Conversation) -> Sample:
        """Return a query with one document."""
        from swift.data.encodings import Sample
        from swift_objectives.encodings.reranker import pair_of

        query, document = columns
        pair = pair_of(query, document, self.options.instruction)
        return Sample(query, others=(pair,), values={"positives": 0.0})

    def served_scores(self, tokenizer: Any, system: str | None) -> ServedScores:
        """Return the chat template, extended so that it renders a query with a document, and the yes and no tokens."""
        yes, no = tokenizer.convert_ids_to_tokens(list(self.for_tokenizer(tokenizer).candidates))
        return ServedScores(self._template(tokenizer, system), (str(yes), str(no)))

    def _template(self, tokenizer: Any, system: str | None) -> str:
        from swift.data import ChatTemplate
        from swift.models import renders_pairs, with_pairs

        template = tokenizer.chat_template
        if template is None:
            raise ModelError(
                "A generative reranker needs a chat template, but the tokenizer has none.",
                hint="Add a chat_template.jinja to its folder.",
            )
        if renders_pairs(str(template)):
            return str(template)
        around = self.encoding.around(ChatTemplate(tokenizer, {}), system)
        return with_pairs(str(template), self.options.instruction, around)

    def finish_export(self, context: ExportContext) -> None:
        """Let the chat template ask about a document as training did, and name the tokens that say yes and no."""
        if context.has_model:
            from transformers import AutoTokenizer

            from swift.models import write_pair_template

            served = self.served_scores(AutoTokenizer.from_pretrained(context.folder), context.system)
            write_pair_template(context.folder, served.template, served.tokens)

    def scores(self, view: ModelView, batch: MicroBatch) -> torch.Tensor:
        """Return how much rather yes than no: log-probabilities differ by what the logits differ by."""
        logps = viewed(view.candidate_logps, Need.CANDIDATE_LOGPS)
        return batch.segment_sum((logps[..., 0] - logps[..., 1]) * (batch.weights > 0))


def _reads_pairs(folder: Path) -> bool:
    """Return whether the model in a folder is an encoder."""
    from transformers import AutoConfig

    from swift.models import is_encoder

    return is_encoder(AutoConfig.from_pretrained(folder))


def _single_token(tokenizer: Any, key: str, text: str) -> int:
    ids = tokenizer.encode(text, add_special_tokens=False)
    if len(ids) == 1:
        return int(ids[0])
    raise ConfigError(
        f"objective.{key} is {text!r}, which is {len(ids)} tokens for this model; it must be one token.",
        hint=f"Pass a string that is one token: --objective.{key} TEXT",
    )


def _metrics(groups: Groups, counts: torch.Tensor) -> dict[str, tuple[torch.Tensor, torch.Tensor | float]]:
    """Return how well the documents are ranked: ties count half."""
    scores = groups.scores.detach()
    right, wrong = groups.positive & counts, ~groups.positive & counts
    ranked = right.any(1) & wrong.any(1)
    best = scores.masked_fill(~right, float("-inf")).amax(1, keepdim=True)
    rank = 1 + ((scores > best) & wrong).sum(1) + ((scores == best) & wrong).sum(1) / 2
    predicted = (scores > 0) == groups.positive
    return {
        "mrr": ((ranked / rank).sum(), ranked.sum()),
        "accuracy": ((ranked & (rank == 1)).sum().float(), ranked.sum()),
        "document_accuracy": ((predicted & counts).sum().float(), counts.sum()),
    }
