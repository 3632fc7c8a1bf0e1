"""The plugins of the tuners: adapters of PEFT other than LoRA. Importable without torch."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from swift.config.own_options import TargetOptions
from swift.contracts import Trains, TunerContext
from swift.errors import ConfigError
from swift_tuning.options import HiraOptions, LohaOptions, LokrOptions, MissOptions, OftOptions

if TYPE_CHECKING:
    import torch


class PeftModules:
    """Base of the tuners whose adapters are modules of PEFT, which begin without a change of the model.

    A subclass names PEFT's kind of adapter, translates its options, and says which parameters do not begin as zeros.
    """

    kind: str
    prefix: str
    """With which the names of PEFT's parameters begin."""
    drawn: tuple[str, ...] = ()
    """Parameters that begin uniformly within ±1/√columns, as in PEFT; all others are zero."""
    options_model: type[TargetOptions]
    adapter = True
    learning_rate = 1e-4

    def needs(self, options: TargetOptions) -> frozenset[str]:
        """Return the need of backends that train any modules of PEFT."""
        return frozenset({Trains.MODULES})

    def settings(self, options: Any) -> dict[str, Any]:
        """Return the arguments of PEFT's configuration."""
        raise NotImplementedError

    def attach(self, model: torch.nn.Module, options: TargetOptions, context: TunerContext) -> torch.nn.Module:
        """Return the model with adapters: those of a folder, or new ones."""
        if context.quantize != "none":
            raise ConfigError(
                f"tuner.quantize {context.quantize} is for LoRA, and tuner.kind is {self.kind.lower()}.",
                hint="Type --tuner.quantize none, or --tuner.kind lora.",
            )
        from peft import PeftConfig

        from swift.toolkit import attach_peft, resume_adapter

        if context.adapter is not None:
            return resume_adapter(model, context.adapter, context.say, kind=self.kind)
        make = partial(PeftConfig.from_peft_type, peft_type=self.kind, **self.settings(options))
        initial = partial(self.initial, options=options, seed=context.seed)
        return attach_peft(model, options, context, make, initial)

    def initial(self, name: str, shape: Sequence[int], options: TargetOptions, seed: int) -> torch.Tensor | None:
        """Return zeros, or a draw from the seed and the name; None for modules that are trained as a whole."""
        import torch

        from swift.toolkit import generator_of

        if f".{self.prefix}" not in name:
            return None
        whole = torch.zeros(tuple(shape))
        if any(f".{part}" in name for part in self.drawn):
            bound = 1 / float(shape[1]) ** 0.5
            whole.uniform_(-bound, bound, generator=generator_of(seed, name))
        return whole

    def lr_scale(self, name: str, options: TargetOptions) -> float:
        """Return 1: all parameters learn at one rate."""
        return 1.0


class Miss(PeftModules):
    """MiSS (arXiv:2409.15371): one small matrix for each weight, added to all of its shards."""

    kind, prefix = "MISS", "miss_"
    options_model = MissOptions

    def settings(self, options: MissOptions) -> dict[str, Any]:
        """Return the arguments of PEFT's configuration."""
        return {"r": options.rank, "miss_dropout": options.dropout}


class Oft(PeftModules):
    """OFT (arXiv:2306.07280): the inputs of each layer are rotated, block by block."""

    kind, prefix = "OFT", "oft_"
    options_model = OftOptions

    def settings(self, options: OftOptions) -> dict[str, Any]:
        """Return the arguments of PEFT's configuration."""
        return {"r": 0, "oft_block_size": options.block_size}

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
    drawn = ("hira_A",)
    options_model = HiraOptions

    def settings(self, options: HiraOptions) -> dict[str, Any]:
        """Return the arguments of PEFT's configuration."""
        return {"r": options.rank, "hira_dropout": options.dropout}


class Loha(PeftModules):
    """LoHa: the product, element by element, of two low-rank matrices is added to each weight."""

    kind, prefix = "LOHA", "hada_"
    drawn = ("hada_w1_a", "hada_w1_b", "hada_w2_a")
    options_model = LohaOptions

    def settings(self, options: LohaOptions) -> dict[str, Any]:
        """Return the arguments of PEFT's configuration."""
        return {"r": options.rank, "alpha": options.alpha}


class Lokr(PeftModules):
    """LoKr: the Kronecker product of two small matrices is added to each weight."""

    kind, prefix = "LOKR", "lokr_"
    drawn = ("lokr_w2", "lokr_w1_b")
    options_model = LokrOptions

    def settings(self, options: LokrOptions) -> dict[str, Any]:
        """Return the arguments of PEFT's configuration."""
        return {"r": options.rank, "alpha": options.alpha, "decompose_factor": options.factor or -1}
