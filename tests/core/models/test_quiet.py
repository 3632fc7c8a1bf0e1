"""What is imported with PEFT, and what is not."""

from __future__ import annotations

import subprocess
import sys

import pytest

_SCRIPT = """
import sys, torch
from swift.models.quiet import without_bitsandbytes

with without_bitsandbytes():
    from peft import LoraConfig, get_peft_model
    get_peft_model(torch.nn.Sequential(torch.nn.Linear(64, 64)), LoraConfig(target_modules=["0"]))
assert "bitsandbytes" not in sys.modules
import bitsandbytes
model = torch.nn.Sequential(bitsandbytes.nn.Linear4bit(64, 64))
model.is_loaded_in_4bit = True
print(type(get_peft_model(model, LoraConfig(target_modules=["0"])).base_model.model[0]).__module__)
"""


@pytest.mark.full
def test_peft_comes_without_bitsandbytes_and_knows_it_when_it_is_there() -> None:
    done = subprocess.run([sys.executable, "-c", _SCRIPT], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.split() == ["peft.tuners.lora.bnb"]
