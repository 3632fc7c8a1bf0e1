"""Stand-ins for the backends of this project, with what the parser needs of them: a name, capabilities, options."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = """
from swift import HOOK_API, Capabilities, Section, hookimpl
from swift.hookspecs import BACKEND_REQUIRED

PRECISIONS = frozenset({"float32", "bfloat16", "float16"})


class Options(Section):
    config: str | None = None
    use_distributed_optimizer: bool = True


class Hooks:
    HOOK_API = HOOK_API
    config_model = Options


for name in BACKEND_REQUIRED:
    setattr(Hooks, name, hookimpl(lambda self: None))


def backend(*parallel):
    capabilities = Capabilities(frozenset(parallel), PRECISIONS, frozenset({"full", "lora"}))
    return type("StandIn", (Hooks,), {"capabilities": capabilities})


fsdp = backend("dp_shard", "tp", "cp", "ulysses")
deepspeed = backend("dp_shard", "tp", "ulysses")
megatron = backend("tp", "pp", "vpp", "cp", "ep", "etp", "sequence_parallel")
"""
NAMES = ("fsdp", "deepspeed", "megatron")


@pytest.fixture
def stand_ins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The three backends, installed for one test as one distribution."""
    info = tmp_path / "stand_ins-0.1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: stand-ins\nVersion: 0.1.0\n")
    points = "".join(f"{name} = stand_in_backends:{name}\n" for name in NAMES)
    (info / "entry_points.txt").write_text(f"[swift.backends]\n{points}")
    (tmp_path / "stand_in_backends.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("SWIFT_PLUGINS", "swift-core,stand-ins")  # the real ones may be installed
    yield tmp_path
    sys.modules.pop("stand_in_backends", None)
