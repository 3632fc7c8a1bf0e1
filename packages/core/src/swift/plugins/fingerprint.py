"""Comparison of plugins across processes: a node with another version would train something else silently."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

from swift.errors import PluginError
from swift.plugins.entry import CORE
from swift.plugins.load import LoadedPlugin
from swift.version import __version__


def fingerprint(plugins: Sequence[LoadedPlugin]) -> str:
    """Return the plugins of this process as one line of JSON, the same wherever the same plugins are registered."""
    facts = {CORE: __version__}
    for plugin in plugins:
        entry = plugin.entry
        api = ".".join(map(str, plugin.hook_api))
        facts[f"{entry.kind} {entry.name!r}"] = f"{entry.distribution} {entry.version} ({entry.target}, hook API {api})"
    return json.dumps(facts, sort_keys=True)


def compare_fingerprints(mine: str, gather: Callable[[str], list[str]]) -> None:
    """Raise the same error on every process when one of them differs from rank 0.

    `gather` returns the fingerprints of all processes in rank order, on every process.
    """
    everyone = [json.loads(text) for text in gather(mine)]
    first = everyone[0]
    differences = [
        f"{key} is {other.get(key, 'not there')} on rank {rank}, but {first.get(key, 'not there')} on rank 0"
        for rank, other in enumerate(everyone)
        for key in sorted(first.keys() | other.keys())
        if first.get(key) != other.get(key)
    ]
    if differences:
        more = f" (and {len(differences) - 1} more differences)" if len(differences) > 1 else ""
        raise PluginError(
            f"The processes of this run do not have the same plugins: {differences[0]}{more}.",
            hint="Install the same versions on every node; `swift plugins` on each shows what is there.",
        )
