"""An objective for judges: language models that score a response by the logit of yes minus that of no."""

from dataclasses import replace

from swift import LossSums, Need, Section
from swift.contracts import ServedScores
from swift.data.conversation import text_of
from swift.data.encodings import EncodedRow, Encoding, Sample, Unusable, raw_text
from swift.data.samples import Encoded
from swift.objectives.base import PerSampleObjective

PROMPT = "Question: {question}\nResponse: {response}\nIs the response right?"
TEMPLATE = PROMPT.format(question="{{ messages[0].content }}", response="{{ messages[1].content }}")


class JudgedResponse(Encoding):
    """The prompt, and the token that ends a text: the score compares yes with no in its position."""

    name = "judged_response"
    segment_names = ("response",)
    values = ("right",)
    loss_on = "all"
    columns = "question, response and right (1 or 0)"

    def read(self, row):
        right = row.number("right")
        if right not in (0, 1):
            raise Unusable("not 1 or 0", f"right is {right:g}")
        prompt = PROMPT.format(question=row.text("question"), response=row.text("response"))
        return Sample(raw_text(prompt), values={"right": right})

    def encode(self, row, encoder):
        segment = yield from encoder.segment(row.sample.conversation, row.location)
        weights = segment.weights.copy()
        weights[:-1] = 0
        return EncodedRow((Encoded(0, (replace(segment, weights=weights),), values=dict(row.sample.values)),))


class JudgeOptions(Section):
    """Options of `judge`."""

    yes: str = "yes"
    no: str = "no"


class Judge(PerSampleObjective):
    """The mean over responses of the cross entropy of yes and no."""

    name = "judge"
    needs = frozenset({Need.CANDIDATE_LOGPS})
    returns = "scores"
    asks = ("question", "response")
    encoding = JudgedResponse()
    options_model = JudgeOptions

    def __init__(self, options, candidates=()):
        super().__init__(options)
        self.candidates = candidates

    def for_tokenizer(self, tokenizer):
        judgements = (self.options.yes, self.options.no)
        return Judge(self.options, tuple(tokenizer.encode(word, add_special_tokens=False)[0] for word in judgements))

    def scores(self, view, batch):
        logps = view.candidate_logps
        return batch.segment_sum((logps[..., 0] - logps[..., 1]) * batch.weights)

    def loss(self, view, batch):
        from torch.nn.functional import binary_cross_entropy_with_logits

        scores = self.scores(view, batch)
        active = (batch.segment_sum(batch.weights) > 0).float()
        losses = binary_cross_entropy_with_logits(scores, batch.values["right"], reduction="none") * active
        correct = ((scores > 0) == (batch.values["right"] > 0)) * active
        return LossSums(losses.sum(), {"accuracy": (correct.sum(), active.sum())}, segments=scores.detach())

    def question(self, question, response):
        columns = {"question": text_of(question.messages[0]), "response": text_of(response.messages[0])}
        return Sample(raw_text(PROMPT.format(**columns)))

    def served_scores(self, tokenizer, system):
        yes, no = tokenizer.convert_ids_to_tokens(list(self.for_tokenizer(tokenizer).candidates))
        return ServedScores(TEMPLATE, (yes, no))
