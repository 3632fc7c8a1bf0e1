"""The plugins of the tuners: adapters of PEFT other than LoRA. Importable without torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from swift.config.own_options import ALL_LINEAR, TargetOptions
from swift.contracts import Acts, Trains, TunerContext
from swift.errors import ConfigError
from swift_tuning.options import (
    BoftOptions,
    GraloraOptions,
    HiraOptions,
    Ia3Options,
    LohaOptions,
    LokrOptions,
    MissOptions,
    OftOptions,
    VeraOptions,
)

if TYPE_CHECKING:
    import torch

_DOWN = "down_proj"


class PeftModules:
    """Base of the tuners whose adapters are modules of PEFT, which begin without a change of the model.

    A subclass names PEFT's kind of adapter and its arguments, and says which parameters do not begin as zeros.
    """

    kind: str
    prefix: str
    """With which the names of PEFT's parameters begin."""
    random_parameters: tuple[str, ...] = ()
    """Parameters that begin uniformly within ±1/√columns, as in PEFT."""
    ones: tuple[str, ...] = ()
    """Parameters that begin as ones; all others are zero."""
    options_model: type[TargetOptions]
    arguments: tuple[tuple[str, str], ...] = ()
    """Arguments of PEFT's configuration, and the options that they are."""
    acts: Acts | None = Acts.SUM
    """Where the modules act on the layers that tensor parallel cuts; None where that is refused."""
    adapter = True
    learning_rate = 1e-4

    def needs(self, options: TargetOptions) -> frozenset[str]:
        """Return the need of backends that train any modules of PEFT."""
        return frozenset({Trains.MODULES})

    def cut(self, options: Any) -> Acts | None:
        """Return where the modules act on a layer; None where it is not to be cut."""
        return self.acts

    def settings(self, options: Any) -> dict[str, Any]:
        """Return the arguments of PEFT's configuration."""
        return {name: getattr(options, option) for name, option in self.arguments}

    def attach(self, model: torch.nn.Module, options: TargetOptions, context: TunerContext) -> torch.nn.Module:
        """Return the model with adapters: those of a folder, or new ones."""
        if context.quantize != "none":
            raise ConfigError(
                f"tuner.quantize {context.quantize} works with tuner.kind lora only, not {self.kind.lower()}.",
                hint="Type --tuner.quantize none, or --tuner.kind lora.",
            )
        from peft import PeftConfig

        from swift.toolkit import attach_peft, resume_adapter

        if context.adapter is not None:
            return resume_adapter(model, context.adapter, context.say, kind=self.kind)
        make = partial(self.configured, partial(PeftConfig.from_peft_type, peft_type=self.kind), model, options)
        initial = partial(self.initial, options=options, seed=context.seed)
        tuned = attach_peft(model, options, context, make, initial)
        config: Any = tuned.peft_config
        if any(getattr(each, "fan_in_fan_out", False) for each in config.values()):
            raise ConfigError(
                f"tuner.kind {self.kind.lower()} does not support Conv1D layers, which this model has.",
                hint="Type --tuner.kind lora",
            )
        return tuned

    def configured(self, make: Callable[..., Any], model: torch.nn.Module, options: TargetOptions, **given: Any) -> Any:
        """Return PEFT's configuration, which `make` returns for settings; `given` are those that core decides."""
        return make(**self.settings(options), **given)

    def initial(self, name: str, shape: Sequence[int], options: TargetOptions, seed: int) -> torch.Tensor | None:
        """Return zeros, or a draw from the seed and the name; None for modules that are trained as a whole."""
        import torch

        from swift.toolkit import generator_of

        if f".{self.prefix}" not in name:
            return None
        if any(f".{part}" in name for part in self.ones):
            return torch.ones(tuple(shape))
        whole = torch.zeros(tuple(shape))
        if any(f".{part}" in name for part in self.random_parameters):
            bound = 1 / float(shape[1]) ** 0.5
            whole.uniform_(-bound, bound, generator=generator_of(seed, name))
        return whole


class Miss(PeftModules):
    """MiSS (arXiv:2409.15371): one small matrix for each weight, added to all of its shards."""

    kind, prefix = "MISS", "miss_"
    options_model = MissOptions
    arguments = (("r", "rank"), ("miss_dropout", "dropout"))

    def extra_values(self, rows: int, columns: int, options: MissOptions) -> float:
        """Return the values of one matrix of rank × outputs."""
        return options.rank * rows


class Oft(PeftModules):
    """OFT (arXiv:2306.07280): the inputs of each layer are rotated, block by block."""

    kind, prefix = "OFT", "oft_"
    acts = Acts.INPUTS
    options_model = OftOptions
    arguments = (("oft_block_size", "block_size"),)

    def extra_values(self, rows: int, columns: int, options: OftOptions) -> float:
        """Return what is above the diagonal of each block of the inputs."""
        return columns * (options.block_size - 1) / 2

    def settings(self, options: OftOptions) -> dict[str, Any]:
        return {"r": 0, **super().settings(options)}

    def attach(self, model: torch.nn.Module, options: TargetOptions, context: TunerContext) -> torch.nn.Module:
        """Return the model with rotations, whose indices are computed where the model has no memory yet."""
        import torch

        tuned = super().attach(model, options, context)
        for module in tuned.modules():
            rows: Any = getattr(module, "rows", None)
            if isinstance(rows, torch.Tensor) and rows.is_meta:
                size: Any = module.block_size
                module.rows, module.cols = torch.triu_indices(size, size, 1)
        return tuned


class Hira(PeftModules):
    """HiRA: the product of two small matrices scales each weight, element by element, and has full rank."""

    kind, prefix = "HIRA", "hira_"
    random_parameters = ("hira_A",)
    options_model = HiraOptions
    arguments = (("r", "rank"), ("hira_dropout", "dropout"))
    acts = Acts.FACTOR

    def cut(self, options: HiraOptions) -> Acts | None:
        """Return that weights have factors; with dropout, which no part of the inputs could draw, nothing."""
        return self.acts if options.dropout == 0 else None


class Loha(PeftModules):
    """LoHa: the product, element by element, of two low-rank matrices is added to each weight."""

    kind, prefix = "LOHA", "hada_"
    random_parameters = ("hada_w1_a", "hada_w1_b", "hada_w2_a")
    options_model = LohaOptions
    arguments = (("r", "rank"), ("alpha", "alpha"))

    def extra_values(self, rows: int, columns: int, options: LohaOptions) -> float:
        """Return the values of two pairs of matrices."""
        return 2 * options.rank * (rows + columns)


class Lokr(PeftModules):
    """LoKr: the Kronecker product of two small matrices is added to each weight."""

    kind, prefix = "LOKR", "lokr_"
    random_parameters = ("lokr_w2", "lokr_w1_b")
    options_model = LokrOptions
    arguments = (("r", "rank"), ("alpha", "alpha"))

    def settings(self, options: LokrOptions) -> dict[str, Any]:
        return {**super().settings(options), "decompose_factor": options.factor or -1}


class Gralora(PeftModules):
    """GraLoRA: each weight is cut into blocks, and each block has a low-rank adapter of its own."""

    kind, prefix = "GRALORA", "gralora_"
    random_parameters = ("gralora_A",)
    options_model = GraloraOptions
    arguments = (("r", "rank"), ("alpha", "alpha"), ("gralora_k", "blocks"), ("gralora_dropout", "dropout"))


class Ia3(PeftModules):
    """IA³ (arXiv:2205.05638): a vector scales the outputs of each layer, or the inputs of one that ends a block."""

    kind, prefix = "IA3", "ia3_"
    ones = ("ia3_l",)
    acts = Acts.SCALE
    options_model = Ia3Options
    learning_rate = 1e-3

    def extra_values(self, rows: int, columns: int, options: Ia3Options) -> float:
        """Return the values of a vector of the outputs."""
        return rows

    def settings(self, options: Ia3Options) -> dict[str, Any]:
        if options.feedforward is not None:
            return {"feedforward_modules": list(options.feedforward)}
        there = options.targets == (ALL_LINEAR,) or _DOWN in options.targets
        return {"feedforward_modules": [_DOWN] if there else []}

    def configured(self, make: Callable[..., Any], model: torch.nn.Module, options: Any, **given: Any) -> Any:
        """Return PEFT's configuration, in which whole names of modules show which of them end a block."""
        settings = self.settings(options)
        targets = given["target_modules"]
        if options.targets == (ALL_LINEAR,) and not isinstance(targets, str):
            dotted = tuple(f".{each}" for each in targets)
            targets = [name for name, _ in model.named_modules() if f".{name}".endswith(dotted)]
            ends = tuple(settings["feedforward_modules"])
            settings["feedforward_modules"] = [name for name in targets if name.endswith(ends)]
        return make(**settings, **given | {"target_modules": targets})

    def attach(self, model: torch.nn.Module, options: TargetOptions, context: TunerContext) -> torch.nn.Module:
        """Return the model with vectors; modules that are named must be there."""
        names = [name for name, _ in model.named_modules()]
        for each in cast(Ia3Options, options).feedforward or ():
            if not any(name.endswith(each) for name in names):
                raise ConfigError(
                    f"tuner.feedforward: this model has no module {each!r}.", hint="Name modules such as down_proj."
                )
        return super().attach(model, options, context)


class Vera(PeftModules):
    """VeRA (arXiv:2310.11454): directions that all layers share and nobody trains, scaled by vectors of each layer."""

    kind, prefix = "VERA", "vera_"
    options_model = VeraOptions
    arguments = (("r", "rank"), ("vera_dropout", "dropout"), ("d_initial", "d_initial"))
    learning_rate = 1e-3

    def extra_values(self, rows: int, columns: int, options: VeraOptions) -> float:
        """Return the values of two vectors."""
        return options.rank + rows

    def settings(self, options: VeraOptions) -> dict[str, Any]:
        # PEFT draws the directions again from their key, wherever the adapter is loaded.
        return {**super().settings(options), "save_projection": False}

    def initial(self, name: str, shape: Sequence[int], options: Any, seed: int) -> torch.Tensor | None:
        """Return the scales of directions, which are alike, and zeros for those of outputs."""
        first = super().initial(name, shape, options, seed)
        return first.fill_(options.d_initial) if first is not None and ".vera_lambda_d" in name else first

    def attach(self, model: torch.nn.Module, options: TargetOptions, context: TunerContext) -> torch.nn.Module:
        """Return the model with the shared directions, which are drawn where the model has no memory yet."""
        from swift.toolkit import ADAPTER, vera_directions

        tuned = super().attach(model, options, context)
        shared, configs = cast(Any, tuned.base_model), cast(Any, tuned.peft_config)
        a, b = shared.vera_A[ADAPTER], shared.vera_B[ADAPTER]
        if a.is_meta:
            key = configs[ADAPTER].projection_prng_key
            directions = vera_directions(key, a.shape[0], inputs=a.shape[1], outputs=b.shape[0])
            shared.vera_A[ADAPTER], shared.vera_B[ADAPTER] = directions
        return tuned


class Boft(PeftModules):
    """BOFT (arXiv:2311.06243): rotations of the inputs in blocks of several orders, multiplied, and scaled outputs."""

    kind, prefix = "BOFT", "boft_"
    ones = ("boft_s",)
    acts = None  # it rotates weights, whole ones
    options_model = BoftOptions
    arguments = (("boft_block_size", "block_size"), ("boft_n_butterfly_factor", "factors"))

    def extra_values(self, rows: int, columns: int, options: BoftOptions) -> float:
        """Return the values of blocks in each order, and a scale of each output."""
        return options.factors * columns * options.block_size + rows

    def attach(self, model: torch.nn.Module, options: TargetOptions, context: TunerContext) -> torch.nn.Module:
        """Return the model with rotations; PEFT makes one of several where it finds no kernel."""
        tuned = super().attach(model, options, context)
        requested = cast(BoftOptions, options).factors
        made = next(each.shape[0] for name, each in tuned.named_parameters() if ".boft_R." in name)
        if context.adapter is None and made != requested:
            raise ConfigError(
                f"tuner.factors is {requested}, but PEFT uses {made} because its CUDA kernel is not compiled.",
                hint="Type --tuner.factors 1, or --train_type oft.",
            )
        return tuned
