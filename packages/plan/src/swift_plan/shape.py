"""The sizes of a model, from its config.json: how many values each part has, and what a token costs to compute."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from importlib import resources
from pathlib import Path
from typing import Any

from swift.errors import ModelError
from swift.model_names import RELEASED, nearest_alias, resolve_name
from swift.models.sizes import experts_of
from swift.planning import CAUSAL_LM, ENCODERS, StoredConfig, model_config
from swift.untrusted import parse_json

_BERTS = frozenset(
    {"bert", "camembert", "data2vec-text", "distilbert", "ernie", "megatron-bert", "mpnet", "roberta",
     "roberta-prelayernorm", "xlm-roberta", "xlm-roberta-xl"}
)  # fmt: skip
"""Encoders with biases and a table of positions."""
_ENCODERS = _BERTS | {"eurobert", "gte", "modernbert", "nomic_bert"}
_UNGATED = _BERTS | frozenset(
    {"gpt2", "gpt_neox", "gptj", "gpt_bigcode", "opt", "bloom", "falcon", "phi", "starcoder2", "gpt_neo", "codegen",
     "mpt"}
)  # fmt: skip
"""Model types whose MLP has two matrices; all others have a gate as well."""
_NORMED_HEADS = frozenset({"qwen3", "qwen3_moe", "gemma3", "gemma3_text", "olmo2"})
_QKV_BIAS = _BERTS | frozenset({"qwen2", "qwen2_moe", "gpt2", "gpt_neox", "opt", "phi", "starcoder2", "bloom"})
_CUT_BY_COLUMNS = frozenset({"o_proj", "down_proj"})


@dataclass(frozen=True)
class Matrix2:
    """A matrix of a layer, `copies` times."""

    name: str
    rows: int
    columns: int
    copies: int = 1

    @property
    def values(self) -> int:
        """Return the number of its values, all copies together."""
        return self.rows * self.columns * self.copies


@dataclass(frozen=True)
class ModelShape:
    """A decoder or encoder: `layers` of one kind, of which the first `dense_layers` may have an MLP, not experts."""

    name: str
    model_type: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    width: int
    """Of the MLP of a dense layer."""
    gated: bool = True
    tied: bool = False
    unembeds: bool = True
    """Whether it predicts tokens; models of vectors and scores do not. Their small head is not counted."""
    causal: bool = True
    """Whether a token sees only those before it, unlike in an encoder."""
    normed_heads: bool = False
    qkv_bias: bool = False
    positions: int = 0
    """Learned positions, and types of tokens; 0 where positions are rotary."""
    experts: int = 0
    experts_per_token: int = 0
    expert_width: int = 0
    shared_width: int = 0
    """Of the experts that every token takes, together."""
    dense_layers: int = 0
    latent: tuple[int, int, int, int, int] | None = None
    """Multi-head latent attention: ranks of queries (0: none) and of keys, dimensions without and with rotation, and of
    a head's values."""
    config: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)
    """The config.json that the sizes are of."""

    @property
    def expert_layers(self) -> int:
        """Return how many layers deal tokens out to experts."""
        return self.layers - self.dense_layers if self.experts else 0

    @property
    def queries(self) -> int:
        """Return the width of all heads of queries."""
        return self.heads * (self.latent[2] + self.latent[3] if self.latent else self.head_dim)

    @property
    def keys(self) -> int:
        """Return the width of all heads of keys, as attention sees them."""
        return self.queries if self.latent else self.kv_heads * self.head_dim

    def attention_matrices(self) -> Iterator[Matrix2]:
        """Yield the matrices of a layer's attention."""
        if self.latent is None:
            yield Matrix2("q_proj", self.queries, self.hidden)
            yield Matrix2("k_proj", self.keys, self.hidden)
            yield Matrix2("v_proj", self.keys, self.hidden)
            yield Matrix2("o_proj", self.hidden, self.queries)
            return
        query_rank, key_rank, plain, rotated, of_values = self.latent
        if query_rank:
            yield Matrix2("q_a_proj", query_rank, self.hidden)
        yield Matrix2("q_b_proj", self.queries, query_rank or self.hidden)
        yield Matrix2("kv_a_proj", key_rank + rotated, self.hidden)
        yield Matrix2("kv_b_proj", self.heads * (plain + of_values), key_rank)
        yield Matrix2("o_proj", self.hidden, self.heads * of_values)

    def mlp_matrices(self, width: int, copies: int = 1) -> Iterator[Matrix2]:
        """Yield the matrices of an MLP of this width."""
        if self.gated:
            yield Matrix2("gate_proj", width, self.hidden, copies)
        yield Matrix2("up_proj", width, self.hidden, copies)
        yield Matrix2("down_proj", self.hidden, width, copies)

    def stacked_experts(self) -> Iterator[Matrix2]:
        """Yield the matrices of the routed experts of a layer, as transformers stacks them."""
        if self.experts:
            up = Matrix2("gate_up_proj", 2 * self.expert_width, self.hidden, self.experts)
            yield up if self.gated else Matrix2("up_proj", self.expert_width, self.hidden, self.experts)
            yield Matrix2("down_proj", self.hidden, self.expert_width, self.experts)

    def dense_matrices(self, *, with_experts: bool) -> Iterator[Matrix2]:
        """Yield the matrices of a layer that every token passes through."""
        yield from self.attention_matrices()
        if not with_experts:
            yield from self.mlp_matrices(self.width)
            return
        yield Matrix2("router", self.experts, self.hidden)
        if self.shared_width:
            yield from self.mlp_matrices(self.shared_width)

    @cached_property
    def inputs(self) -> tuple[int, int]:
        """Return the widths of what goes into a layer's matrices, together.

        First of those that tensor parallelism cuts by rows, each process with all of the input, then of the others.
        """
        whole = cut = 0
        for each in self.dense_matrices(with_experts=bool(self.experts)):
            if each.name in _CUT_BY_COLUMNS:
                cut += each.columns * each.copies
            elif each.name != "router":
                whole += each.columns * each.copies
        return whole, cut

    @property
    def vectors(self) -> int:
        """Return the values of a layer's norms and biases."""
        count = 2 * self.hidden
        if self.normed_heads:
            count += 2 * self.head_dim
        if self.qkv_bias:
            count += self.queries + 2 * self.keys
        if self.latent:
            count += self.latent[0] + self.latent[1]
        if not self.gated:  # of the older models, whose norms and matrices have biases
            count += 2 * self.hidden + self.hidden + self.width + self.hidden
        return count

    @cached_property
    def _dense_values(self) -> tuple[int, int]:
        """Return the values of the matrices of a layer with an MLP, and of one with experts without these."""
        plain, mixed = (
            sum(matrix.values for matrix in self.dense_matrices(with_experts=with_experts))
            for with_experts in (False, True)
        )
        return plain, mixed

    def layer_values(self, *, with_experts: bool) -> int:
        """Return the values of a layer without its routed experts."""
        return self.vectors + self._dense_values[with_experts]

    @cached_property
    def expert_values(self) -> int:
        """Return the values of all routed experts of a layer."""
        return sum(matrix.values for matrix in self.mlp_matrices(self.expert_width, self.experts))

    @property
    def embedding(self) -> int:
        """Return the values of the embedding, which is the head's size too."""
        return self.vocabulary * self.hidden

    @property
    def own_head(self) -> bool:
        """Return whether it has an unembedding that is not its embedding."""
        return self.unembeds and not self.tied

    @property
    def end_values(self) -> int:
        """Return the values of embedding, positions, last norm and head."""
        return self.embedding * (1 + self.own_head) + self.hidden * (1 + self.positions)

    @property
    def parameters(self) -> int:
        """Return how many values the model has."""
        dense = self.layers - self.expert_layers
        return (
            self.end_values
            + dense * self.layer_values(with_experts=False)
            + self.expert_layers * (self.layer_values(with_experts=True) + self.expert_values)
        )

    @property
    def active_parameters(self) -> int:
        """Return how many of them a token passes through."""
        if not self.experts:
            return self.parameters
        idle = self.expert_values * (1 - self.experts_per_token / self.experts)
        return round(self.parameters - self.expert_layers * idle)

    def layer_flops(self, length: float, *, with_experts: bool) -> float:
        """Return the operations of one layer's forward pass for a token of a text: it sees half of it, or all."""
        values = float(self._dense_values[with_experts])
        if with_experts:
            values += self.expert_values * self.experts_per_token / self.experts
        values_width = self.heads * self.latent[4] if self.latent else self.queries
        return 2.0 * values + length * (self.queries + values_width) * (1 if self.causal else 2)

    @property
    def head_flops(self) -> float:
        """Return the operations of the head's forward pass for one token."""
        return 2.0 * self.embedding * self.unembeds


@cache
def known_models() -> Mapping[str, Mapping[str, Any]]:
    """Return the configurations that come with the planner, by hub id: those of all short names of models."""
    text = (resources.files("swift_plan") / "assets" / "models.json").read_text(encoding="utf-8")
    models: Mapping[str, Mapping[str, Any]] = parse_json(text, "models.json", ModelError)
    return models


def config_of(typed: str, task: str = CAUSAL_LM) -> Mapping[str, Any]:
    """Return config.json of what was typed: a folder, the file, a model on this machine, or a known name."""
    name = resolve_name(typed)[0].removesuffix("-Instruct")
    if not Path(typed).exists() and name in known_models():
        return known_models()[name]
    try:
        return model_config(typed, task)
    except ModelError as error:
        known = f"Known by name: {', '.join(RELEASED)}.{nearest_alias(typed)}"
        raise ModelError(error.message, hint=f"{error.hint or ''}\n{known}".strip()) from None


def shape_of(config: Mapping[str, Any], name: str, task: str = CAUSAL_LM) -> ModelShape:
    """Return the sizes that a config.json tells of a model for a task; `ModelError` names what it does not tell."""
    text = StoredConfig(config).get_text_config()

    def get(*names: str, default: Any = None) -> Any:
        for each in names:
            found = getattr(text, each, None)
            if found is not None:
                return found
        if default is not None:
            return default
        raise ModelError(
            f"Cannot plan {name}: its config.json has no {names[0]}.",
            hint="Only models of text, and the language model of vision models, can be planned.",
        )

    kind = str(getattr(text, "model_type", None) or config.get("model_type") or "")
    halves = getattr(text, "is_encoder_decoder", False)
    if halves or kind in ENCODERS - _ENCODERS:
        raise ModelError(
            f"Cannot plan {name}: {kind} {'models are encoder-decoders' if halves else 'encoders are not counted'}.",
            hint=f"Train it without a plan. Encoders that can be planned: {', '.join(sorted(_ENCODERS))}",
        )
    hidden = int(get("hidden_size", "n_embd", "d_model", "dim"))
    heads = int(get("num_attention_heads", "n_head", "n_heads"))
    layers = int(get("num_hidden_layers", "n_layer", "n_layers"))
    experts = experts_of(text)
    gated = kind not in _UNGATED
    width = get("intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size", "hidden_dim", default=4 * hidden)
    expert_width = int(get("moe_intermediate_size", default=width)) if experts else 0
    shared = int(getattr(text, "shared_expert_intermediate_size", None) or 0)
    shared = shared or int(getattr(text, "n_shared_experts", None) or 0) * expert_width
    return ModelShape(
        name=name,
        model_type=kind,
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=int(get("num_key_value_heads", default=heads)),
        head_dim=int(get("head_dim", default=hidden // heads)),
        vocabulary=int(get("vocab_size")),
        width=max(width) if isinstance(width, list) else int(width),
        gated=gated,
        tied=bool(getattr(text, "tie_word_embeddings", None) or (kind == "gpt2")),
        normed_heads=kind in _NORMED_HEADS,
        qkv_bias=bool(getattr(text, "attention_bias", None)) or kind in _QKV_BIAS,
        unembeds=task == CAUSAL_LM,
        causal=task == CAUSAL_LM or kind not in _ENCODERS,
        positions=_rows_of_positions(text) if kind in _BERTS | {"gpt2", "opt"} else 0,
        experts=experts,
        experts_per_token=int(get("num_experts_per_tok", "num_experts_per_token", default=1)) if experts else 0,
        expert_width=expert_width,
        shared_width=shared if experts else 0,
        dense_layers=_dense_layers(text, layers) if experts else 0,
        latent=_latent(text),
        config=config,
    )


def _rows_of_positions(text: Any) -> int:
    """Return the rows of the tables of positions and of types of tokens."""
    positions = getattr(text, "max_position_embeddings", None) or getattr(text, "n_positions", None) or 0
    return int(positions) + int(getattr(text, "type_vocab_size", None) or 0)


def _dense_layers(text: Any, layers: int) -> int:
    """Return how many layers of a model with experts have an MLP instead."""
    step = getattr(text, "decoder_sparse_step", None) or 1
    named = set(getattr(text, "mlp_only_layers", None) or ())
    first = getattr(text, "first_k_dense_replace", None) or 0
    return sum(index < first or index in named or (index + 1) % step != 0 for index in range(layers))


def _latent(text: Any) -> tuple[int, int, int, int, int] | None:
    rank = getattr(text, "kv_lora_rank", None)
    if rank is None:
        return None
    return (
        int(getattr(text, "q_lora_rank", None) or 0), int(rank), int(text.qk_nope_head_dim),
        int(text.qk_rope_head_dim), int(text.v_head_dim),
    )  # fmt: skip
