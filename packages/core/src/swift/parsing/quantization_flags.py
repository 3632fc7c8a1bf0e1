"""Third-party flags of QLoRA, which together set `tuner.quantize`: bits, method, settings of bitsandbytes."""

from __future__ import annotations

from typing import Any

from swift.config.draft import Assignment, Draft
from swift.config.flags import TranslatedFlags
from swift.config.settings import Request, Settings, request, when_on
from swift.config.values import quoted
from swift.errors import ConfigError, UsageError

_BITS = {"4": 4, "8": 8, "none": None, "0": None, "null": None}
_METHODS = {"bnb": "bnb", "bitsandbytes": "bnb", "torchao": "torchao"}
_AFTERWARDS = ("awq", "gptq", "gptq_v2", "fp8")
_SCHEMES_OF_BITS = {4: ("w4a16", "gptq", "awq", "bnb"), 8: ("w8a8", "fp8")}
"""Bits per weight in third-party flags → schemes of `--quant`."""
_DTYPES = {"bf16": "bfloat16", "fp16": "float16", "half": "float16", "fp32": "float32", "float": "float32"}


def _bits(source: str, value: Any) -> Settings:
    name = str(value).lower()
    if name not in _BITS:
        raise ConfigError(f"{source} must be 4 or 8, not {quoted(value)}.", hint="For example: --quant_bits 4")
    return () if _BITS[name] is None else (Request("quant_bits", _BITS[name]),)


def _method(source: str, value: Any) -> Settings:
    name = str(value).lower()
    if name in _AFTERWARDS:
        raise ConfigError(
            f"{source} {value} is not supported for training; QLoRA needs bitsandbytes (bnb) or torchao.",
            hint="Type: --quant_method bnb --quant_bits 4. To quantize the trained model type: "
            "swift export RUN --quant w4a16",
        )
    if name not in _METHODS:
        raise ConfigError(
            f"Unknown value {quoted(value)} for {source}. Valid values: bnb, torchao.",
            hint="Type: --quant_method bnb --quant_bits 4",
        )
    return (Request("quant_method", _METHODS[name]),)


def _quant_type(source: str, value: Any) -> Settings:
    name = str(value).lower()
    if name not in ("nf4", "fp4"):
        raise ConfigError(f"{source} must be nf4 or fp4, not {quoted(value)}.")
    return (Request("bnb_4bit_quant_type", name),)


FLAGS: TranslatedFlags = (
    (("quant_bits", "quantization_bit"), "tuner.quantize", "value", _bits),
    (("load_in_4bit",), "tuner.quantize", "switch", when_on(Request("quant_bits", 4))),
    (("load_in_8bit",), "tuner.quantize", "switch", when_on(Request("quant_bits", 8))),
    (("quant_method", "quantization_method"), "tuner.quantize", "value", _method),
    (("bnb_4bit_quant_type", "quantization_type"), "tuner.quantize", "value", _quant_type),
    (("bnb_4bit_compute_dtype",), "model.dtype", "value", request("bnb_4bit_compute_dtype")),
    (("bnb_4bit_quant_storage",), "tuner.quantize", "value", request("bnb_4bit_quant_storage")),
)


def settle_quantization(draft: Draft) -> None:
    """Set `tuner.quantize` from all flags about it; raise `ConfigError` where they contradict each other."""
    bits, method, kind, compute, storage = (
        draft.take(name)
        for name in (
            "quant_bits", "quant_method", "bnb_4bit_quant_type", "bnb_4bit_compute_dtype", "bnb_4bit_quant_storage",
        )
    )  # fmt: skip
    chosen = draft.get("tuner.quantize")
    if method is not None and bits is None and chosen is None:
        raise ConfigError(f"{method.source} {method.value} needs a number of bits.", hint="Add --quant_bits 4")
    scheme = chosen.value if chosen is not None and bits is None else _scheme(bits, method, kind)
    if bits is not None:
        if bits.value == 4 and chosen is not None and chosen.value == "bnb-nf4":  # the other flags refine it
            draft.drop("tuner.quantize")
        draft.set("tuner.quantize", scheme, bits.source)
    elif kind is not None and scheme == "bnb-nf4" and kind.value == "fp4":
        draft.replace("tuner.quantize", "bnb-fp4", kind.source)
    four = scheme in ("bnb-nf4", "bnb-fp4")
    idle = [each.source for each in (kind, compute, storage) if each is not None and not four]
    for source in idle:
        draft.note(f"{source} has no effect without 4-bit weights (--quant_bits 4).")
    if four and storage is not None:
        draft.note(f"{storage.source} is not needed: it does not change the result.")
    if four and compute is not None:
        _compute_in(draft, compute)


def _scheme(bits: Assignment | None, method: Assignment | None, kind: Assignment | None) -> str:
    if bits is None:
        return "none"
    library = "bnb" if method is None else method.value
    if bits.value == 8:
        if method is not None and library != "bnb":
            raise ConfigError(
                f"{method.source} {library} supports 4 bits, not 8 ({bits.source}).", hint="Type: --quant_method bnb"
            )
        return "bnb-int8"
    return f"{library}-{'nf4' if kind is None else kind.value}"


def _compute_in(draft: Draft, compute: Assignment) -> None:
    """Read the compute precision as the model's, which 4-bit weights use."""
    name = str(compute.value).lower().removeprefix("torch.")
    dtype = _DTYPES.get(name, name)
    model = draft.get("model.dtype")
    if model is None or model.value == "auto":
        draft.replace("model.dtype", dtype, compute.source)
    elif model.value != dtype:
        raise ConfigError(
            f"{compute.source} {compute.value} and {model.source} {model.value} differ, but 4-bit weights are computed "
            "in the model's precision.",
            hint="Keep one of them.",
        )


def check_bits(bits: int | None, scheme: str | None) -> None:
    """Raise `UsageError` where the scheme of an export does not store weights in this many bits."""
    if bits is None:
        return
    if bits not in _SCHEMES_OF_BITS:
        raise UsageError(f"--quant_bits must be 4 or 8, not {bits}.", hint="Type: --quant w4a16, or w8a8")
    instead = f"Type: --quant {' or '.join(_SCHEMES_OF_BITS[bits])}"
    if scheme is None:
        raise UsageError(f"--quant_bits {bits} needs a scheme (--quant).", hint=instead)
    if any(scheme in schemes for other, schemes in _SCHEMES_OF_BITS.items() if other != bits):
        raise UsageError(f"--quant {scheme} does not store weights in {bits} bits.", hint=instead)
