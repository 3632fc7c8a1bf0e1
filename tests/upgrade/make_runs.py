"""Make the runs that every later version must go on with: `python tests/upgrade/make_runs.py`, once for each release.

Two runs of four steps on a tiny model, of which the middle is kept as a user would find it: all weights, and LoRA. What
came after it stands in expected.json: losses of the steps that followed, and logits of what was trained.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "helpers"))
WORK = Path(tempfile.gettempdir()) / "swift-old-runs"
"""Where the runs are made. Their manifests have checksums and name it: they are read where it is not there any more."""
SMALL = {"hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8}
SETTINGS = {"train.max_steps": 4, "checkpoint.save_steps": 2, "tuner.dropout": 0.0, "tuner.rank": 4}
KINDS = ("full", "lora")
ROWS = 24
QUESTION = "Write 964"


def main() -> None:
    from tiny_runs import conversations, run_training, write_model

    from swift import __version__

    place = HERE / __version__
    shutil.rmtree(place, ignore_errors=True)
    shutil.rmtree(WORK, ignore_errors=True)
    WORK.mkdir()
    try:
        model = write_model(WORK / "model", **SMALL)
        expected = {}
        for kind in KINDS:
            done = run_training(model, WORK / kind, conversations(ROWS), {**SETTINGS, "tuner.kind": kind})
            losses = done.losses
            shutil.rmtree(done.folder / "checkpoint-4")
            (done.folder / ".lock").unlink()
            (done.folder / "last-checkpoint").unlink()
            (done.folder / "last-checkpoint").symlink_to("checkpoint-2")
            done.folder.rename(WORK / f"{kind}-run")
            shutil.rmtree(WORK / kind)
            (WORK / f"{kind}-run").rename(WORK / kind)
            expected[kind] = {"losses": losses, "logits": logits(WORK / kind / "checkpoint-2", model)}
        shutil.copytree(WORK, place, symlinks=True)
    finally:
        shutil.rmtree(WORK)
    (place / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")


def logits(checkpoint: Path, base: Path) -> list[float]:
    """Return what transformers (and PEFT) say after a question, for the first tokens of the vocabulary."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    adapted = (checkpoint / "adapter_config.json").is_file()
    model = AutoModelForCausalLM.from_pretrained(base if adapted else checkpoint, dtype=torch.float32)
    if adapted:
        from peft import PeftModel

        model = PeftModel.from_pretrained(model, checkpoint)
    question = AutoTokenizer.from_pretrained(base)(QUESTION, return_tensors="pt")["input_ids"]
    with torch.no_grad():
        found: list[float] = model(question).logits[0, -1, :16].tolist()
    return found


if __name__ == "__main__":
    main()
