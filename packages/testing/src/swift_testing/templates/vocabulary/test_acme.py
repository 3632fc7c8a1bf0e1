"""A file of the program becomes settings of swift, and what is lost is named."""

from swift_acme import Acme


def test_file_is_translated(tmp_path):
    file = tmp_path / "run.yaml"
    file.write_text("acme_version: 2\nrate: 1.0e-4\nsparkles: 3\n")
    vocabulary = Acme()
    (run,) = vocabulary.read(str(file))
    translated = vocabulary.translate(run)
    assert translated.settings["optim.lr"].value == 1e-4
    assert [remark.key for remark in translated.lost] == ["sparkles"]
