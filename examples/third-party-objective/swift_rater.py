"""An objective that grades documents: one number for each, learned from people's grades."""

import json
from typing import Annotated

from pydantic import Field, PositiveFloat

from swift import LossSums, Need, Section
from swift.config.options import Aliases
from swift.data.encodings import EncodedRow, Encoding, Sample, Unusable, raw_text
from swift.data.samples import Encoded
from swift.objectives.base import PerSampleObjective

BEST = 5.0


class GradedText(Encoding):
    """A document with a grade from 0 to 5."""

    name = "graded_text"
    segment_names = ("text",)
    values = ("grade",)
    loss_on = "all"
    columns = "text and grade"

    def read(self, row):
        grade = row.number("grade")
        if not 0 <= grade <= BEST:
            raise Unusable("no grade from 0 to 5", f"the grade is {grade:g}")
        return Sample(raw_text(row.text("text")), values={"grade": grade})

    def encode(self, row, encoder):
        segment = yield from encoder.segment(row.sample.conversation, row.location)
        return EncodedRow((Encoded(0, (segment,), values=dict(row.sample.values)),))


class RaterOptions(Section):
    """Options of `rater`; each is a flag."""

    outlier: Annotated[PositiveFloat, Aliases("outlier")] = Field(
        1.0, description="Difference from which a wrong grade counts linearly, not squared"
    )


class Rater(PerSampleObjective):
    """The mean over documents of the Huber loss between the model's one score and the grade."""

    name = "rater"
    task = "reward"
    needs = frozenset({Need.SCORES})
    encoding = GradedText()
    options_model = RaterOptions

    def loss(self, view, batch):
        from torch.nn.functional import huber_loss

        active = (batch.segment_sum(batch.weights) > 0).float()
        grades = batch.values["grade"]
        losses = huber_loss(view.scores[:, 0], grades, reduction="none", delta=self.options.outlier) * active
        apart = ((view.scores[:, 0] - grades).detach().abs() * active).sum()
        return LossSums(losses.sum(), {"mae": (apart, active.sum())}, segments=view.scores.detach())

    def finish_export(self, context):
        settings = {"lowest": 0.0, "highest": BEST, "outlier": self.options.outlier}
        (context.folder / "grades.json").write_text(json.dumps(settings))
