"""Adapters of a grouped layer of Megatron's, and where their tensors lie, against PEFT's module for stacked experts."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model

from swift_backend_megatron.adapters import adapters_off
from swift_backend_megatron.expert_adapters import AdaptedExperts, ExpertAdapter, ExpertSpec, _map
from swift_backend_megatron.tensor_map import MappedTensor

EXPERTS, ROWS, COLUMNS, RANK = 4, 6, 5, 3
TOKENS = {0: [2, 0], 2: [1, 3]}
"""First expert of a process → how many tokens each of its two experts gets."""


class Stacked(torch.nn.Module):
    """Experts as transformers stacks them, of which every one gets some of the rows."""

    def __init__(self) -> None:
        super().__init__()
        self.up = torch.nn.Parameter(torch.randn(EXPERTS, ROWS, COLUMNS))

    def forward(self, hidden: torch.Tensor, first: int) -> torch.Tensor:
        parts = hidden.split(TOKENS[first])
        return torch.cat([part @ self.up[first + index].T for index, part in enumerate(parts)])


class Grouped(torch.nn.Module):
    """Two of these experts, as Megatron's layer has them."""

    def __init__(self, weight: torch.Tensor) -> None:
        super().__init__()
        self.weight = weight

    def forward(self, hidden: torch.Tensor, tokens: list[int]) -> tuple[torch.Tensor, None]:
        return torch.cat([part @ each.T for part, each in zip(hidden.split(tokens), self.weight, strict=True)]), None


@pytest.mark.parametrize("first", TOKENS)
def test_expert_adapters_of_a_process_match_peft(first: int) -> None:
    """Two processes have two experts each; what they read of the whole A and B computes what PEFT does."""
    torch.manual_seed(first)
    config = LoraConfig(r=RANK, lora_alpha=7, target_modules=[], target_parameters=["experts.up"])
    peft: Any = get_peft_model(torch.nn.ModuleDict({"experts": Stacked()}), config)
    wrapped = peft.base_model.model["experts"]
    whole = {"a": wrapped.lora_A["default"].weight, "b": wrapped.lora_B["default"].weight}
    with torch.no_grad():
        whole["b"].normal_()
    spec = ExpertSpec("experts.up", (EXPERTS, ROWS, COLUMNS), "a", "b", RANK, 7 / RANK)
    adapter = ExpertAdapter(spec, 2, torch.float32, torch.device("cpu"))
    built: Any = type("Built", (), {"tensor_map": {name: MappedTensor(tuple(whole[name].shape)) for name in whole}})
    _map(spec, adapter, first, built)
    with torch.no_grad():
        for name, mapped in built.tensor_map.items():
            for tile in mapped.tiles:
                tile.tensor.view(-1).narrow(0, tile.start, tile.numel).copy_(whole[name][tile.region].reshape(-1))

    layer = AdaptedExperts(Grouped(wrapped.get_param().detach()[first : first + 2]), adapter)
    hidden = torch.randn(sum(TOKENS[first]), COLUMNS)
    expected = wrapped(hidden, first)
    torch.testing.assert_close(layer(hidden, TOKENS[first])[0], expected)
    with adapters_off([layer]):
        torch.testing.assert_close(layer(hidden, TOKENS[first])[0], layer.base_layer(hidden, TOKENS[first])[0])
    assert not torch.allclose(layer.base_layer(hidden, TOKENS[first])[0], expected)
