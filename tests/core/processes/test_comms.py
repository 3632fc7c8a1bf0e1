"""What processes tell each other about a run."""

from __future__ import annotations

from typing import Any

import pytest
import torch.distributed as dist
from processes import on_processes, succeeded

from swift.processes.comms import Comms

VALUES: dict[str, list[Any]] = {
    "short ones": [{"step": 3}, None, "a word"],
    "one that is long": ["x", list(range(5_000)), ()],
    "long ones of different lengths": [b"a" * 1500, b"b" * 90_000, "c" * 3000],
    "as long as fits, and a byte more": [b"a" * 1005, b"b" * 1020, b"c" * 1030],
}


def gathered() -> dict[str, Any]:
    dist.init_process_group("gloo")
    comms = Comms()
    told = {name: comms.gather(values[comms.rank]) for name, values in VALUES.items()}
    numbers = comms.gather_numbers([comms.rank / 3, -1.0])
    comms.close()
    dist.destroy_process_group()
    return {**told, "numbers": numbers}


@pytest.fixture(scope="module")
def everyone() -> list[dict[str, Any]]:
    return succeeded(on_processes(3, gathered)[0])


@pytest.mark.parametrize("name", VALUES)
def test_everybody_has_everybodys_value(everyone: list[dict[str, Any]], name: str) -> None:
    assert [each[name] for each in everyone] == [VALUES[name]] * 3


def test_gather_numbers_returns_all_ranks(everyone: list[dict[str, Any]]) -> None:
    assert [each["numbers"] for each in everyone] == [[[0.0, -1.0], [1 / 3, -1.0], [2 / 3, -1.0]]] * 3


def test_single_rank_gathers_its_own() -> None:
    assert Comms().gather("alone") == ["alone"]
    assert Comms().gather_numbers([0.5]) == [[0.5]]
