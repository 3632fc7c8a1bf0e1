"""`swift demo`, and the tiny models and tasks that it trains.

Names are imported when they are first used: the command's help needs neither torch nor transformers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from swift.lazy import lazy_names

if TYPE_CHECKING:
    from swift_demo.images import render_number as render_number
    from swift_demo.model import write_model as write_model
    from swift_demo.scoring import DIGITS_SPREAD as DIGITS_SPREAD
    from swift_demo.scoring import reranker_rows as reranker_rows
    from swift_demo.scoring import spelled as spelled
    from swift_demo.task import write_data as write_data
    from swift_demo.vision_model import write_vision_model as write_vision_model

__version__ = "0.1.0"

__getattr__ = lazy_names(__name__)
