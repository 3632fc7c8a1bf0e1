"""The migration page has the actual defaults."""

from __future__ import annotations

import re

from pages import DOCS

from swift.parsing import parse
from swift.train.due import FEWEST_STEPS
from swift_infer.options import SamplingOptions

PAGE = (DOCS / "how-to" / "migrate.md").read_text(encoding="utf-8")
TABLE = PAGE.partition("## Defaults that differ from ms-swift's")[2].partition("\n## ")[0]
ROWS = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in TABLE.splitlines() if line.startswith("| ")]


def _here(words: str) -> str:
    """Return the last cell of the row whose first cell begins with these words."""
    (cell,) = [row[-1].rstrip(" |") for row in ROWS if row[0].startswith(words)]
    return cell


def test_defaults_on_the_page_are_those_of_the_configuration() -> None:
    config = parse(["--model", "m", "--dataset", "d"], "sft").config
    sampling = SamplingOptions()
    assert _here("`num_train_epochs`") == f"{config.train.epochs:g}"
    assert _here("`gradient_accumulation_steps`").startswith(f"{config.train.accumulation},")
    assert _here("`gradient_checkpointing`") == ("on" if config.train.gradient_checkpointing else "off")
    assert _here("`warmup_ratio`") == f"{config.optim.warmup_ratio:g}"
    assert (config.checkpoint.save_steps, config.train.eval_steps) == (None, None)
    assert _here("`save_steps`") == f"once an epoch; saves at least {FEWEST_STEPS} steps apart"
    assert (config.checkpoint.keep, _here("`save_total_limit`")) == (3, "the three newest and the best")
    assert _here("`max_length`").startswith(f"{config.data.max_length:,};")
    assert config.tuner.kind == "lora"
    drawn = (sampling.temperature, sampling.top_k, sampling.top_p, sampling.repetition_penalty)
    assert _here("sampling by") == "greedy: " + ", ".join(f"{each:g}" for each in drawn)
    assert _here("`max_new_tokens`") == str(sampling.max_new_tokens)
    same = TABLE.partition("The same in both:")[2]
    full = parse(["--model", "m", "--dataset", "d", "--train_type", "full"], "sft").config
    assert (config.optim.lr, full.optim.lr, config.optim.schedule, config.optim.weight_decay) == (
        1e-4,
        1e-5,
        "cosine",
        0.1,
    )
    assert "1e-4 for adapters and 1e-5 for all weights, cosine, weight decay 0.1" in same
    assert (config.optim.beta1, config.optim.beta2, config.train.micro_batch, config.train.seed) == (0.9, 0.95, 1, 42)


def test_page_instructions_for_other_defaults_parse() -> None:
    """The flags that the page lists for other defaults parse."""
    typed = [flags for row in ROWS[1:] for flags in re.findall(r"`(--[^`]+)`", row[1]) if "N" not in flags.split()]
    words = [word for flags in typed for word in flags.split()]
    config = parse(["--model", "m", "--dataset", "d", *words], "sft").config
    assert (config.train.epochs, config.train.global_batch, config.train.gradient_checkpointing) == (3, 16, True)
    assert (config.optim.warmup_ratio, config.checkpoint.save_steps, config.train.eval_steps) == (0, 500, 500)
    assert (config.checkpoint.keep, config.tuner.kind) == (None, "full")
