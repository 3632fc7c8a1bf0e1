"""One export in typed facts: who writes which model where."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from swift.config.sections import ExportSection
from swift.contracts import ExportRequest, ModelSource, Run
from swift.hookspecs import ExporterHooks
from swift.models.adapter_file import ADAPTER_WEIGHTS
from swift.terminal import Say


@dataclass(frozen=True)
class ExportJob:
    """One export: who writes which model where, and what is checked of it."""

    exporter: ExporterHooks
    to: str
    """Name of the exporter, as it is typed."""
    source: ModelSource
    adapter: Mapping[str, Any] | None
    """The PEFT configuration when adapters were trained."""
    options: ExportSection
    destination: Path
    say: Say
    run: Run | None = None
    """The run that is going on, if it exports."""
    objective: Mapping[str, Any] = field(default_factory=dict)
    """The `objective` section of the run that trained the model; empty where no run is known."""
    system: str | None = None
    """The system message that every conversation of the run was given."""
    intermediate: bool = False
    """Whether it is a step on the way to something else, and is not announced."""

    @property
    def temporary(self) -> Path:
        """Return where it is written before it is complete."""
        return self.destination.with_name(f".{self.destination.name}.tmp")

    @property
    def request(self) -> ExportRequest:
        """Return the request that the exporter gets."""
        plugins = [plugin.object for plugin in getattr(self.exporter, "plugins", ())]
        model = getattr(plugins[0] if plugins else self.exporter, "options_model", None)
        own = None if model is None else self.options.options(model)
        return ExportRequest(self.temporary, self.source, self.adapter, self.options, own)

    @property
    def base(self) -> Path | None:
        """Return the folder from which others can load the model that training started from, where there is one."""
        from swift.models.source import HfSource

        source = self.source
        return source.folder if isinstance(source, HfSource) and not source.random else None

    @property
    def writer(self) -> str:
        """Return the exporter, with the distribution that it came with where that is known."""
        entries = [plugin.entry for plugin in getattr(self.exporter, "plugins", ())]
        return str(entries[0]) if entries else f"exporter {self.to!r}"


def trusted(source: ModelSource) -> bool:
    """Return whether Python code that comes with the model may run: when the source was opened with leave to do so."""
    return bool(getattr(source, "trust_remote_code", False))


def is_adapter(folder: Path) -> bool:
    """Return whether this is an adapter alone, which is used with the tokenizer of its base model."""
    return (folder / ADAPTER_WEIGHTS).is_file()


def installed_exporter(name: str) -> ExporterHooks:
    """Return the installed exporter of a name."""
    from swift.plugins.hooks import open_hooks
    from swift.plugins.load import load_exporter

    return open_hooks(exporter=load_exporter(name))
