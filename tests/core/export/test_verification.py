"""What verification notices besides weights and log-probabilities, and what is refused before anything is read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from test_export_run import export, save, trained
from tiny import tiny_model

from swift.config.sections import ExportOptions
from swift.errors import CheckpointError, ExportError, ModelError, UsageError
from swift.export.run import export_checkpoint
from swift.export.verify.compare import Outputs, Reference, Tolerance, compare
from swift.models import memory

REFERENCE = Reference(
    [[5, 6, 7]],
    Outputs([[-1.0, -2.0]], [[10, 11, 12]], [[-0.1, -0.7, -0.2]], [[2.0, 0.00005, 3.0]]),
)
TIGHT = Tolerance(1e-4)


def outputs(greedy: list[int]) -> Outputs:
    return Outputs([[-1.0, -2.0]], [greedy], [[-0.1, -0.6, -0.4][: len(greedy)]])


def test_greedy_mismatch_names_first_token() -> None:
    """Greedy tokens are compared and the first that differs is named."""
    told = compare(REFERENCE, outputs([10, 11, 12]), TIGHT, who="vLLM", cause="")
    assert told["greedy"] == {"completions": 1, "tokens_equal": 3, "near_ties": 0, "margin": 2e-4}
    with pytest.raises(
        ExportError, match=r"token 1 of the completion of test prompt 1 is 9 \(-0\.1000\) by vLLM instead of 10"
    ):
        compare(REFERENCE, outputs([9, 11, 12]), TIGHT, who="vLLM", cause="")
    with pytest.raises(ExportError, match="token 3 of the completion of test prompt 1 is 13"):
        compare(REFERENCE, outputs([10, 11, 13]), TIGHT, who="vLLM", cause="")


def test_near_tie_ends_comparison_of_completion() -> None:
    """A near tie may go either way and ends the comparison of that completion."""
    told = compare(REFERENCE, outputs([10, 77, 99]), TIGHT, who="vLLM", cause="")
    assert (told["greedy"]["tokens_equal"], told["greedy"]["near_ties"]) == (1, 1)


def test_means_are_held_to_the_tolerance_too() -> None:
    off = Outputs([[-1.0, -2.5]], [[10, 11, 12]])
    compare(REFERENCE, off, Tolerance(1.0, mean=0.3), who="vLLM", cause="")
    with pytest.raises(ExportError, match=r"differ by 0\.2500 on average"):
        compare(REFERENCE, off, Tolerance(1.0, mean=0.1), who="vLLM", cause="")


def test_an_export_reports_greedy_tokens_and_rendering(tmp_path: Path) -> None:
    base = tiny_model(tmp_path / "base")
    checkpoint = save(tmp_path / "run", base, trained(base)[1])
    report = json.loads((export(checkpoint, "hf") / "verification.json").read_text())
    assert report["greedy"]["completions"] == 4
    assert report["greedy"]["tokens_equal"] == 64
    assert "tools" in report["rendering"]["equal"]


def change_the_template(folder: Path) -> None:
    (folder / "chat_template.jinja").write_text("{{ messages }} ")


def change_the_tokenizer(folder: Path) -> None:
    path = folder / "tokenizer.json"
    path.write_text(
        path.read_text().replace('"a":', '"swapped":').replace('"b":', '"a":').replace('"swapped":', '"b":')
    )


def test_another_rendering_fails_the_export(tmp_path: Path) -> None:
    base = tiny_model(tmp_path / "base")
    checkpoint = save(tmp_path / "run", base, trained(base)[1])
    with pytest.raises(ExportError, match=r"renders a question otherwise .* at character \d+"):
        export(checkpoint, "hf", change_the_template)
    with pytest.raises(ExportError, match="makes other tokens than training"):
        export(checkpoint, "hf", change_the_tokenizer)
    assert not (tmp_path / "run" / "export-hf").exists()


def test_a_model_folder_is_exported_like_a_run(tmp_path: Path) -> None:
    base = tiny_model(tmp_path / "base")
    folder = export(base, "hf", dtype="bfloat16")
    assert folder == tmp_path / "base-export-hf"
    assert json.loads((folder / "verification.json").read_text())["weights"]["dtype"] == "bfloat16"


def test_unsupported_export_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "notes").mkdir()
    with pytest.raises(CheckpointError, match="There is no checkpoint at"):
        export(tmp_path / "notes", "hf")
    (tmp_path / "run" / "checkpoint-20.tmp").mkdir(parents=True)
    for named in ("run", "run/checkpoint-20", "run/checkpoint-20.tmp"):
        with pytest.raises(CheckpointError, match=r"checkpoint-20\.tmp is still being written"):
            export(tmp_path / named, "hf")
    base = tiny_model(tmp_path / "base")
    checkpoint = save(tmp_path / "run", base, trained(base)[1])
    with pytest.raises(UsageError, match="--calibration-dataset needs --quant"):
        export(checkpoint, "hf", calibration_dataset=("rows.jsonl",))
    monkeypatch.setattr(memory, "available_bytes", lambda: 2**20)
    with pytest.raises(ModelError, match=r"takes about 0\.3 GiB of memory, and 0\.0 GiB are available"):
        export(checkpoint, "hf")
    assert sorted(each.name for each in (tmp_path / "run").glob("export*")) == []


def test_failed_upload_keeps_export_and_prints_command(tmp_path: Path) -> None:
    """An upload that cannot be made leaves the export and says what to type."""
    base = tiny_model(tmp_path / "base")
    out = tmp_path / "out"
    options = ExportOptions(verify="none", out=out, push="me/mine")
    with pytest.raises(ExportError, match="HF_HUB_OFFLINE is set") as caught:
        export_checkpoint(base, to="hf", options=options, say=lambda _: None)
    assert f"hf upload me/mine {out}" in (caught.value.hint or "")
    assert (out / "model.safetensors").is_file()


def test_export_upload_to_url_keeps_local_on_failure(tmp_path: Path) -> None:
    """An export is uploaded to a URL and stays where that fails."""
    base = tiny_model(tmp_path / "base")
    there = tmp_path / "there"

    def exported(out: Path, url: str) -> None:
        export_checkpoint(base, to="hf", options=ExportOptions(verify="none", out=out, push=url), say=lambda _: None)

    exported(tmp_path / "out", f"file://{there}")
    names = [each.name for each in (tmp_path / "out").iterdir()]
    assert "config.json" in names
    assert all((there / name).read_bytes() == (tmp_path / "out" / name).read_bytes() for name in names)
    with pytest.raises(ExportError, match=r"Not uploaded: 'file://.* cannot be written") as caught:
        exported(tmp_path / "again", f"file://{there / 'config.json'}")
    assert "The export is complete" in (caught.value.hint or "")
    assert (tmp_path / "again" / "model.safetensors").is_file()
