"""Third-party servers as inference engines: the common part of `swift serve`.

A plugin says how its server is found, checked and started (`ServerProgram`); `run_server` does the rest: it starts the
server under a guard, shows how far it is, says how to ask it, and ends it with all that it began. No module here
imports torch.
"""

from __future__ import annotations

from swift_infer.servers.adapters import check_language_only, encoder_trait, unmerged
from swift_infer.servers.flags import (
    KnownFlags,
    argument_flags,
    classes_of,
    dashed,
    field_names,
    flags_in,
    given,
    parsed,
    passed_on,
)
from swift_infer.servers.flags import check_known as check_known_flags
from swift_infer.servers.interpreter import Interpreter, ServerLibrary, find_interpreter
from swift_infer.servers.log import ServerLog
from swift_infer.servers.program import Launch, ServerOnlyEngine, ServerProgram, server_environment
from swift_infer.servers.run import LOOPBACK, run_server

__all__ = [
    "LOOPBACK",
    "Interpreter",
    "KnownFlags",
    "Launch",
    "ServerLibrary",
    "ServerLog",
    "ServerOnlyEngine",
    "ServerProgram",
    "argument_flags",
    "check_known_flags",
    "check_language_only",
    "classes_of",
    "dashed",
    "encoder_trait",
    "field_names",
    "find_interpreter",
    "flags_in",
    "given",
    "parsed",
    "passed_on",
    "run_server",
    "server_environment",
    "unmerged",
]
