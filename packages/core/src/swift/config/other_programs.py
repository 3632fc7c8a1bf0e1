"""Flags that other programs have and swift does not, and what each means here.

A flag whose value swift can use is an alias (`swift.config.aliases`); the others stand here, so that none is ignored
silently and none is answered by a guess from its spelling. They work on the command line, in YAML files and as keywords
alike. To add one, write a row into its topic: `("flag", "other_spelling"): meaning`, flags with `_`, where the meaning
is one of

- `NotNeeded(note)`: nothing about the result changes, whatever the value. One line of note, and the run goes on.
- `Default(values, note, reason, hint)`: these values say what swift does anyway (note), others are refused.
- `off(reason, hint)`: the same for a switch that is off here: `false` is fine, `true` is refused.
- `Refused(reason, hint)`: it would change the result.

A note is the end of a sentence without a full stop ("... is not needed: NOTE."); a reason is a whole sentence, and a
hint says what to type. `other_program(flag)` looks a flag up; `meaning.answer(source, value)` returns the note, or
raises the refusal.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from swift.config.meanings import Default, Meaning, NotNeeded, Refused, off

Rows = Mapping[tuple[str, ...], Meaning]

LOOP: Rows = {
    ("do_train",): Default(
        ("true",), "this verb trains", "This verb trains.", "To only evaluate: swift eval MODEL --dataset FILE"
    ),
    ("do_eval",): NotNeeded("swift evaluates where --val_dataset or --split_dataset_ratio holds rows out"),
    ("disable_tqdm",): NotNeeded("a terminal shows a progress bar, a file gets a line per logging step"),
    ("use_galore",): off(
        "GaLore is not there.", "For little memory: --train_type qlora, or --optim adamw_8bit on a GPU"
    ),
    ("push_to_hub", "hub_model_id"): Refused(
        "Training does not upload.", "Once it has ended: swift export RUN --push OWNER/NAME"
    ),
}

TOPICS: Mapping[str, Rows] = {
    "Training and evaluation": LOOP,
}
"""Heading in the documentation → rows."""


@cache
def other_programs() -> dict[str, Meaning]:
    """Return flag → meaning, for all rows."""
    return {flag: meaning for rows in TOPICS.values() for flags, meaning in rows.items() for flag in flags}


def other_program(flag: str) -> Meaning | None:
    """Return what a flag of another program means here; None for one that the table does not have."""
    return other_programs().get(flag)
