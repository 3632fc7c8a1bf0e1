"""Options of core's own optimizers and tuners. Their flags are known whichever plugin is selected."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, PositiveFloat, field_validator, model_validator

from swift.config.limits import BelowOne, Fraction, Pattern
from swift.config.options import Section
from swift.errors import ConfigError


def _expression(text: str) -> str:
    """Refuse an invalid regular expression."""
    if not text.strip():
        raise ValueError("must not be empty")
    try:
        re.compile(text)
    except (re.error, OverflowError, RecursionError) as problem:
        raise ValueError(f"must be a regular expression ({problem})") from None
    return text


Expression = Annotated[Pattern, AfterValidator(_expression)]
Rank = Annotated[int, Field(ge=1, le=2**16)]


class AdamOptions(Section):
    """Options of Adam and of its forms in 8 and 4 bits."""

    beta1: BelowOne = Field(0.9, description="Adam's first moment")
    beta2: BelowOne = Field(0.95, description="Adam's second moment")
    eps: Annotated[float, Field(gt=0.0, le=1.0)] = Field(1e-8, description="Adam's epsilon")


class AdafactorOptions(Section):
    """Options of Adafactor, which has no first moment."""

    beta2_decay: Annotated[float, Field(lt=0.0, ge=-10.0)] = Field(
        -0.8, description="Exponent with which the second moment's weight falls (adafactor only)"
    )
    clip_threshold: Annotated[float, Field(ge=1.0)] = Field(
        1.0, description="Largest root mean square of an update (adafactor only)"
    )
    least_scale: PositiveFloat = Field(
        1e-3, description="Least root mean square of a weight that its update is scaled by (adafactor only)"
    )


class FullOptions(Section):
    """Options of training the model's own weights."""

    freeze: tuple[Pattern, ...] = Field((), description="Patterns of weight names to freeze (full only)")
    freeze_regex: Expression | None = Field(
        None, description="Regular expression to search for in weight names; matching weights are frozen (full only)"
    )
    freeze_ratio: Fraction = Field(
        0.0, description="Fraction of the weights to freeze, from the embedding upwards (full only)"
    )
    train_only: tuple[Pattern, ...] = Field((), description="Patterns of the only weight names to train (full only)")
    unfreeze: tuple[Pattern, ...] = Field(
        (), description="Patterns of weight names to exempt from freezing (full only)"
    )
    unfreeze_regex: Expression | None = Field(
        None, description="Regular expression for weight names to exempt from freezing (full only)"
    )

    @property
    def selects(self) -> bool:
        """Return whether anything is frozen."""
        return bool(self.freeze or self.freeze_regex or self.freeze_ratio or self.train_only)

    @model_validator(mode="after")
    def _something_to_unfreeze(self) -> FullOptions:
        """Refuse exemptions where nothing is frozen."""
        if (self.unfreeze or self.unfreeze_regex) and not self.selects:
            raise ConfigError(
                "tuner.unfreeze exempts weights from freezing, but nothing is frozen.",
                hint="To train only these weights add --tuner.freeze_ratio 1; to train all weights leave it out.",
            )
        return self


ALL_LINEAR = "all-linear"
EXPERTS = "experts"
"""The target that stands for the routed experts of a mixture, which are one parameter per layer, not modules."""
_OTHER_TARGETS = {
    "all-router": "routers of mixtures of experts get no adapters",
    "all-embedding": "for the embedding, use its module's name, embed_tokens in most models",
    "all-norm": "norms get no adapters; --tuner.modules_to_save trains whole modules",
}
FACTORED = ("pissa", "olora", "lora_ga")
"""Initializations that subtract the adapter's factors from each weight, so that the model's output is unchanged."""

STARTED = (*FACTORED, "loftq")
"""Initializations that keep a frozen copy of the initial factors. LoftQ factorizes the quantization error."""

FROM_DATA = ("eva", "lora_ga")
"""Initializations computed from the first batches of the training data."""
_OTHER_STARTS = {
    "corda": "is not implemented; lora_ga also uses the training data",
    "false": "would change the model's output at the start",
}
_PISSA_ITERATIONS = re.compile(r"pissa_niter_(\d+)", re.IGNORECASE)
_STARTS = {"true": "default", "kaiming": "default", "random": "default", "lora-ga": "lora_ga"}


class TargetOptions(Section):
    """Options of adapters that say which modules get one."""

    targets: tuple[Pattern, ...] = Field(
        (ALL_LINEAR,),
        description="Modules that get an adapter: names or all-linear, and experts for the routed experts of a mixture",
    )
    target_regex: Expression | None = Field(
        None,
        description="Regular expression that full names of modules must match to get an adapter, instead of targets",
    )
    modules_to_save: tuple[Pattern, ...] = Field((), description="Modules trained in full next to the adapters")

    @model_validator(mode="before")
    @classmethod
    def _expression_as_target(cls, values: Any) -> Any:
        """Read a single target with special characters as a regular expression, as PEFT does."""
        targets = values.get("targets") if isinstance(values, dict) else None
        one = targets[0] if isinstance(targets, list | tuple) and len(targets) == 1 else targets
        if isinstance(one, str) and set("*+?|()[]^$\\") & set(one) and values.get("target_regex") is None:
            return {**{key: value for key, value in values.items() if key != "targets"}, "target_regex": one}
        return values

    @field_validator("targets", mode="before")
    @classmethod
    def _common_spellings(cls, value: Any) -> Any:
        """Accept `all`, and names joined by commas."""
        if not isinstance(value, list | tuple) or not all(isinstance(each, str) for each in value):
            return value
        names = [name.strip() for each in value for name in each.split(",") if name.strip() or not each.strip()]
        for name in names:
            if reason := _OTHER_TARGETS.get(name.lower().replace("_", "-")):
                raise ValueError(f"must be names of modules or {ALL_LINEAR} ({reason})")
        experts = (EXPERTS,) if EXPERTS in names else ()
        names = [name for name in names if name != EXPERTS]
        every = any(name.lower().replace("_", "-") in (ALL_LINEAR, "all") for name in names)
        if every and len(names) > 1:
            raise ValueError(f"must be either {ALL_LINEAR} or names of modules, and may have {EXPERTS} besides")
        return (*((ALL_LINEAR,) if every else names), *experts)

    @property
    def all_linear(self) -> bool:
        """Return whether all linear layers get an adapter."""
        return self.target_regex is None and ALL_LINEAR in self.targets

    @model_validator(mode="after")
    def _one_way_of_naming(self) -> TargetOptions:
        if self.target_regex is not None and self.targets != (ALL_LINEAR,):
            raise ConfigError("tuner.target_regex and tuner.targets cannot be used together.", hint="Keep one of them.")
        return self


class LoraOptions(TargetOptions):
    """Options of low-rank adapters."""

    rank: Rank = Field(8, description="Rank of the adapters")
    alpha: PositiveFloat = Field(32.0, description="Scale of the adapters (divided by the rank)")
    rank_pattern: dict[Pattern, Rank] = Field(
        default_factory=dict, description='Ranks for individual modules: {"q_proj": 16}'
    )
    alpha_pattern: dict[Pattern, PositiveFloat] = Field(
        default_factory=dict, description='Scales for individual modules: {"q_proj": 64}'
    )
    dropout: BelowOne = Field(0.05, description="Dropout on the adapters' input")
    bias: Literal["none", "all", "lora_only"] = Field(
        "none", description="Biases of the model to train as well: all, or only those of modules with an adapter"
    )
    dora: bool = Field(False, description="DoRA: train direction and magnitude separately")
    rslora: bool = Field(False, description="Rank-stabilized scale: alpha / sqrt(rank)")
    target_parameters: tuple[Pattern, ...] = Field(
        (), description="Stacked experts that get adapters as well, by names of parameters: mlp.experts.down_proj"
    )
    lora_plus_ratio: PositiveFloat | None = Field(None, description="LoRA+: learning rate of B over that of A")
    init: Literal["default", "gaussian", "orthogonal", "pissa", "olora", "loftq", "eva", "lora_ga"] = Field(
        "default",
        description="Adapter initialization: pissa, olora and loftq use the weights, eva and lora_ga the first "
        "batches; all of these but eva set dropout to 0",
    )
    init_iterations: Annotated[int, Field(ge=1, le=100)] | None = Field(
        None, description="Iterations of a randomized decomposition, which is faster than the exact one (pissa)"
    )
    init_batches: Annotated[int, Field(ge=1, le=10_000)] | None = Field(
        None, description="Batches used for the initialization; default: 8 (eva, lora_ga)"
    )

    @model_validator(mode="before")
    @classmethod
    def _start_in_weights(cls, values: Any) -> Any:
        """Split PEFT's pissa_niter_N, and default dropout to 0 where the adapter holds a part of the weights."""
        if not isinstance(values, dict) or not isinstance(values.get("init"), str):
            return values
        if randomised := _PISSA_ITERATIONS.fullmatch(values["init"]):
            values = {"init_iterations": int(randomised[1]), **values, "init": "pissa"}
        return {"dropout": 0.0, **values} if values["init"].lower().replace("-", "_") in STARTED else values

    @model_validator(mode="before")
    @classmethod
    def _no_dropout_on_experts(cls, values: Any) -> Any:
        """Default dropout to 0 where experts get adapters: it cannot be applied to the inputs of each expert alone."""
        if not isinstance(values, dict):
            return values
        targets = values.get("targets")
        names = [targets] if isinstance(targets, str) else targets if isinstance(targets, list | tuple) else ()
        experts = any(EXPERTS in [part.strip() for part in str(name).split(",")] for name in names)
        return {"dropout": 0.0, **values} if experts or values.get("target_parameters") else values

    @field_validator("init", mode="before")
    @classmethod
    def _names_of_peft(cls, value: Any) -> Any:
        """Accept PEFT's names, and refuse unsupported initializations with the reason."""
        given = str(value).lower()
        name = given.replace("_", "-")
        if reason := _OTHER_STARTS.get(name):
            known = "default, gaussian, orthogonal, pissa, olora, loftq, eva or lora_ga"
            raise ValueError(f"must be {known} ({name} {reason})")
        return _STARTS.get(given, given)

    @model_validator(mode="after")
    def _even_ranks(self) -> LoraOptions:
        if self.init == "orthogonal" and any(rank % 2 for rank in (self.rank, *self.rank_pattern.values())):
            raise ConfigError(
                "tuner.init orthogonal needs even ranks.", hint="Type --lora_rank 8, or --tuner.init default."
            )
        return self

    @model_validator(mode="after")
    def _check_initialization(self) -> LoraOptions:
        if self.init_iterations is not None and self.init != "pissa":
            raise ConfigError(f"tuner.init_iterations needs tuner.init pissa, not {self.init}.", hint="Leave it out.")
        if self.init_batches is not None and self.init not in FROM_DATA:
            raise ConfigError(
                f"tuner.init_batches needs tuner.init eva or lora_ga, not {self.init}.", hint="Leave it out."
            )
        if self.init in STARTED and self.dora:
            raise ConfigError(f"tuner.init {self.init} cannot be used with tuner.dora.", hint="Leave one of them out.")
        return self
