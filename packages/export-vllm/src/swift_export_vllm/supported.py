"""Which architectures an installed vLLM serves, without importing it: that alone would take many seconds."""

from __future__ import annotations

import ast
import importlib.util
import json
import mmap
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from swift.contracts import ModelSource
from swift.errors import ExportError, ModelError, did_you_mean
from swift.untrusted import read_json_object
from swift_export_vllm.interpreter import find_interpreter, on_cpu
from swift_export_vllm.memory import head_size
from swift_export_vllm.plugin import GENERATES, TASKS
from swift_infer.servers import Interpreter

_REGISTRY = "model_executor/models/registry.py"
_TABLE = "_VLLM_MODELS"
_ATTENTION_ON_CPU = "v1/attention/backends/cpu_attn.py"
_SIZES = "get_supported_head_sizes"
_WITHOUT_AVX512 = "_C_AVX2.abi3.so"
_KERNEL_OF_4_BITS = b"cpu_gemm_wna16"
_OF_4_BITS = ("awq", "gptq", "pack-quantized")
"""How config.json says that low-bit weights lie together in one number: by its method, or by its format."""
_GENERATING = "ForCausalLM"
_CONVERTED = ("ForSequenceClassification", "Model")
"""Ends of the names of architectures that vLLM converts the generating model of a family to."""
_ASK_REGISTRY = """
import json
from vllm.model_executor.models.registry import ModelRegistry
print("\\n" + json.dumps(sorted(ModelRegistry.get_supported_archs())))
"""
_ASK_TRANSFORMERS = """
import sys, transformers
model = getattr(transformers, sys.argv[1], None)
fits = model is not None and (model.is_backend_compatible() or model._can_set_attn_implementation())
print("\\n" + ("yes" if fits else "no"))
"""


def architectures_of(interpreter: Interpreter) -> frozenset[str]:
    """Return the keys of vLLM's table, read from its source; from vLLM itself where that has another shape."""
    names = frozenset(_written(interpreter.folder / _REGISTRY))
    return names or frozenset(json.loads(_run(interpreter, _ASK_REGISTRY)))


def check_served(model: Path, interpreter: Interpreter) -> None:
    """Refuse a model that neither vLLM's own code nor its use of transformers can serve."""
    config: Any = read_json_object(model / "config.json", ModelError)
    named = [str(each) for each in config.get("architectures") or ()]
    known = architectures_of(interpreter)
    if any(_runs(name, known) for name in named):
        return
    if interpreter.plugins or config.get("auto_map"):
        return  # a plugin of vLLM, or the code that comes with the model, may know it: vLLM will tell
    if any(_run(interpreter, _ASK_TRANSFORMERS, name) == "yes" for name in named):
        return
    what = f"{model} is a {' and '.join(named)}" if named else f"{model / 'config.json'} names no architecture"
    raise ModelError(
        f"{what}, which {interpreter} does not support.",
        hint="Use swift infer MODEL, which needs no vLLM, or a newer vLLM: --python PATH",
    )


def check_exported(source: ModelSource) -> None:
    """Refuse a model of a task that vLLM has no endpoint for, or that the installed vLLM does not list."""
    task = getattr(source, "task", GENERATES)
    if task not in TASKS:
        raise ExportError(
            f"vLLM does not support models of task {task}.",
            hint="Export for transformers: swift export ... --to hf",
        )
    if importlib.util.find_spec("vllm") is None:
        return
    from swift.toolkit import architecture_of

    interpreter = find_interpreter(None)
    name, known = architecture_of(source), architectures_of(interpreter)
    if not _runs(name, known) and not interpreter.plugins:
        raise ExportError(
            f"The installed vLLM does not run {name}.{did_you_mean(name, known)}",
            hint="Export for transformers: --to hf. A newer vLLM may run it.",
        )


def _runs(name: str, known: frozenset[str]) -> bool:
    """Return whether vLLM knows an architecture, or makes it of the generating model of the same family."""
    made_of = {name.removesuffix(suffix) + _GENERATING for suffix in _CONVERTED if name.endswith(suffix)}
    return name in known or not known.isdisjoint(made_of)


def check_on_cpu(model: Path, interpreter: Interpreter) -> None:
    """Refuse what vLLM has no code for on the CPU, which it finds out when it has loaded the model."""
    if on_cpu(interpreter):
        _check_heads(model, interpreter)
        _check_bits(model, interpreter)


def _check_bits(model: Path, interpreter: Interpreter) -> None:
    """Refuse weights of 4 bits where vLLM's library for processors without AVX-512 has no kernel for them."""
    config: Any = read_json_object(model / "config.json", ModelError).get("quantization_config") or {}
    packed = isinstance(config, dict) and {config.get("quant_method"), config.get("format")} & {*_OF_4_BITS}
    library = interpreter.folder / _WITHOUT_AVX512
    if not packed or _has_avx512() or not library.is_file():
        return
    with library.open("rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as content:
        if content.find(_KERNEL_OF_4_BITS) >= 0:
            return
    raise ModelError(
        f"{model} has 4-bit weights, for which {interpreter} needs AVX-512, but this processor lacks it.",
        hint="Use another machine, export in 8 bits (--quant w8a8), or use swift infer MODEL.",
    )


def _has_avx512() -> bool:
    info = Path("/proc/cpuinfo")
    return not info.is_file() or "avx512f" in info.read_text(encoding="utf-8")


def _check_heads(model: Path, interpreter: Interpreter) -> None:
    """On the CPU, vLLM has attention for some sizes of heads only, and finds out with the first question."""
    file = interpreter.folder / _ATTENTION_ON_CPU
    if not file.is_file():
        return
    sizes = [
        ast.literal_eval(statement.value)
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef) and node.name == _SIZES
        for statement in node.body
        if isinstance(statement, ast.Return) and isinstance(statement.value, ast.List)
    ]
    size = head_size(read_json_object(model / "config.json", ModelError))
    if sizes and size and size not in sizes[0]:
        raise ModelError(
            f"{model} has attention heads of size {size}, but {interpreter} supports only "
            f"{', '.join(map(str, sizes[0]))} on the CPU.",
            hint="Serve it on a GPU, or use swift infer MODEL, which needs no vLLM.",
        )


def _written(registry: Path) -> Iterator[str]:
    if not registry.is_file():
        return
    tables = {
        target.id: node.value
        for node in ast.parse(registry.read_text(encoding="utf-8")).body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    waiting = [tables[_TABLE]] if _TABLE in tables else []
    while waiting:
        table = waiting.pop()
        for key, value in zip(table.keys, table.values, strict=True):
            if isinstance(key, ast.Constant):
                yield str(key.value)
            elif key is None and isinstance(value, ast.Name) and value.id in tables:  # {**ANOTHER}
                waiting.append(tables[value.id])


def _run(interpreter: Interpreter, script: str, *args: str) -> str:
    done = subprocess.run(
        [interpreter.path, "-c", script, *args], capture_output=True, text=True, stdin=subprocess.DEVNULL
    )
    if done.returncode:
        raise ModelError(
            f"{interpreter} cannot be imported by {interpreter.path}.",
            hint="\n".join(done.stderr.strip().splitlines()[-3:]),
        )
    return done.stdout.strip().splitlines()[-1]
