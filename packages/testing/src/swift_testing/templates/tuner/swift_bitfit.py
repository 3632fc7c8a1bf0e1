"""Trains biases and norms alone (arXiv:2106.10199)."""

from pydantic import Field

from swift import Section
from swift.contracts import Trains


class BitfitOptions(Section):
    """Options of `bitfit`; each is a flag, such as `--tuner.norms false`."""

    norms: bool = Field(True, description="Train the weights of norms as well")


class Bitfit:
    options_model = BitfitOptions
    adapter = False
    learning_rate = 1e-3

    def needs(self, options):
        return frozenset({Trains.WEIGHTS})

    def attach(self, model, options, context):
        for name, parameter in model.named_parameters():
            bias = name.endswith("bias")
            parameter.requires_grad_(bias or (options.norms and parameter.ndim < 2))
        return model
