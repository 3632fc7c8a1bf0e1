"""Work of vLLM's own processes for rollouts: draw as the engine `transformers` draws, and say what they hold.

vLLM mixes `RolloutWorker` into its worker (`worker_extension_cls`), and calls its methods by name, in this process or
over the address of a server.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

import torch

from swift_infer import sample_tokens

EXTENSION = "swift_export_vllm.worker.RolloutWorker"
"""Name by which vLLM imports it."""
_RELOADING = "vllm.model_executor.model_loader.reload.inplace"
"""Where vLLM says which weights it was not given."""


class RolloutWorker:
    """Methods of a vLLM worker. Results are mappings, which is what vLLM's servers return whole."""

    model_runner: Any
    swift_mark: str = ""

    def swift_sample_by_seed(self) -> Mapping[str, bool]:
        """Draw answers that have a seed as the engine `transformers` draws them: equal seeds, equal answers."""
        sampler: Any = getattr(getattr(self.model_runner, "sampler", None), "topk_topp_sampler", None)
        batch = getattr(self.model_runner, "input_batch", None)
        known = sampler is not None and hasattr(batch, "req_output_token_ids")
        if known and not isinstance(sampler.forward, SeededSampling):
            sampler.forward = SeededSampling(self.model_runner, sampler.forward, sampler.logprobs_mode)
        return {"draws": known}

    def swift_reload(self, folder: str, mark: str) -> Mapping[str, Any]:
        """Load weights from a folder; return the names of those that were not in it."""
        self.swift_mark = "unfinished"
        with missing_weights() as missing:
            self.reload_weights(weights_path=folder)  # type: ignore[attr-defined]  # the worker's own
        if not missing:
            self.swift_mark = mark
        return {"missing": missing}

    def swift_state(self) -> Mapping[str, str]:
        """Return the mark of the last weights that were sent; empty for those that the server began with."""
        return {"mark": self.swift_mark}


class SeededSampling:
    """Takes the index of vLLM's last step of sampling, for the rows of a batch that have a seed."""

    def __init__(self, runner: Any, plain: Any, logprobs_mode: str) -> None:
        self._runner = runner
        self._plain = plain
        self._mode = logprobs_mode
        self._chances: WeakKeyDictionary[torch.Generator, _Chances] = WeakKeyDictionary()

    def __call__(
        self,
        logits: torch.Tensor,
        generators: dict[int, torch.Generator],
        k: torch.Tensor | None,
        p: torch.Tensor | None,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return a token for each row, and log-probabilities or logits as vLLM was opened for them."""
        if not generators:
            return self._plain(logits, generators, k, p)  # type: ignore[no-any-return]
        before = logits.clone()
        tokens, returned = self._plain(logits, {}, k, p)
        rows: dict[tuple[int, float], list[int]] = {}
        for row in generators:
            top_k = 0 if k is None else int(k[row])
            rows.setdefault((top_k, 1.0 if p is None else float(p[row])), []).append(row)
        for (top_k, top_p), alike in rows.items():
            chance = torch.tensor([self._chance(row, generators[row]) for row in alike], dtype=torch.float64)
            chosen, _ = sample_tokens(
                before[alike], chance.to(before.device), temperature=1.0, top_k=top_k, top_p=top_p
            )
            tokens[alike] = chosen.to(tokens.dtype)
        return tokens, returned

    def _chance(self, row: int, generator: torch.Generator) -> float:
        """Return the random number of a row's next token.

        It depends on how many tokens the answer has, not on how often vLLM has asked: prompts that are computed in
        pieces are drawn for and thrown away.
        """
        if generator not in self._chances:
            self._chances[generator] = _Chances(generator.initial_seed())
        return self._chances[generator].at(len(self._runner.input_batch.req_output_token_ids[row] or ()))


class _Chances:
    """Random numbers from 0 to 1 that a seed alone decides, as many as are asked for."""

    def __init__(self, seed: int) -> None:
        self._generator = torch.Generator().manual_seed(seed)
        self._made: list[float] = []

    def at(self, index: int) -> float:
        while index >= len(self._made):
            self._made.append(float(torch.rand(1, generator=self._generator, dtype=torch.float64)))
        return self._made[index]


@contextmanager
def missing_weights() -> Iterator[list[str]]:
    """Yield vLLM's warnings about missing weights, which it does not treat as a failure."""
    problems: list[str] = []
    logger = logging.getLogger(_RELOADING)
    handler = logging.Handler()
    handler.emit = lambda record: problems.append(record.getMessage())  # type: ignore[method-assign]
    handler.setLevel(logging.WARNING)
    level, propagate = logger.level, logger.propagate
    logger.setLevel(logging.WARNING)
    logger.propagate = False
    logger.addHandler(handler)
    try:
        yield problems
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
        logger.propagate = propagate
    problems[:] = [each for each in problems if "not loaded" in each]
