"""The vocabulary of this package: what swift understands of the programs that it imports from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from swift.contracts import FlagTopic, ThirdPartyRun, TranslatedRun, Vocabulary

# Modules are imported where they are used: `from swift import NAME` asks for advice only.


class Programs(Vocabulary):
    """Files, commands and Python names of ms-swift, LLaMA-Factory, axolotl, TRL, the Trainer, torchtune and NeMo."""

    starts = (
        "swift", "megatron", "trl", "llamafactory-cli", "axolotl", "tune", "automodel", "accelerate", "torchrun",
        "deepspeed", "python", "python3", "uv",
    )  # fmt: skip

    def program_of(self, values: Mapping[str, Any]) -> str | None:
        """Return the program of a file that is not trained as it is."""
        from swift_migrate.imports.sources import refused_program

        return refused_program(values)

    def read(self, source: str) -> Sequence[ThirdPartyRun]:
        """Return the runs of a file, a script or a command line."""
        from swift_migrate.imports.programs import read

        return read(source)

    def translate(self, run: ThirdPartyRun) -> TranslatedRun:
        """Return a run in swift's keys."""
        from swift_migrate.imports.programs import translated

        return translated(run)

    def flags(self) -> Sequence[FlagTopic]:
        """Return the flags of the programs that swift does not have."""
        from swift_migrate.flags import commands, training

        return (*training.TOPICS, *commands.TOPICS)

    def advice(self, name: str) -> str | None:
        """Return what to write instead of a name of ms-swift or of the Trainer."""
        from swift_migrate.ms_swift_names import advice

        return advice(name)
