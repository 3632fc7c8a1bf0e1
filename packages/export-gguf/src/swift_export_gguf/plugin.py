"""The exporter `gguf` and its options."""

from __future__ import annotations

from pydantic import Field, field_validator

from swift import HOOK_API, Section
from swift.hookspecs import lazy_hook

ROUNDING = {
    "f32": 0.0,
    "bf16": 0.004,
    "f16": 0.001,
    "q8_0": 0.014,
    "q5_1": 0.12,
    "q5_0": 0.12,
    "q4_1": 0.2,
    "q4_0": 0.2,
}
"""Type of the matrices → the largest error that it explains, of a tensor relative to its norm."""
AUTO = "auto"


class GgufOptions(Section):
    """Options of `gguf`."""

    outtype: str = Field(
        AUTO, description=f"Type of the matrices: {', '.join(ROUNDING)}, or auto, the precision of --dtype"
    )

    @field_validator("outtype")
    @classmethod
    def _known(cls, value: str) -> str:
        name = value.lower()
        if name in (AUTO, *ROUNDING):
            return name
        raise ValueError(
            f"the gguf package cannot write {value!r}. Use one of {', '.join(ROUNDING)}. For K-quants and IQ-quants, "
            f"export --outtype f16, then type: llama-quantize model.gguf model-{name}.gguf {value.upper()}"
        )


class GgufExporter:
    """Writes `model.gguf` with tokenizer and chat template, and a `Modelfile` for Ollama."""

    HOOK_API = HOOK_API
    tasks = frozenset({"causal_lm"})
    options_model = GgufOptions
    swift_export = lazy_hook("swift_export_gguf.write:export")
    swift_reload = lazy_hook("swift_export_gguf.read_back:reload")
