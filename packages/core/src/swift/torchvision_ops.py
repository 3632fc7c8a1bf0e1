"""Lets torchvision be imported beside a build of torch that it was not compiled for.

The index of packages has one build of torchvision for each release, made for CUDA. Beside a CPU build of torch its
compiled operators cannot be loaded, and importing it ends in `operator torchvision::nms does not exist`: it describes
two of them whether they are there or not. Everything of transformers that looks for torchvision ends with it. What
processors of images and videos use of it is written in Python and needs none of these operators.
"""

from __future__ import annotations

import sys
from typing import Any

_DESCRIBING = "torchvision._meta_registrations"
"""The module that describes the operators: it is imported after they were looked for."""
_DESCRIBED_ALWAYS = {
    "nms": "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms": "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
}
_kept: list[Any] = []
"""Libraries of operators: what they declare is gone when they are."""


def declare_missing_operators() -> None:
    """Have the operators that torchvision describes declared, from now on, where it is imported without them."""
    if not any(isinstance(finder, _BeforeDescribing) for finder in sys.meta_path):
        sys.meta_path.insert(0, _BeforeDescribing())


class _BeforeDescribing:
    """Finds nothing itself; it is asked at the moment at which torchvision has looked for its operators.

    No subclass of `importlib.abc.MetaPathFinder`, whose import would take as long as that of swift.
    """

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> None:
        if fullname == _DESCRIBING:
            _declare()


def _declare() -> None:
    """Declare each operator that is not there, without anything that it could do."""
    import torch

    missing = [schema for name, schema in _DESCRIBED_ALWAYS.items() if not hasattr(torch.ops.torchvision, name)]
    if missing:
        library: Any = torch.library.Library("torchvision", "FRAGMENT")  # type: ignore[no-untyped-call]
        for schema in missing:
            library.define(schema)
        _kept.append(library)
