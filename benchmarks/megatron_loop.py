"""A hand-written training loop with Megatron-Core and mcore-bridge only.

It uses the bridge's model, Megatron's DistributedDataParallel, optimizer and schedules, and, by passing labels to the
model, its cross entropy over a sharded vocabulary. The process groups are those of the process.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from transformers import AutoConfig, AutoTokenizer

from benchmarks.bare_loop import NO_TARGET, BareLoop
from benchmarks.facts import read_lines
from swift_backend_megatron.megatron_runtime import active

MicroBatch = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]
"""Token ids, positions, next tokens, and which of these are learned."""


class MegatronLoop(BareLoop):
    """A pipeline stage of the model, its optimizer, and chats as token ids."""

    def __init__(self, model: str | Path, chats: str | Path, learning_rate: float, rows: int) -> None:
        self.tokenizer: Any = AutoTokenizer.from_pretrained(model)
        self.samples = [self._encode(line["messages"]) for line in read_lines(Path(chats))]
        self.rows = rows
        with active(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for name in ("megatron", "mcore_bridge"):
                logging.getLogger(name).setLevel(logging.ERROR)
            self.model = self.load(model)
            self.optimizer = self._optimizer(learning_rate)

    def load(self, model: str | Path) -> Any:
        """Return this process's part of the model, with its weights, wrapped."""
        from mcore_bridge import ModelConfig, get_mcore_model, hf_to_mcore_config
        from megatron.core import parallel_state
        from megatron.core.distributed import (
            DistributedDataParallel,
            DistributedDataParallelConfig,
            finalize_model_grads,
        )

        settings = {
            **hf_to_mcore_config(AutoConfig.from_pretrained(model)),
            "tensor_model_parallel_size": parallel_state.get_tensor_model_parallel_world_size(),
            "pipeline_model_parallel_size": parallel_state.get_pipeline_model_parallel_world_size(),
            "params_dtype": torch.float32,
            "pipeline_dtype": torch.float32,
            "perform_initialization": True,
            "calculate_per_token_loss": True,
            "variable_seq_lengths": True,
            "overlap_p2p_comm": False,
            "batch_p2p_comm": True,
            **{"gradient_accumulation_fusion": False, "masked_softmax_fusion": False, "apply_rope_fusion": False},
            **{"bias_activation_fusion": False, "bias_dropout_fusion": False},
        }
        self.config = ModelConfig(**settings)
        self.config.finalize_model_grads_func = finalize_model_grads
        (chunk,) = get_mcore_model(self.config)
        self.config.bridge.load_weights([chunk], str(model))
        wrapped = DistributedDataParallel(self.config, DistributedDataParallelConfig(grad_reduce_in_fp32=True), chunk)
        wrapped.train()
        return wrapped

    def _optimizer(self, learning_rate: float) -> Any:
        from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer

        config = OptimizerConfig(
            optimizer="adam", lr=learning_rate, weight_decay=0.0, adam_beta1=0.9, adam_beta2=0.95, clip_grad=1.0,
            params_dtype=torch.float32,
        )  # fmt: skip
        optimizer = get_megatron_optimizer(config, [self.model], use_gloo_process_groups=False)
        self.config.grad_scale_func = optimizer.scale_loss
        return optimizer

    def step(self, batch: Sequence[int]) -> tuple[float, int]:
        with active():
            return self._step([self.samples[index] for index in batch])

    def _step(self, samples: list[Any]) -> tuple[float, int]:
        from megatron.core import parallel_state
        from megatron.core.pipeline_parallel import get_forward_backward_func

        micro_batches = [
            self._shifted(samples[start : start + self.rows]) for start in range(0, len(samples), self.rows)
        ]
        self.model.zero_grad_buffer()
        self.optimizer.zero_grad()
        outputs = get_forward_backward_func()(
            forward_step_func=self._forward,
            data_iterator=iter(micro_batches),
            model=self.model,
            num_microbatches=len(micro_batches),
            seq_length=micro_batches[0][0].shape[1],
            micro_batch_size=self.rows,
            forward_only=False,
        )
        self.optimizer.step()
        sums = torch.stack([each["sums"] for each in outputs]).sum(0) if outputs else torch.zeros(2)
        group = parallel_state.get_pipeline_model_parallel_group()
        if group.size() > 1:
            dist.broadcast(sums, src=parallel_state.get_pipeline_model_parallel_last_rank(), group=group)
        return (sums[0] / sums[1]).item(), sum(len(ids) for ids, _ in samples)

    def _forward(self, micro_batches: Iterator[MicroBatch], model: Any) -> tuple[torch.Tensor, Callable[..., Any]]:
        input_ids, position_ids, targets, learned = next(micro_batches)
        return model(input_ids, position_ids, None, labels=targets), partial(self._loss, learned)

    @staticmethod
    def _loss(learned: torch.Tensor, losses: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, dict[str, Any]]:
        total, count = (losses * learned).sum(), learned.sum()
        return total, count.int(), {"sums": torch.stack([total.detach(), count])}

    def _shifted(self, samples: list[Any]) -> MicroBatch:
        input_ids, _, labels = self.pad(samples)
        next_labels = torch.nn.functional.pad(labels[:, 1:], (0, 1), value=NO_TARGET)
        learned = next_labels != NO_TARGET
        positions = torch.arange(input_ids.shape[1]).expand_as(input_ids).contiguous()
        return input_ids, positions, next_labels.where(learned, 0), learned.float()
