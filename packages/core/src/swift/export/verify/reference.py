"""Reference for verifying exports: the training state's outputs for a few fixed prompts.

These are the log-probabilities of the prompts' tokens, and the greedy continuation of each prompt.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from swift.contracts import ModelSource, WeightStream
from swift.errors import ExportError
from swift.export.verify.compare import Outputs, Prompt, Reference
from swift.export.verify.seeing import perceived, token_logps
from swift.models.load_adapter import peft_config
from swift.models.names import cache_argument, name_map
from swift.models.pooling import pooled, pooling_weights
from swift.models.quiet import without_bitsandbytes
from swift.parsing.tasks import CAUSAL_LM, EMBEDDING, task_of

_PROMPT_STRINGS = (
    "The quick brown fox jumps over the lazy dog, and then it sleeps until the evening.",
    "def area(width: float, height: float) -> float:\n    return width * height\n",
    "床前明月光，疑是地上霜。举头望明月，低头思故乡。",
    'In 1969, 3 astronauts flew 384,400 km: {"mission": "Apollo 11", "crew": ["Armstrong", "Aldrin"]}',
)
_LONGEST = 64
_COMPLETION = 16
"""How many tokens each prompt is continued by."""


def fixed_prompts(source: ModelSource) -> list[Prompt]:
    """Prose, code, another script, numbers: the same for every export of a model."""
    vocabulary = source.config.get_text_config().vocab_size
    prompts = [
        [token % vocabulary for token in source.tokenizer(text, add_special_tokens=False)["input_ids"][:_LONGEST]]
        for text in _PROMPT_STRINGS
    ]
    return [prompt for prompt in prompts if len(prompt) > 1]


def module_outputs(
    model: torch.nn.Module, prompts: list[Prompt], source: ModelSource, *, greedy: bool = True
) -> Outputs:
    """Return the outputs of a transformers module for the source's task, one prompt at a time."""
    model.eval()
    if task_of(source) != CAUSAL_LM:
        return Outputs(vectors=_vectors(model, prompts, source))
    logps = module_logps(model, prompts)
    made = [_completed(model, prompt) for prompt in prompts] if greedy else []
    return Outputs(logps, [each[0] for each in made], [each[1] for each in made], [each[2] for each in made])


def module_logps(model: torch.nn.Module, prompts: list[Prompt]) -> list[list[float]]:
    """Return the log-probabilities of each prompt's tokens."""
    return [token_logps(model, {"input_ids": torch.tensor([prompt])}) for prompt in prompts]


@torch.no_grad()
def _vectors(model: torch.nn.Module, prompts: list[Prompt], source: ModelSource) -> list[list[float]]:
    """Return the scores, or the vectors, of a transformers module for another task than `causal_lm`."""
    device = next(model.parameters()).device
    how = getattr(source, "pooling", "last")
    outputs = []
    for prompt in prompts:
        output = model(input_ids=torch.tensor([prompt], device=device), use_cache=False)
        if task_of(source) == EMBEDDING:
            hidden = output.last_hidden_state
            where = torch.zeros(hidden.shape[:2], dtype=torch.int64, device=device)
            vector = pooled(hidden, where, pooling_weights(where, 1, how), 1)[0]
        else:
            vector = output.logits[0]
        outputs.append(vector.float().tolist())
    return outputs


@torch.no_grad()
def _completed(model: torch.nn.Module, prompt: Prompt) -> tuple[list[int], list[float], list[float]]:
    """Return how a transformers module goes on after a prompt: tokens, their log-probabilities, and margins."""
    tokens, logps, margins = [], [], []
    name = cache_argument(model)
    step, cache = torch.tensor([prompt], device=next(model.parameters()).device), None
    for _ in range(_COMPLETION):
        output = model(input_ids=step, **{name: cache}, use_cache=True)
        cache = getattr(output, name)
        best = torch.log_softmax(output.logits[0, -1].float(), dim=-1).topk(2)
        tokens.append(int(best.indices[0]))
        logps.append(float(best.values[0]))
        margins.append(float(best.values[0] - best.values[1]))
        step = best.indices[None, :1]
    return tokens, logps, margins


class PlainState:
    """The training state as a plain transformers model in fp32: the base model, filled from the canonical stream.

    It shares nothing with the exporters: weights go straight into parameters, adapters are attached by PEFT and
    left unmerged.
    """

    def __init__(self, source: ModelSource) -> None:
        self._source = source
        self.model: Any = source.build(dtype=torch.float32)
        self._names = name_map(self.model)
        self._tensors = {
            **dict(self.model.named_parameters(remove_duplicate=False)),
            **dict(self.model.named_buffers(remove_duplicate=False)),
        }

    @torch.no_grad()
    def watch(self, weights: WeightStream) -> Iterator[tuple[str, torch.Tensor]]:
        """Pass on the stream of all weights, and keep every value."""
        for name, tensor in weights:
            owner, piece = self._names.owner(name)
            piece.view_of(self._tensors[owner]).copy_(tensor)
            yield name, tensor

    def tensor(self, name: str) -> torch.Tensor:
        """Return the value of one weight on disk."""
        owner, piece = self._names.owner(name)
        return piece.view_of(self._tensors[owner])

    def attach(self, adapters: Mapping[str, torch.Tensor], config: Mapping[str, Any]) -> None:
        """Put the adapter on, as PEFT does it."""
        from peft import get_peft_model, set_peft_model_state_dict

        settings = peft_config(config, self.model, "the adapter's configuration")
        with without_bitsandbytes():
            self.model = get_peft_model(self.model, settings)
        unplaced = set_peft_model_state_dict(self.model, dict(adapters)).unexpected_keys
        if unplaced:
            raise ExportError(f"The adapter's {unplaced[0]} matches no module of the model.")

    def reference(self, prompts: list[Prompt]) -> Reference:
        """Return the outputs of the training state."""
        outputs = module_outputs(self.model, prompts, self._source)
        return Reference(prompts, outputs, perceived(self.model, self._source))
