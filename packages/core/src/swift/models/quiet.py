"""Keeps progress bars and notices of the libraries underneath off the user's terminal."""

from __future__ import annotations

import functools
import logging
import sys
import warnings


@functools.cache
def quiet_libraries() -> None:
    """Silence what transformers, huggingface_hub, torchao and bitsandbytes print; errors still come as exceptions."""
    # Named loggers first: torchao speaks up while transformers imports it.
    for name in ("torchao", "bitsandbytes", "torch.utils._pytree"):
        logging.getLogger(name).setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module=r"(transformers|huggingface_hub|peft|torchao|bitsandbytes)\b")

    from huggingface_hub.utils.tqdm import disable_progress_bars
    from transformers.utils import logging as transformers_logging

    disable_progress_bars()
    transformers_logging.disable_progress_bar()
    transformers_logging.set_verbosity_error()


def import_peft() -> None:
    """Called before the first import of PEFT, which takes bitsandbytes along wherever that is installed; importing it
    takes several times as long as PEFT itself. Meanwhile it is not to be found; who quantises imports it then.
    """
    if "peft" in sys.modules or "bitsandbytes" in sys.modules:
        return
    sys.modules["bitsandbytes"] = None  # type: ignore[assignment]  # what Python takes for: not there
    try:
        import peft.import_utils
    finally:
        del sys.modules["bitsandbytes"]
    for known in (peft.import_utils.is_bnb_available, peft.import_utils.is_bnb_4bit_available):
        known.cache_clear()
