"""Conformance kits for backends, engines and exporters.

    class TestMine(BackendConformance):
        backend = "mine"
        layouts = (Layout(2), Layout(4))

    class TestMyExperts(ExpertConformance):
        backend = "mine"

    class TestMyEngine(EngineConformance):
        engine = "mine"

    class TestMyExporter(ExporterConformance):
        exporter = "mine"

    class TestMyObjective(TrainingConformance):
        settings = {"objective.name": "mine"}

A test of one's own looks on while a run trains:

    with open_job(config_from_mapping({"backend.name": "mine", ...}), rows=rows) as job:
        for record in Loop(job).steps():
            ...

`swift plugins --try mine` runs a short form of the first, without pytest. `swift plugins new KIND NAME` writes a
package with a plugin and its test.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from swift.lazy import lazy_names

# MKL's own allocator keeps a list by thread, around which a process that is forked later may run for ever.
os.environ.setdefault("MKL_DISABLE_FAST_MM", "1")

if TYPE_CHECKING:
    from swift_testing.cases import CASES as CASES
    from swift_testing.cases import Case as Case
    from swift_testing.conformance import BackendConformance as BackendConformance
    from swift_testing.conformance import ExpertConformance as ExpertConformance
    from swift_testing.engine_conformance import EngineConformance as EngineConformance
    from swift_testing.exporter_conformance import ExporterConformance as ExporterConformance
    from swift_testing.layouts import Layout as Layout
    from swift_testing.plugin_templates import new_plugin as new_plugin
    from swift_testing.plugin_templates import template_kinds as template_kinds
    from swift_testing.reference import Expected as Expected
    from swift_testing.reference import Recipe as Recipe
    from swift_testing.reference import run_reference as run_reference
    from swift_testing.short import short_form as short_form
    from swift_testing.tokenizer import CHAT_TEMPLATE as CHAT_TEMPLATE
    from swift_testing.tokenizer import VISION_CHAT_TEMPLATE as VISION_CHAT_TEMPLATE
    from swift_testing.tokenizer import VISION_TOKENS as VISION_TOKENS
    from swift_testing.tokenizer import byte_tokenizer as byte_tokenizer
    from swift_testing.training_conformance import TrainingConformance as TrainingConformance

__version__ = "0.1.0"

# Imported when they are used: the tokenizer and `swift plugins --try` need no pytest.
__getattr__ = lazy_names(__name__)
