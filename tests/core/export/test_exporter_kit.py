"""The conformance kit of exporters: core's own passes it, and one that does not read its files fails it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from test_own_format import TorchFile

from swift.contracts import Reloaded
from swift_testing import ExporterConformance
from swift_testing import exporter_conformance as kit


class TestHuggingFace(ExporterConformance):
    exporter = "hf"


class Remembering(TorchFile):
    """Reads back what it was given, not what it wrote."""

    plugins = ()

    def swift_export(self, run: Any, weights: Any, request: Any) -> Path:
        self.given = {name: tensor.detach().clone() for name, tensor in weights}
        return super().swift_export(run, iter(self.given.items()), request)

    def swift_reload(self, folder: Path, source: Any) -> Reloaded:
        return Reloaded(iter(self.given.items()))


class OfRemembering(ExporterConformance):
    exporter = "remembering"


def test_kit_finds_exporter_that_reads_no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kit, "open_hooks", lambda exporter: Remembering())
    monkeypatch.setattr(kit, "load_plugin", lambda group, name: None)
    with pytest.raises(AssertionError, match="was altered, and the export was verified"):
        OfRemembering().test_altered_file_is_found(tmp_path)
