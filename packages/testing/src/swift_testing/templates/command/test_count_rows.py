"""The command prints the number of rows."""

from swift_count_rows import CountRows, CountRowsOptions


def test_rows_are_counted(tmp_path, capsys):
    (tmp_path / "rows.jsonl").write_text("{}\n{}\n")
    assert CountRows().run(CountRowsOptions(file=tmp_path / "rows.jsonl")) == 0
    assert capsys.readouterr().out == "2 rows\n"
