"""Which cases of the conformance kit a layout is tried with: all of them once per backend, and by `make conformance`.

A layout that shares its code with another is tried with the cases that go through what is its own. Views and values of
tokens are tried where a layout shares the tokens of a row or the vocabulary, or passes them through stages. Four
processes on two cores cost most: where they combine what other layouts have apart, they are tried with what the
combination could spoil. `tests/engines` tries adapters and preferences on more of them.
"""

from __future__ import annotations

import os

from swift_rl import testing as online
from swift_testing import CASES, Layout
from swift_testing.cases import LORA_DROPOUT

ALL_CASES = (*CASES, *online.CASES)
"""With those of online learning."""
OF_TEXT = tuple(case for case in ALL_CASES if case.modality is None)
OTHER_OPTIMIZER = "third party's optimizer"
WHOLE_KIT = bool(os.environ.get("SWIFT_WHOLE_KIT"))
MIXED_IMAGES, IMAGES_LORA, VIT, TWO_KINDS = "images, mixed", "images, lora", "vit trained", "two kinds"
ENCODERS = frozenset(case.name for case in CASES if case.name.startswith("encoder"))
HEADED_LORA, NEGATIVES_LORA = "seq_cls, lora, packed", "negatives, lora, packed"


def more(layout: Layout) -> tuple[Layout, ...]:
    """Return a layout that differs from another in nothing but the number of processes, for `make conformance`."""
    return (layout,) if WHOLE_KIT else ()


def chosen(*names: str) -> frozenset[str] | None:
    """Return the plainest case and these; None is all."""
    return None if WHOLE_KIT else frozenset({"clipped", *names})


def all_of_text(*names: str) -> frozenset[str] | None:
    """Return all cases without images, and these; None is all.

    Files with images in their names try backends with more of them, on more models.
    """
    return None if WHOLE_KIT else frozenset({*(case.name for case in OF_TEXT), LORA_DROPOUT.name, *names})
