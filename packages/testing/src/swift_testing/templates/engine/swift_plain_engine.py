"""An engine that runs one forward pass for each token."""

from swift import hookimpl
from swift.contracts import Completion, Score
from swift.errors import DataError, ModelError


class PlainEngine:
    @hookimpl
    def swift_open_engine(self, request):
        return Opened(request)


class Opened:
    """Implements `swift.contracts.InferenceEngine`."""

    def __init__(self, request):
        from transformers import AutoModelForCausalLM

        if request.adapter is not None:
            raise ModelError("plain-engine does not support adapters.", hint="Merge it: swift merge-lora RUN")
        dtype = "float32" if request.dtype == "auto" else request.dtype
        self.model = AutoModelForCausalLM.from_pretrained(request.model, dtype=dtype).eval()
        configured = self.model.generation_config.eos_token_id
        self.ends = {*request.end_tokens, *(configured if isinstance(configured, list) else [configured])}

    def generate(self, prompts, sampling):
        for index, prompt in enumerate(prompts):
            tokens, logprobs = [], []
            for token, logprob in self.steps(prompt, sampling, index):
                tokens.append(token)
                logprobs.append(logprob)
            yield index, Completion(tokens, logprobs, "stop" if self.over(tokens, sampling) else "length")

    def stream(self, prompt, sampling):
        for token, _ in self.steps(prompt, sampling, 0):
            yield token

    def score(self, prompts, *, top=0):
        for index, prompt in enumerate(prompts):
            logprobs = self.logprobs(prompt)[:-1]
            own = [float(row[token]) for row, token in zip(logprobs, prompt[1:], strict=True)]
            likeliest = [int(row.argmax()) == token for row, token in zip(logprobs, prompt[1:], strict=True)]
            best = logprobs.topk(top)
            yield index, Score(own, likeliest, best.indices.int().numpy(), best.values.numpy())

    def update_weights(self, weights):
        left = dict(self.model.state_dict())
        for name, tensor in weights:
            left.pop(name).copy_(tensor)
        if left and not (self.model.config.tie_word_embeddings and set(left) == {"lm_head.weight"}):
            raise ModelError(f"The engine did not get {sorted(left)[0]}.")

    def close(self):
        self.model = None

    def steps(self, prompt, sampling, index):
        """Yield tokens with their log-probabilities, up to the end token."""
        import torch

        if not prompt:
            raise DataError("A prompt has no tokens.")
        generator = torch.Generator().manual_seed(sampling.seed_of(index))
        completion = []
        while len(completion) < sampling.max_new_tokens and not (completion and self.over(completion, sampling)):
            tokens = [*prompt, *completion]
            logits = self.logits(tokens)[-1]
            token, logprob = self.sample(logits, tokens, sampling, generator)
            completion.append(token)
            yield token, logprob if sampling.logprobs == "sampled" else float(logits.log_softmax(-1)[token])

    def over(self, completion, sampling):
        return completion[-1] in self.ends or (sampling.is_over is not None and sampling.is_over(completion))

    def sample(self, logits, tokens, sampling, generator):
        import torch

        if sampling.repetition_penalty != 1:
            seen, scores = sorted(set(tokens)), logits.clone()
            penalty = sampling.repetition_penalty
            scores[seen] = torch.where(scores[seen] > 0, scores[seen] / penalty, scores[seen] * penalty)
            logits = scores
        if sampling.temperature == 0:
            return int(logits.argmax()), 0.0
        probabilities, candidates = (logits / sampling.temperature).softmax(-1).sort(descending=True)
        if sampling.top_k:
            probabilities[sampling.top_k :] = 0
            probabilities /= probabilities.sum()
        probabilities[probabilities.cumsum(0) - probabilities >= sampling.top_p] = 0
        index = int(torch.multinomial(probabilities, 1, generator=generator))
        return int(candidates[index]), float((probabilities[index] / probabilities.sum()).log())

    def logits(self, tokens):
        import torch

        with torch.no_grad():
            return self.model(torch.tensor([list(tokens)])).logits[0].float()

    def logprobs(self, tokens):
        return self.logits(tokens).log_softmax(-1)
