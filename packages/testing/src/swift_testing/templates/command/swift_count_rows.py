"""Counts the rows of a JSONL file."""

from pathlib import Path

from pydantic import Field

from swift import Section
from swift.errors import UsageError


class CountRowsOptions(Section):
    """Options of `swift count-rows`; each is a flag."""

    file: Path | None = Field(None, description="A JSONL file")


class CountRows:
    group = "Inspect"
    summary = "Count the rows of a file"
    options_model = CountRowsOptions

    def run(self, options):
        if options.file is None or not options.file.is_file():
            raise UsageError("swift count-rows needs a file.", hint="Type: swift count-rows --file data.jsonl")
        print(len(options.file.read_text().splitlines()), "rows")
        return 0
