"""The conformance kit of exporters: a test class to inherit from."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest

from swift.config.sections import ExportSection
from swift.contracts import ExportRequest, ModelSource, Reloaded, Run, WeightStream
from swift.errors import SwiftError
from swift.export import export_checkpoint
from swift.hookspecs import ExporterHooks
from swift.parsing import config_from_mapping
from swift.plugins import load_plugin, open_hooks
from swift.train import train
from swift_testing.subjects import conversations, write_jsonl, write_model

__tracebackhide__ = True  # pytest shows the sentence alone


class ExporterConformance:
    """Exports tiny models, and checks that swift verified them, and that it finds an altered file."""

    exporter: ClassVar[str]
    """The name that users type."""
    options: ClassVar[Mapping[str, Any]] = {}
    """Keys of the section `export`, with the exporter's own."""
    merges: ClassVar[bool] = True
    """Whether it exports a run that trained an adapter."""

    @pytest.mark.parametrize("tied", [False, True])
    def test_model_is_exported_and_verified(self, tmp_path: Path, tied: bool) -> None:
        """Export a model folder, with a head of its own and one that shares the embedding's weight."""
        report = self._exported(write_model(tmp_path / "model", tie_word_embeddings=tied))
        assert report["verified"], f"not verified: {report.get('reason')}"

    def test_adapter_is_exported_and_verified(self, tmp_path: Path) -> None:
        """Export a run of one step with LoRA: what is compared is the merged model."""
        if not self.merges:
            pytest.skip("`merges` is off")
        data = write_jsonl(tmp_path / "rows.jsonl", conversations(8))
        settings = {
            "model.path": str(write_model(tmp_path / "model")), "data.train": [str(data)], "tuner.kind": "lora",
            "optim.lr": 0.1, "train.max_steps": 1, "backend.device": "cpu", "logging.output": str(tmp_path / "runs"),
        }  # fmt: skip
        checkpoint = train(config_from_mapping(settings)).last_checkpoint
        assert checkpoint is not None
        report = self._exported(checkpoint)
        assert report["verified"], f"not verified: {report.get('reason')}"

    def test_altered_file_is_found(self, tmp_path: Path) -> None:
        """Change bytes in the largest file after it was written: the export must fail."""
        exporter = open_hooks(exporter=load_plugin("swift.exporters", self.exporter))
        altering = _Altering(exporter)
        try:
            self._exported(write_model(tmp_path / "model"), altering)
        except SwiftError:
            return
        raise AssertionError(f"{altering.altered} was altered, and the export was verified: does swift_reload read it?")

    def _exported(self, source: Path, exporter: ExporterHooks | None = None) -> dict[str, Any]:
        out = source.parent / "exported"
        options = ExportSection(out=out, **self.options)
        export_checkpoint(source, to=self.exporter, options=options, say=lambda _: None, exporter=exporter)
        report: dict[str, Any] = json.loads((out / "verification.json").read_text(encoding="utf-8"))
        return report


class _Altering(ExporterHooks):
    """An exporter whose files change when it has written them."""

    def __init__(self, exporter: Any) -> None:
        self._exporter = exporter
        self.plugins = exporter.plugins
        self.altered = ""
        """The name of the file."""

    def swift_export(self, run: Run | None, weights: WeightStream, request: ExportRequest) -> Path:
        folder: Path = self._exporter.swift_export(run, weights, request)
        largest = max((file for file in folder.rglob("*") if file.is_file()), key=lambda file: file.stat().st_size)
        content = bytearray(largest.read_bytes())
        middle = len(content) // 2
        for index in range(middle, min(middle + 64, len(content))):
            content[index] ^= 0xFF
        largest.write_bytes(content)
        self.altered = largest.name
        return folder

    def swift_reload(self, folder: Path, source: ModelSource) -> Reloaded | None:
        reloaded: Reloaded | None = self._exporter.swift_reload(folder, source)
        return reloaded
