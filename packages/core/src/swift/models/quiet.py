"""Third-party libraries: keep their output off the terminal, and work around imports that fail or take long."""

from __future__ import annotations

import functools
import importlib
import logging
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

_declared: list[Any] = []
"""Operator libraries: what a library declares disappears with it."""


@functools.cache
def quiet_libraries() -> None:
    """Silence transformers, huggingface_hub, torchao and bitsandbytes; call it before anything imports transformers.

    Errors are still raised as exceptions.
    """
    # Named loggers first: torchao prints while transformers imports it.
    for name in ("torchao", "bitsandbytes", "torch.utils._pytree"):
        logging.getLogger(name).setLevel(logging.ERROR)
    # transformers imports DeepSpeed when it saves a model, wherever DeepSpeed is installed.
    logging.getLogger("DeepSpeed").addFilter(_is_informative)
    warnings.filterwarnings("ignore", module=r"(transformers|huggingface_hub|peft|torchao|bitsandbytes)\b")

    import_torchvision()
    from huggingface_hub.utils.tqdm import disable_progress_bars
    from transformers.utils import logging as transformers_logging

    disable_progress_bars()
    transformers_logging.disable_progress_bar()
    transformers_logging.set_verbosity_error()


def import_torchvision() -> None:
    """Import torchvision, where it is installed, also with a build of torch that cannot load its operators.

    The package index has torchvision for CUDA only. With a CPU build of torch, importing it fails with `operator
    torchvision::nms does not exist`, and so do most models of transformers, which import torchvision wherever it is
    installed. Processors of images and videos call none of its operators, so that declaring them is enough.
    """
    if find_spec("torchvision") is None:
        return
    try:
        importlib.import_module("torchvision")
    except RuntimeError as error:
        if "operator torchvision::nms does not exist" not in str(error):
            raise
        import torch

        library: Any = torch.library.Library("torchvision", "FRAGMENT")  # type: ignore[no-untyped-call]
        for operator in ("nms", "qnms"):
            library.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _declared.append(library)
        importlib.import_module("torchvision")


def _is_informative(record: logging.LogRecord) -> bool:
    """Return whether a record of DeepSpeed adds to the header of the run, which names the device."""
    return not record.getMessage().startswith("Setting accelerator to CPU")


@contextmanager
def without_bitsandbytes() -> Iterator[None]:
    """Hide bitsandbytes during the first import of PEFT, and while adapters are attached.

    PEFT imports bitsandbytes wherever it is installed, which takes several times as long as PEFT itself. It is not
    hidden if it is imported already, as it is for quantising. Targets that name modules stay what they are meanwhile.
    """
    from swift.models.peft_targets import named_modules_kept
    from swift.models.quantized_experts import adapters_on_packed

    hidden = "bitsandbytes" not in sys.modules
    if hidden:
        sys.modules["bitsandbytes"] = None  # type: ignore[assignment]  # what Python takes for: not there
    try:
        with _without_old_torchao(), _without_needless_types(), named_modules_kept(), adapters_on_packed():
            yield
    finally:
        if hidden:
            del sys.modules["bitsandbytes"]
            from peft import import_utils

            for remembered in (import_utils.is_bnb_available, import_utils.is_bnb_4bit_available):
                remembered.cache_clear()


@contextmanager
def _without_old_torchao() -> Iterator[None]:
    """Keep PEFT's MiSS from looking for classes of torchao that newer ones have dropped: the import would fail."""
    try:
        from peft.utils import quantization_utils
    except ImportError:  # an older PEFT, which does not look
        yield
        return
    original = quantization_utils.is_torchao_available
    quantization_utils.is_torchao_available = lambda: False
    try:
        yield
    finally:
        quantization_utils.is_torchao_available = original


@contextmanager
def _without_needless_types() -> Iterator[None]:
    """Keep PEFT from importing torchao, and from looking for DTensor, to ask whether weights are of their types.

    Where these are not imported yet no weight can be, and they bring torch's compiler with them.
    """
    from peft.tuners import tuners_utils
    from peft.tuners.lora import torchao

    original, sharded = torchao.is_torchao_available, getattr(tuners_utils, "_torch_supports_distributed", False)
    torchao.is_torchao_available = lambda: "torchao" in sys.modules and original()
    tuners_utils._torch_supports_distributed = sharded and "torch.distributed.tensor" in sys.modules
    try:
        yield
    finally:
        torchao.is_torchao_available = original
        tuners_utils._torch_supports_distributed = sharded
