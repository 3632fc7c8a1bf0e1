"""Guesses at what tensor parallel may cut of a model that brings no plan, or one that does not hold.

A guess follows from structure alone: two layers of linear modules, one after the other, between whole inputs and whole
outputs. Whether the code between them computes each part by itself, a backend has to find out.
"""

from __future__ import annotations

from torch import nn

from swift.models.names import base_model
from swift.models.tp_spec import (
    COLUMNS,
    DIVIDED,
    EXPERTS,
    GATHERED,
    PACKED,
    PARTIAL,
    ROWS,
    SPLIT,
    linear_inside,
    pattern_of,
    shape_of,
)
from swift.models.tp_spec import TensorParallelPlan as Plan


def derived_plans(model: nn.Module) -> list[Plan]:
    """Return plans of which each can be right or wrong by itself: of MLPs, of experts, of attention."""
    found: dict[str, Plan] = {}
    for name, module in base_model(model).get_decoder().named_modules():
        pattern = pattern_of(name)
        if name and not found.get(pattern):
            found[pattern] = {
                f"{pattern}.{child}" if child else pattern: how
                for child, how in (_experts(module) or _pair(module)).items()
            }
    return [plan for plan in found.values() if plan]


def _experts(module: nn.Module) -> Plan:
    """Cut stacked experts, of a class for which transformers has several implementations."""
    if not all(hasattr(module, flag) for flag in ("has_gate", "has_bias", "is_transposed", "is_concatenated")):
        return {}
    first = "gate_up_proj" if module.has_gate else "up_proj"
    columns = PACKED if module.has_gate and module.is_concatenated else COLUMNS
    biases = {f"{first}_bias": columns, "down_proj_bias": DIVIDED} if module.has_bias else {}
    return {"": EXPERTS, first: columns, "down_proj": ROWS, **biases}


def _pair(module: nn.Module) -> Plan:
    """Cut the last linear module that gives what others take by rows, and these by columns."""
    linear = {name: shape_of(child) for name, child in module.named_children() if linear_inside(child) is not None}
    is_attention = "attention" in type(module).__name__.lower()
    others = {name: PARTIAL for name, child in module.named_children() if name not in linear and _has_weights(child)}
    vectors = {name: COLUMNS for name, own in module.named_parameters(recurse=False) if own.ndim == 1}
    for last, (outputs, inputs) in reversed(linear.items()):
        before = {name: rows for name, (rows, columns) in linear.items() if name != last and columns == outputs}
        wide = {name: COLUMNS for name, rows in before.items() if rows == inputs}
        fused = {name: GATHERED for name, rows in before.items() if rows == 2 * inputs}
        if is_attention and before:
            return {**dict.fromkeys(before, COLUMNS), last: ROWS, **others, **vectors}
        if wide and not is_attention and inputs != outputs:
            return {**wide, last: ROWS}
        if fused and not others and not is_attention:
            return {**fused, last: SPLIT}
    return {}


def _has_weights(module: nn.Module) -> bool:
    return next(module.parameters(), None) is not None
