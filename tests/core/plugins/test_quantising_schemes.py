"""Installed exporters declare the values of `--quant`, before anything is loaded."""

from __future__ import annotations

from pathlib import Path

import pytest
from small_distributions import Distribution, install

from swift.cli.doctor import examine_engines
from swift.cli.main import run
from swift.config.sections import ExportOptions
from swift.contracts import SchemeFacts
from swift.errors import PluginError, UsageError
from swift.export.quantised import requested_scheme
from swift.plugins.load import load_engine, load_exporter
from swift.plugins.schemes import find_scheme


@pytest.fixture
def acme_alone(installed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of all plugins, those of one distribution."""
    monkeypatch.setenv("SWIFT_PLUGINS", "acme-exporters")


def test_scheme_names_its_exporter(acme_alone: None) -> None:
    scheme = find_scheme("acme-rounded", "hf")
    assert (scheme.writer, scheme.facts) == ("small", SchemeFacts("2-bit weights", calibrated=False))


def test_target_exporter_quantizes(acme_alone: None) -> None:
    """Of several exporters the one that is exported to quantizes."""
    assert [find_scheme("acme3", to).writer for to in ("small", "smaller")] == ["small", "smaller"]
    with pytest.raises(UsageError, match="Several exporters offer --quant acme3: small, smaller") as caught:
        find_scheme("acme3", "hf")
    assert "--to small" in str(caught.value.hint)


def test_unknown_scheme_lists_offered_ones(
    acme_alone: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An unknown scheme is refused with those that are offered."""
    (tmp_path / "config.json").write_text("{}")
    assert run(["export", str(tmp_path), "--quant", "acme-round"]) == UsageError.exit_code
    printed = capsys.readouterr().err
    assert "--quant must be one of 'acme3', 'acme-rounded', not 'acme-round'. Did you mean 'acme-rounded'?" in printed
    assert "acme-rounded: 2-bit weights (exporter small)" in printed
    assert "boastful" in printed  # it could not be loaded


def test_missing_quantizing_exporter_names_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without an exporter that quantizes what installs one is named."""
    monkeypatch.setenv("SWIFT_PLUGINS", "")
    with pytest.raises(PluginError, match=r"offers --quant acme3\.\nRun: .*core\["):
        find_scheme("acme3", "hf")
    with pytest.raises(UsageError, match=r"--quant-tolerance needs --quant.*\nRun: .*core\["):
        requested_scheme("hf", ExportOptions(quant_tolerance=0.1))


def test_scheme_not_for_target_is_refused(acme_alone: None) -> None:
    with pytest.raises(UsageError, match="acme3 does not work with --to small: it reads whole bits only") as caught:
        requested_scheme("small", ExportOptions(quant="acme3"))
    assert caught.value.hint == "Pass --to hf --quant acme3, or --to small with one of acme-rounded."
    with pytest.raises(UsageError, match="For example: --quant acme3"):
        requested_scheme("hf", ExportOptions(calibration_dataset=("rows.jsonl",)))


def test_inconsistent_exporter_or_engine_is_named(acme_alone: None) -> None:
    with pytest.raises(PluginError, match="offers acme1, and does not implement swift_quantize"):
        load_exporter("boastful")
    with pytest.raises(PluginError, match=r"'vague' .* declares schemes\['acme1'\] as the str '1-bit weights'"):
        load_exporter("vague")
    with pytest.raises(PluginError, match="declares library as the str 'acme-answers'"):
        load_engine("mumble")


def test_doctor_names_install_of_engine_library(
    acme_alone: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (missing,) = examine_engines()
    assert missing.what == "ask is not installed, which swift serve needs (--python selects another environment)"
    assert missing.fix.endswith('pip install "acme-ask[answers]"')
    install([Distribution("acme-answers", "", {})], tmp_path / "site", tmp_path / "wheels")
    monkeypatch.syspath_prepend(tmp_path / "site")
    (there,) = examine_engines()
    assert (there.what, there.verdict) == ("acme-answers 1.0, built for GPUs", "ok")
    monkeypatch.setenv("SWIFT_PLUGINS", "")
    (none,) = examine_engines()
    assert "core[" in none.fix
