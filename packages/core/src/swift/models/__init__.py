"""Models: where they come from, what their weights are called, which of them are trained and in which precision."""

from __future__ import annotations

from typing import TYPE_CHECKING

from swift.lazy import lazy_names

if TYPE_CHECKING:
    from swift.models.pair_template import renders_pairs as renders_pairs
    from swift.models.pair_template import stored_template as stored_template
    from swift.models.pair_template import with_pairs as with_pairs
    from swift.models.pair_template import write_pair_template as write_pair_template
    from swift.models.sentence_files import add_prompts as add_prompts

__getattr__ = lazy_names(
    __name__,
    {
        "pair_template": "renders_pairs stored_template with_pairs write_pair_template",
        "sentence_files": "add_prompts",
    },
)
