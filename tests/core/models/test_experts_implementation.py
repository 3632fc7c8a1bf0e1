"""How the experts of a mixture are computed: chosen by name or by transformers, with the same numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tiny_types import tiny_model
from type_cells import Cell, Subject, verdicts

from swift.errors import ModelError
from swift.models.experts_implementation import choose_experts

NAMES = ("eager", "batched_mm", "grouped_mm")


@pytest.mark.parametrize("name", NAMES)
def test_requested_implementation_computes_experts(name: str) -> None:
    """The chosen function is the one that is called, in each layer."""
    from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

    model = tiny_model("qwen3_moe")
    choice = choose_experts(model, name)
    assert choice is not None
    assert choice.chosen == name
    assert choice.reason.startswith("requested")
    called: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        for each in NAMES[1:]:
            own = ALL_EXPERTS_FUNCTIONS[each]

            def noted(*given: Any, each: str = each, own: Any = own) -> Any:
                called.append(each)
                return own(*given)

            patch.setitem(ALL_EXPERTS_FUNCTIONS._local_mapping, each, noted)
        model(**model.dummy_inputs)
    assert called == [] if name == "eager" else [name] * model.config.num_hidden_layers


def test_auto_leaves_the_choice_to_transformers() -> None:
    choice = choose_experts(tiny_model("qwen3_moe"), "auto")
    assert choice is not None
    assert choice.chosen == "grouped_mm"
    assert "all experts of a layer" in choice.reason
    assert choose_experts(tiny_model("llama"), "auto") is None


@pytest.mark.parametrize("name", ["llama", "llama4_text"])
def test_model_without_the_choice_is_refused(name: str) -> None:
    with pytest.raises(ModelError, match="experts_impl eager has no effect") as refused:
        choose_experts(tiny_model(name), "eager")
    assert refused.value.hint


def test_each_implementation_trains_alike(tmp_path: Path) -> None:
    """The numbers are those of plain transformers, and the run's folder has the choice."""
    subject = Subject("gpt_oss", tmp_path)
    for name in NAMES[:2]:
        (verdict,) = verdicts(Cell(name, {"model.experts_impl": name}), [subject])
        assert verdict.result == "equal", verdict
