"""Rows that Dask wrote, tokenised shard by shard: the losses of a run are those of the rows as they were."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from commands import Run

WRITE = """
import sys
import dask.dataframe
import pandas
import pyarrow
dask.config.set({"dataframe.convert-string": False})  # lists of messages would become texts
rows = pandas.read_json(sys.argv[1], lines=True)
dask.dataframe.from_pandas(rows, npartitions=3).to_parquet(
    sys.argv[2], write_index=False, schema=pyarrow.Schema.from_pandas(rows, preserve_index=False)
)
"""


def test_rows_of_dask_are_tokenised_in_shards_and_learned_from(
    tiny: Path, tmp_path: Path, start: Callable[..., Run]
) -> None:
    data, rows, tokens = tiny.parent / "data.jsonl", tmp_path / "rows", tmp_path / "tokens"

    def typed(program: str, *words: str) -> None:
        run = start(program, *words)
        assert run.code() == 0, run.output

    typed("python", "-c", WRITE, str(data), str(rows))
    assert len(list(rows.glob("*.parquet"))) == 3
    build = ["data", "build", "sft", "--model", str(tiny), "--dataset", str(rows), "--out", str(tokens)]
    for shard in ("2/2", "1/2"):
        typed("swift", *build, "--shard", shard)
    typed("swift", "data", "join", str(tokens))
    found = []
    for place, name in ((tokens, "tokens"), (data, "rows")):
        words = ["--model", str(tiny), "--dataset", str(place), "--train_type", "full", "--max_steps", "2"]
        words += ["--logging_steps", "1", "--run_name", name, "--output_dir", str(tmp_path / "out")]
        typed("swift", "sft", *words, "--per_device_train_batch_size", "4")
        lines = (tmp_path / "out/tiny" / name / "logging.jsonl").read_text().splitlines()
        found.append([line["loss"] for line in map(json.loads, lines) if "loss" in line])
    assert len(found[0]) == 2
    assert found[0] == found[1]
