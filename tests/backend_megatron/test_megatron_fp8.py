"""FP8 on Megatron, as far as it goes without Transformer Engine: Megatron's configuration, padding, and refusals."""

from __future__ import annotations

from importlib import metadata
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from processes import on_processes, succeeded

from swift.data.batch import collate
from swift.data.samples import Encoded, Segment
from swift.errors import UnsupportedLayout
from swift_backend_megatron.config import MegatronConfig
from swift_backend_megatron.fp8 import check_engine, check_widths, settings_of, tokens_multiple
from swift_backend_megatron.sequences import SequenceSlicer

HYBRID = MegatronConfig(fp8="hybrid")
PLAIN = MegatronConfig()


def test_megatrons_configuration_takes_it_by_its_own_names() -> None:
    def made() -> tuple[object, object, object]:
        from swift_backend_megatron import megatron_runtime

        megatron_runtime.prepare(lambda line: None)
        from megatron.core.enums import Fp8Recipe
        from megatron.core.transformer import TransformerConfig

        config = TransformerConfig(num_layers=2, hidden_size=64, num_attention_heads=4, **settings_of(HYBRID))
        return config.fp8, config.fp8_recipe == Fp8Recipe.tensorwise, config.fp8_param

    (answers,) = on_processes(1, made)
    assert succeeded(answers) == [("hybrid", True, False)]  # weights stay in the precision that they have
    assert settings_of(PLAIN) == {}


@pytest.mark.parametrize("flat", [False, True])
def test_fp8_tokens_per_rank_pad_to_multiple_of_16(flat: bool) -> None:
    """A process has a multiple of sixteen tokens and pads behind them."""

    def segment(length: int) -> Segment:
        return Segment(np.arange(1, length + 1, dtype=np.int32), np.ones(length, dtype=np.float32))

    batch = collate([Encoded(0, (segment(length),)) for length in (19, 7)], flat=flat)
    for options, cp, multiple in ((HYBRID, 1, 16), (PLAIN, 1, 1), (HYBRID, 2, 16)):
        slicer = SequenceSlicer(cp=cp, rank=0, multiple=tokens_multiple(options), device=torch.device("cpu"))
        if flat:
            widths = slicer._index([19, 7], 0)[2]
            assert sum(widths) % (multiple * cp) == 0
            continue
        part = slicer.slice(batch, counts=True)
        assert part.input_ids.shape[1] % multiple == 0
        if cp == 1:
            assert torch.equal(part.input_ids[:, :19], batch.input_ids)
            assert (part.segment_ids[:, 19:] == -1).all()


@pytest.mark.parametrize(("version", "said"), [(None, "it is not installed"), ("1.13.0", "2.2 or newer, and 1.13.0")])
def test_missing_or_old_transformer_engine_is_refused(
    monkeypatch: pytest.MonkeyPatch, version: str | None, said: str
) -> None:
    """An engine that is missing or too old is refused with what to type."""

    def found(name: str) -> str:
        assert name == "transformer-engine"
        if version is None:
            raise metadata.PackageNotFoundError(name)
        return version

    monkeypatch.setattr(metadata, "version", found)
    with pytest.raises(UnsupportedLayout, match=said) as caught:
        check_engine("backend.fp8 needs Transformer Engine")
    assert "pip install" in (caught.value.hint or "")
    if version is not None:
        monkeypatch.setattr(metadata, "version", lambda name: "2.9.0")
        check_engine("backend.fp8 needs Transformer Engine")


def test_unfit_fp8_matrix_shapes_are_refused() -> None:
    """Matrices that it cannot multiply are refused as a process has them."""
    text = SimpleNamespace(hidden_size=64, intermediate_size=96)
    check_widths(HYBRID, text, 2)
    check_widths(PLAIN, text, 5)
    with pytest.raises(UnsupportedLayout, match=r"intermediate_size 96 by parallel\.tp 4 is not one"):
        check_widths(HYBRID, text, 4)
    with pytest.raises(UnsupportedLayout, match="hidden_size 72 is not one"):
        check_widths(HYBRID, SimpleNamespace(hidden_size=72), 1)
