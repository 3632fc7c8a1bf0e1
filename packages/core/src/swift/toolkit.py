"""Building blocks of backends. The names listed here are stable; their modules may change.

A backend that trains a transformers model with torch autograd needs little code: `build_view` builds the model,
`accumulate` and `update` make a step, `canonical_parameters` names its weights. A backend with its own engine uses the
parts that fit. This module imports torch: import it inside hooks, not at the top of a plugin's module.
"""

from __future__ import annotations

from swift.backends.torch.state import TorchState
from swift.checkpoint.names import model_name, optim_name
from swift.checkpoint.save import before_update
from swift.checkpoint.tensor_slices import TensorSlices, part_slices, region_slices
from swift.kernels import kernels_for
from swift.models.adapter_initialization import read_initialization
from swift.models.attention import (
    choose_attention,
    packing_of,
    varlen_attention,
)
from swift.models.build import build_view, decoder_blocks, meta_model, refuse_calls_of_blocks
from swift.models.classes import auto_class
from swift.models.collectives import added_up, copied, exchanged
from swift.models.cut_modules import copy_tails, cut_modules
from swift.models.fill import fill
from swift.models.heads import (
    HEAD,
    VALUE_HEAD,
    VALUE_HEAD_MODULE,
    apply_head,
    class_of_task,
    head_of,
    initial_head,
    value_head_of,
)
from swift.models.logits import LogitTransform, VocabularyShard
from swift.models.logps import TokenViews, token_logps, tokens_per_chunk
from swift.models.memory import check_memory
from swift.models.merge import merged
from swift.models.merge_modules import vera_directions
from swift.models.names import (
    ADAPTER,
    START,
    Piece,
    adapter_names,
    base_model,
    canonical_buffers,
    canonical_parameters,
    canonical_weights,
    generator_of,
    name_map,
    whole_shape,
)
from swift.models.parts import rates_of_parts, trains_on_images
from swift.models.peft_modules import attach_peft, resume_adapter
from swift.models.plain_lora import as_plain_lora
from swift.models.pooling import pooled, pooling_weights
from swift.models.precision import DTYPES, resolve_dtype
from swift.models.quantize import quantized_share, scale_bytes, stored_bytes, weights_to_quantise
from swift.models.quiet import without_bitsandbytes
from swift.models.router_losses import balance_loss, follow_load, load_metrics, z_loss
from swift.models.routers import RouterOptions
from swift.models.sample_by_sample import CHECKPOINTING, by_position
from swift.models.sequence import SequenceView, sequence_attention
from swift.models.sizes import check_widths, experts_of
from swift.models.source import architecture_of
from swift.models.tp_derive import derived_plans
from swift.models.tp_spec import (
    COLUMNS,
    ROWS,
    ParameterCut,
    TensorParallelPlan,
    TensorParallelSpec,
    own_plan,
    tensor_parallel_spec,
)
from swift.models.tuners import (
    adapter_config,
    adapters_off,
    apply_tuner,
    weight_counts,
)
from swift.models.unchecked_view import transform_of
from swift.models.view import ViewModule
from swift.optim.build import build_optimizer, parameter_groups, set_learning_rate
from swift.optim.placements import add_placements
from swift.optim.selected import slots_of
from swift.optim.slots import empty_slot, kept
from swift.plugins.tuner import tuner_of
from swift.processes.device import choose_device, join_group, leave_group
from swift.processes.group import current_world
from swift.processes.signals import follow_launcher
from swift.processes.watchdog import heartbeat
from swift.terminal import print_note, progress, summary_of, waiting
from swift.train.steps import Arithmetic, accumulate, gradient_view, score, seed_dropout, update
from swift.train.sums import GlobalSums, NonFiniteStep
from swift.untrusted_pickle import check_archive, load_pickle

__all__ = [
    "ADAPTER",
    "CHECKPOINTING",
    "COLUMNS",
    "DTYPES",
    "HEAD",
    "ROWS",
    "START",
    "VALUE_HEAD",
    "VALUE_HEAD_MODULE",
    "Arithmetic",
    "GlobalSums",
    "LogitTransform",
    "NonFiniteStep",
    "ParameterCut",
    "Piece",
    "RouterOptions",
    "SequenceView",
    "TensorParallelPlan",
    "TensorParallelSpec",
    "TensorSlices",
    "TokenViews",
    "TorchState",
    "ViewModule",
    "VocabularyShard",
    "accumulate",
    "adapter_config",
    "adapter_names",
    "adapters_off",
    "add_placements",
    "added_up",
    "apply_head",
    "apply_tuner",
    "architecture_of",
    "as_plain_lora",
    "attach_peft",
    "auto_class",
    "balance_loss",
    "base_model",
    "before_update",
    "build_optimizer",
    "build_view",
    "by_position",
    "canonical_buffers",
    "canonical_parameters",
    "canonical_weights",
    "check_archive",
    "check_memory",
    "check_widths",
    "choose_attention",
    "choose_device",
    "class_of_task",
    "copied",
    "copy_tails",
    "current_world",
    "cut_modules",
    "decoder_blocks",
    "derived_plans",
    "empty_slot",
    "exchanged",
    "experts_of",
    "fill",
    "follow_launcher",
    "follow_load",
    "generator_of",
    "gradient_view",
    "head_of",
    "heartbeat",
    "initial_head",
    "join_group",
    "kept",
    "kernels_for",
    "leave_group",
    "load_metrics",
    "load_pickle",
    "merged",
    "meta_model",
    "model_name",
    "name_map",
    "optim_name",
    "own_plan",
    "packing_of",
    "parameter_groups",
    "part_slices",
    "pooled",
    "pooling_weights",
    "print_note",
    "progress",
    "quantized_share",
    "rates_of_parts",
    "read_initialization",
    "refuse_calls_of_blocks",
    "region_slices",
    "resolve_dtype",
    "resume_adapter",
    "scale_bytes",
    "score",
    "seed_dropout",
    "sequence_attention",
    "set_learning_rate",
    "slots_of",
    "stored_bytes",
    "summary_of",
    "tensor_parallel_spec",
    "token_logps",
    "tokens_per_chunk",
    "trains_on_images",
    "transform_of",
    "tuner_of",
    "update",
    "value_head_of",
    "varlen_attention",
    "vera_directions",
    "waiting",
    "weight_counts",
    "weights_to_quantise",
    "whole_shape",
    "without_bitsandbytes",
    "z_loss",
]
