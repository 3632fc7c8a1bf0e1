"""Record the flags of SGLang's and LMDeploy's servers from their own parsers, for tests/servers.

Run `python tools/server_parsers.py sglang` in an environment with SGLang; it does not need swift.
"""

from __future__ import annotations

import argparse
import json
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent.parent / "tests/servers"


def main(name: str) -> None:
    parser = {"sglang": sglang, "lmdeploy": lmdeploy}[name]()
    rows = ",\n".join(json.dumps(row) for each in parser._actions for row in described(each))
    (FOLDER / f"{name}.json").write_text(f'{{"version": "{metadata.version(name)}", "arguments": [\n{rows}\n]}}\n')


def sglang() -> argparse.ArgumentParser:
    from sglang.srt.server_args import ServerArgs

    parser = argparse.ArgumentParser()
    ServerArgs.add_cli_args(parser)
    return parser


def lmdeploy() -> argparse.ArgumentParser:
    from lmdeploy.cli.serve import SubCliServe

    SubCliServe.add_parser_api_server()
    parser: argparse.ArgumentParser = SubCliServe.subparsers.choices["api_server"]
    return parser


def described(action: argparse.Action) -> list[dict[str, Any]]:
    """Return an argument as another parser can be given it: its names, how many values follow, and which."""
    if isinstance(action, argparse._HelpAction):
        return []
    values: Any = action.nargs
    if values is None and action.const is not None:
        values = 0
    names = action.option_strings or [action.dest]
    return [{"names": names, "values": values, "choices": sorted(map(str, action.choices)) if action.choices else None}]


if __name__ == "__main__":
    main(sys.argv[1])
