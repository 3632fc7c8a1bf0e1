"""The quantization schemes (`--quant NAME`) that installed exporters offer."""

from __future__ import annotations

from dataclasses import dataclass

from swift.contracts import SchemeFacts
from swift.errors import PluginError, SwiftError, UsageError, did_you_mean
from swift.plugins.discover import ALLOW_LIST, plugin_names
from swift.plugins.known import KNOWN, install_command
from swift.plugins.load import LoadedPlugin, load_exporter

_GROUP = "swift.exporters"


@dataclass(frozen=True)
class OfferedScheme:
    """A scheme by name, with the exporter that offers it."""

    name: str
    facts: SchemeFacts
    exporter: LoadedPlugin

    @property
    def writer(self) -> str:
        """Name of the exporter."""
        return self.exporter.entry.name


def find_scheme(name: str, to: str) -> OfferedScheme:
    """Return the scheme that users call `name`: the one of the exporter `to`, where several exporters offer it."""
    offered, broken = _offered()
    same = [scheme for scheme in offered if scheme.name == name]
    chosen = [scheme for scheme in same if scheme.writer == to] or same
    if len(chosen) == 1:
        return chosen[0]
    if chosen:
        writers = [scheme.writer for scheme in chosen]
        raise UsageError(
            f"Several exporters offer --quant {name}: {', '.join(writers)}.",
            hint=f"Choose one: --to {writers[0]}, or leave the others out of {ALLOW_LIST}.",
        )
    if not offered:
        if broken:
            raise broken[0]
        raise PluginError(f"No exporter is installed that offers --quant {name}.", hint=_install())
    names = list(dict.fromkeys(scheme.name for scheme in offered))
    described = "\n".join(f"  {scheme.name}: {scheme.facts.described} (exporter {scheme.writer})" for scheme in offered)
    unread = "".join(f"\nAn exporter could not be loaded: {error.message}" for error in broken)
    raise UsageError(
        f"--quant must be one of {', '.join(map(repr, names))}, not {name!r}.{did_you_mean(name, names)}",
        hint=f"Installed exporters offer:\n{described}{unread}",
    )


def advice() -> str:
    """Return what to type where a scheme is missing: one that is installed, or what installs some."""
    offered, _ = _offered()
    return f"For example: --quant {offered[0].name}" if offered else _install()


def schemes_of(exporter: LoadedPlugin) -> list[OfferedScheme]:
    """Return what an exporter offers, in its own order."""
    return [OfferedScheme(name, facts, exporter) for name, facts in getattr(exporter.object, "schemes", {}).items()]


def _offered() -> tuple[list[OfferedScheme], list[SwiftError]]:
    """Return the schemes of all exporters that load, and why the others do not."""
    offered: list[OfferedScheme] = []
    broken: list[SwiftError] = []
    for name in plugin_names(_GROUP):
        try:
            offered += schemes_of(load_exporter(name))
        except SwiftError as error:
            broken.append(error)
    return offered, broken


def _install() -> str:
    return "Run: " + " or ".join(str(install_command(_GROUP, name)) for name in KNOWN[_GROUP])
